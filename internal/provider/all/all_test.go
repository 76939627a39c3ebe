package all_test

import (
	"os"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/versioning"
)

func TestProvidersAreSortedAndFoundByName(t *testing.T) {
	t.Parallel()
	var names []string
	for _, p := range all.All() {
		names = append(names, p.Name())
		if found, ok := all.Named(p.Name()); !ok || found.Name() != p.Name() {
			t.Errorf("%s is not found by its name", p.Name())
		}
	}
	if !slices.IsSorted(names) || len(slices.Compact(names)) != len(all.All()) {
		t.Errorf("names %v are not sorted and distinct", names)
	}
	if p, ok := all.Named("nobody"); ok {
		t.Errorf("found %v", provider.Provider(p))
	}
}

// Each provider has documents, and a record of what its samples are read as. No scheme leaves what it relies on
// unsigned. SECURITY.md says that none has its token in the body.
func TestProviders_each_isDocumentedRecordedAndSound(t *testing.T) {
	t.Parallel()
	for _, p := range all.All() {
		d := all.Docs(p)
		if d.Title == p.Name() || d.Setup == "" || d.Signature == "" || d.Key == "" || d.Objects == "" || len(d.Links) == 0 {
			t.Errorf("%s: documents %+v", p.Name(), d)
		}
		info, err := os.Stat(filepath.Join("..", p.Name(), "testdata", "samples.golden"))
		if err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", p.Name(), err)
		}
		signed, ok := p.(provider.Signed)
		if !ok || len(signed.Schemes()) == 0 {
			t.Errorf("%s does not tell how it signs", p.Name())
			continue
		}
		for _, s := range signed.Schemes() {
			if err := s.Check(); err != nil {
				t.Errorf("%s: scheme %s: %v", p.Name(), s.Name, err)
			}
			if token, found := s.BodyToken(); found {
				t.Errorf("%s reads its token from %s", p.Name(), token)
			}
		}
	}
}

func TestPageIsCurrent(t *testing.T) {
	t.Parallel()
	providertest.Page(t, "../../../docs/providers.md", all.Page())
}

// An API may answer from a copy that is a second behind: that an object was not there when it was looked at so is nothing against an event which tells that it was made in that second.
func TestALookMayBeASecondBehind(t *testing.T) {
	t.Parallel()
	second := time.Date(2026, time.November, 22, 12, 0, 10, 0, time.UTC)
	lookers := 0
	for _, p := range all.All() {
		looker, ok := p.(provider.Looker)
		if !ok {
			continue
		}
		lookers++
		gone, err := looker.Snapshot(&provider.Source{}, &provider.Snapshot{ObjectType: "product", ObjectID: "1", Missing: true})
		if err != nil {
			t.Fatalf("%s: %v", p.Name(), err)
		}
		state, err := canonical.Parse([]byte(`{"id": "1"}`))
		if err != nil {
			t.Fatal(err)
		}
		// Made at 10.5 s, looked at from 11.2 s on, and the copy was of 10.2 s.
		looked, err := versioning.FromLook(gone, &provider.Look{Date: second.Add(time.Second), Lag: looker.Lag()}, second.Add(2*time.Second))
		if err != nil {
			t.Fatalf("%s: %v", p.Name(), err)
		}
		made, err := versioning.FromObservation(provider.Observation{ObjectType: "product", ObjectID: "1", HasAt: true, Own: true, At: second.UnixMicro(), Unit: gone.Unit, Rank: 1, State: state}, second.Add(time.Second))
		if err != nil {
			t.Fatalf("%s: %v", p.Name(), err)
		}
		for _, order := range [][]versioning.Input{{looked, made}, {made, looked}} {
			row := versioning.NewRow()
			for _, in := range order {
				versioning.Apply(&row, in)
			}
			if row.State.Deleted && !row.Ambiguous && row.LookAfter == 0 {
				t.Errorf("%s: a look that was a second behind has deleted what was made in that second, and no other is owed", p.Name())
			}
		}
	}
	if lookers < 3 {
		t.Errorf("%d providers are looked at", lookers)
	}
}

// demo are the sources of `postern dev`: one for each provider.
func demo(t *testing.T) []config.Endpoint {
	t.Helper()
	c := &config.Config{Sources: config.DemoSources()}
	endpoints := c.Endpoints()
	if len(endpoints) != len(all.All()) {
		t.Fatalf("%d demo sources for %d providers", len(endpoints), len(all.All()))
	}
	return endpoints
}

var at = time.Date(2026, time.July, 4, 12, 30, 15, 250e6, time.UTC)

// Whoever runs `postern dev` can try every provider: its demo source is usable, and every sample goes all the way.
func TestEverySampleGoesThroughItsDemoSource(t *testing.T) {
	t.Parallel()
	for _, e := range demo(t) {
		t.Run(e.Provider.Name(), func(t *testing.T) {
			t.Parallel()
			if err := e.Provider.Check(e.Source); err != nil {
				t.Fatalf("check the demo source: %v", err)
			}
			for _, sample := range samples(t, e) {
				through(t, e, sample)
			}
		})
	}
}

// samples are those of the provider by its name: one that a source's configuration makes has none of its own.
func samples(t *testing.T, e config.Endpoint) []provider.Sample {
	t.Helper()
	p, ok := all.Named(e.Provider.Name())
	if !ok || len(p.Samples()) == 0 {
		t.Fatalf("%s has no samples", e.Provider.Name())
	}
	return p.Samples()
}

// through signs a sample, proves it, names its events and reads them.
func through(t *testing.T, e config.Endpoint, sample provider.Sample) {
	t.Helper()
	d, err := e.Provider.Sign(e.Source, sample, at)
	if err != nil {
		t.Fatalf("sign %s: %v", sample.Type, err)
	}
	d.ReceivedAt = at
	if v, err := e.Provider.Verify(e.Source, d); err != nil || v.Secret != "demo" {
		t.Fatalf("verify %s: %+v, %v", sample.Type, v, err)
	}
	events, err := e.Provider.Identify(e.Source, d)
	if err != nil || len(events) == 0 {
		t.Fatalf("identify %s: %d events, %v", sample.Type, len(events), err)
	}
	for i, ev := range events {
		stored := &provider.Stored{Key: ev.Key, Type: ev.Type, Account: ev.Account, APIVersion: ev.APIVersion, ReceivedAt: at, Index: i, Body: d.Body}
		o, err := e.Provider.Observe(e.Source, stored)
		if err != nil {
			t.Errorf("observe %s: %v", sample.Type, err)
		}
		catalogued(t, e.Provider, o.ObjectType)
	}
	providertest.Sound(t, e.Provider, e.Source, d)
}

// catalogued wants that a provider that can say of which types its objects are knows a type.
func catalogued(t *testing.T, p provider.Provider, objectType string) {
	t.Helper()
	c, ok := p.(provider.Catalogued)
	if !ok || objectType == "" {
		return
	}
	if known := c.ObjectTypes(); len(known) > 0 && !slices.Contains(known, objectType) {
		t.Errorf("type %s is not among %v", objectType, known)
	}
}
