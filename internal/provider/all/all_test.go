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
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/signature"
	"github.com/postern-gateway/postern/internal/testkit/golden"
	"github.com/postern-gateway/postern/internal/versioning"
)

func TestAll_names_areSortedAndFound(t *testing.T) {
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

// Each provider has documents, and a record of how its samples are read. No scheme leaves a
// required value unsigned. SECURITY.md says that no token is in a body.
func TestProviders_each_isDocumentedRecordedAndSound(t *testing.T) {
	t.Parallel()
	for _, p := range all.All() {
		d := all.Docs(p)
		if d.Title == p.Name() || d.Setup == "" || d.Signature == "" || d.Key == "" || d.Objects == "" ||
			len(d.Links) == 0 {
			t.Errorf("%s: documents %+v", p.Name(), d)
		}
		info, err := os.Stat(filepath.Join("..", p.Name(), "testdata", "samples.golden"))
		if err != nil || info.Size() == 0 {
			t.Errorf("%s: %v", p.Name(), err)
		}
		signed, ok := p.(provider.Signed)
		if !ok || len(signed.Schemes()) == 0 {
			t.Errorf("%s exposes no signature schemes", p.Name())
			continue
		}
		for _, s := range signed.Schemes() {
			c := settings.Check(s.Name)
			if s.Check(c); c.Err() != nil {
				t.Errorf("%s: %v", p.Name(), c.Err())
			}
			if token, found := s.BodyToken(); found {
				t.Errorf("%s reads its token from %s", p.Name(), token)
			}
		}
		if of, ok := p.(interface{ Spec() declared.Spec }); ok {
			spec, c := of.Spec(), settings.Check(p.Name())
			spec.Events.Check(c.Under("events"))
			for i := range spec.Objects {
				signature.CheckFields(c.Under("objects"), &spec.Objects[i])
			}
			if err := c.Err(); err != nil {
				t.Error(err)
			}
		}
	}
}

func TestPage_file_isCurrent(t *testing.T) {
	t.Parallel()
	golden.Page(t, "../../../docs/reference/providers.md", all.Page())
	golden.Page(t, "../../../docs/reference/provider-apis.md", all.APIPage())
}

// notMirrored are types of the catalogs that are not mirrored.
var notMirrored = []string{"", "application", "billing.alert_triggered"}

// Each mirrored type of a provider with an API is read, or the page says why it is not.
func TestAPIDocs_everyType_isReadOrExplained(t *testing.T) {
	t.Parallel()
	documented := 0
	for _, p := range all.All() {
		described, ok := p.(provider.APIDocumented)
		if !ok {
			continue
		}
		documented++
		d := described.APIDocs()
		for _, name := range p.(provider.TypeCatalog).ObjectTypes() {
			read := slices.ContainsFunc(d.Types, func(of provider.ReadableType) bool {
				return of.Type == name && of.Object != ""
			})
			if _, explained := d.NotRead[name]; read == explained && !slices.Contains(notMirrored, name) {
				t.Errorf("%s: %s is read: %t, explained: %t", p.Name(), name, read, explained)
			}
		}
	}
	if documented < 3 {
		t.Errorf("%d providers describe their API", documented)
	}
}

// The API's state may be a second old, so a refetch that finds nothing may be older than the event
// that creates the object in that second.
func TestSnapshot_missingWithinLag_doesNotHideCreation(t *testing.T) {
	t.Parallel()
	second := time.Date(2026, time.November, 22, 12, 0, 10, 0, time.UTC)
	refetchers := 0
	for _, p := range all.All() {
		refetcher, ok := p.(provider.Refetcher)
		if !ok {
			continue
		}
		refetchers++
		missing, err := refetcher.Snapshot(&provider.Source{}, &provider.Snapshot{ObjectType: "product", ObjectID: "1",
			Missing: true})
		if err != nil {
			t.Fatalf("%s: %v", p.Name(), err)
		}
		state, err := canonical.Parse([]byte(`{"id": "1"}`))
		if err != nil {
			t.Fatal(err)
		}
		// created at 10.5 s, refetched from 11.2 s on, with a state of 10.2 s
		refetched, err := versioning.InputFromRefetch(missing,
			&provider.Refetch{Date: second.Add(time.Second), Lag: refetcher.Lag()}, second.Add(2*time.Second))
		if err != nil {
			t.Fatalf("%s: %v", p.Name(), err)
		}
		created, err := versioning.InputFromObservation(provider.Observation{ObjectType: "product", ObjectID: "1",
			HasAt: true, OwnVersion: true, At: second.UnixMicro(), Unit: missing.Unit, Rank: 1, State: state},
			second.Add(time.Second))
		if err != nil {
			t.Fatalf("%s: %v", p.Name(), err)
		}
		for _, order := range [][]versioning.Input{{refetched, created}, {created, refetched}} {
			row := versioning.NewRow()
			for _, in := range order {
				versioning.Apply(&row, in)
			}
			if row.State.Deleted && !row.Ambiguous && row.RefetchAfter == 0 {
				t.Errorf("%s: a refetch with a state of a second ago deletes an object that was created in that "+
					"second, and no refetch is pending", p.Name())
			}
		}
	}
	if refetchers < 3 {
		t.Errorf("%d providers can be refetched from", refetchers)
	}
}

// demo returns the sources of `postern dev`: one for each provider.
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

// Every provider can be tried in `postern dev`: its demo source is usable, and every sample is
// verified and read.
func TestDemoSource_everySample_isVerifiedAndRead(t *testing.T) {
	t.Parallel()
	for _, e := range demo(t) {
		t.Run(e.Provider.Name(), func(t *testing.T) {
			t.Parallel()
			if err := e.Provider.Check(e.Source); err != nil {
				t.Fatalf("check the demo source: %v", err)
			}
			for _, sample := range samples(t, e) {
				processSample(t, e, sample)
			}
		})
	}
}

// samples returns the samples of a provider by name, because a provider from a configuration has
// none.
func samples(t *testing.T, e config.Endpoint) []provider.Sample {
	t.Helper()
	p, ok := all.Named(e.Provider.Name())
	if !ok || len(p.Samples()) == 0 {
		t.Fatalf("%s has no samples", e.Provider.Name())
	}
	return p.Samples()
}

// processSample signs and verifies a sample, and identifies and reads its events.
func processSample(t *testing.T, e config.Endpoint, sample provider.Sample) {
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
		stored := &provider.StoredEvent{Key: ev.Key, Type: ev.Type, Account: ev.Account, APIVersion: ev.APIVersion,
			ReceivedAt: at, Index: i, Body: d.Body}
		o, err := e.Provider.Observe(e.Source, stored)
		if err != nil {
			t.Errorf("observe %s: %v", sample.Type, err)
		}
		checkTypeCatalog(t, e.Provider, o.ObjectType)
	}
	providertest.CheckSound(t, e.Provider, e.Source, d)
}

// checkTypeCatalog checks that a provider with a type catalog lists a type.
func checkTypeCatalog(t *testing.T, p provider.Provider, objectType string) {
	t.Helper()
	c, ok := p.(provider.TypeCatalog)
	if !ok || objectType == "" {
		return
	}
	if known := c.ObjectTypes(); len(known) > 0 && !slices.Contains(known, objectType) {
		t.Errorf("type %s is not among %v", objectType, known)
	}
}
