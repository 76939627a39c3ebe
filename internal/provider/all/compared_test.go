package all_test

import (
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/versioning"
)

// leftOut are the fields that are left out when states are compared, by provider and type: of events, of looks at what the events carry, of looks at what is listed, and as the
// tables say.
func leftOut(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	note := func(e config.Endpoint, how string, o *provider.Observation) {
		name := fmt.Sprintf("%s %s %s", e.Provider.Name(), o.ObjectType, how)
		fields := strings.Join(slices.Sorted(slices.Values(o.Volatile)), " ")
		if before, known := out[name]; known && before != fields {
			t.Errorf("%s: now without %q, now without %q: states of one object are compared by what they come in", name, before, fields)
		}
		out[name] = fields
	}
	for _, e := range demo(t) {
		for _, sample := range samples(t, e) {
			d, err := e.Provider.Sign(e.Source, sample, at)
			if err != nil {
				t.Fatalf("sign %s: %v", sample.Type, err)
			}
			d.ReceivedAt = at
			events, err := e.Provider.Identify(e.Source, d)
			if err != nil {
				t.Fatalf("identify %s: %v", sample.Type, err)
			}
			for i, ev := range events {
				o, err := e.Provider.Observe(e.Source, &provider.Stored{Key: ev.Key, Type: ev.Type, Account: ev.Account, APIVersion: ev.APIVersion, ReceivedAt: at, Index: i, Body: d.Body})
				if err != nil || o.State == nil || o.Partial != "" {
					continue
				}
				note(e, "event", &o)
				if look, ok := lookedAt(e, provider.Snapshot{Account: o.Account, ObjectType: o.ObjectType, ObjectID: o.ObjectID, APIVersion: ev.APIVersion, Body: o.State.Raw()}); ok {
					note(e, "look", &look)
				}
			}
		}
		if table, ok := e.Provider.(interface{ LeftOut() map[string][]string }); ok { // types that have neither a sample nor a list are in it too
			for objectType, fields := range table.LeftOut() {
				note(e, "table", &provider.Observation{ObjectType: objectType, Volatile: fields})
			}
		}
		lister, ok := e.Provider.(provider.ObjectLister)
		if !ok {
			continue
		}
		for objectType := range lister.Lists(e.Source, &provider.API{Key: provider.Secret{Value: []byte("sk_live_1")}, Repositories: []string{"o/r"}}, "") {
			body := fmt.Appendf(nil, `{"id": 1, "object": %q}`, objectType)
			if e.Provider.Name() == "stripe" {
				body = fmt.Appendf(nil, `{"id": "1", "object": %q}`, objectType)
			}
			if look, ok := lookedAt(e, provider.Snapshot{ObjectType: objectType, ObjectID: "1", Body: body}); ok {
				note(e, "look", &look)
			}
		}
	}
	return out
}

// lookedAt is what a look says that is answered so; false where nothing is read of it.
func lookedAt(e config.Endpoint, s provider.Snapshot) (o provider.Observation, ok bool) {
	looks, ok := e.Provider.(provider.Looker)
	if !ok {
		return o, false
	}
	o, err := looks.Snapshot(e.Source, &s)
	o.ObjectType = s.ObjectType
	return o, err == nil && o.State != nil && o.Partial == ""
}

// A field that is compared from now on, or is not any more, changes what a stored state is compared by: objects that were made before are told by their rule version, so that needs another one.
func TestComparedFieldsAreOfTheirRule(t *testing.T) {
	t.Parallel()
	const file = "testdata/compared.golden"
	now := leftOut(t)
	var b strings.Builder
	fmt.Fprintf(&b, "rule %d\n", versioning.RuleVersion)
	for _, name := range slices.Sorted(maps.Keys(now)) {
		fmt.Fprintf(&b, "%s: %s\n", name, now[name])
	}
	text, err := os.ReadFile(file)
	if err != nil && !providertest.Update() {
		t.Fatal(err)
	}
	rule, rest, _ := strings.Cut(string(text), "\n")
	if rule == fmt.Sprintf("rule %d", versioning.RuleVersion) {
		for line := range strings.Lines(rest) {
			name, fields, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			if is, known := now[name]; !known || is != fields {
				t.Errorf("%s is compared without %q, and was without %q: raise versioning.RuleVersion, say there and in CHANGELOG.md why, and run go test ./internal/provider/all -update", name, is, fields)
			}
		}
	}
	if !t.Failed() {
		providertest.Page(t, file, b.String())
	}
}
