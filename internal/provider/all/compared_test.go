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
	"github.com/postern-gateway/postern/internal/testkit/golden"
	"github.com/postern-gateway/postern/internal/versioning"
)

// ignoredPathsByType returns the paths that the comparison of states ignores, by provider and type:
// for events, for refetches of the same objects, for refetches of listed objects, and in the
// tables.
func ignoredPathsByType(t *testing.T) map[string]string {
	t.Helper()
	out := map[string]string{}
	record := func(e config.Endpoint, how string, o *provider.Observation) {
		name := fmt.Sprintf("%s %s %s", e.Provider.Name(), o.ObjectType, how)
		fields := strings.Join(slices.Sorted(slices.Values(o.IgnoredPaths)), " ")
		if before, known := out[name]; known && before != fields {
			t.Errorf("%s: the comparison ignores %q in one place and %q in another, but must ignore the same paths",
				name, before, fields)
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
				o, err := e.Provider.Observe(e.Source, &provider.StoredEvent{Key: ev.Key, Type: ev.Type,
					Account: ev.Account, APIVersion: ev.APIVersion, ReceivedAt: at, Index: i, Body: d.Body})
				if err != nil || o.State == nil || o.Partial != "" {
					continue
				}
				record(e, "event", &o)
				if refetched, ok := observeSnapshot(e, provider.Snapshot{Account: o.Account, ObjectType: o.ObjectType,
					ObjectID: o.ObjectID, APIVersion: ev.APIVersion, Body: o.State.Raw()}); ok {
					record(e, "refetch", &refetched)
				}
			}
		}
		// the table also has types without a sample or a list
		if table, ok := e.Provider.(interface{ IgnoredPaths() map[string][]string }); ok {
			for objectType, fields := range table.IgnoredPaths() {
				record(e, "table", &provider.Observation{ObjectType: objectType, IgnoredPaths: fields})
			}
		}
		lister, ok := e.Provider.(provider.ObjectLister)
		if !ok {
			continue
		}
		for objectType := range lister.Lists(e.Source, &provider.API{Key: provider.Secret{Value: []byte("sk_live_1")},
			Repositories: []string{"o/r"}}, "") {
			body := fmt.Appendf(nil, `{"id": 1, "object": %q}`, objectType)
			if e.Provider.Name() == "stripe" {
				body = fmt.Appendf(nil, `{"id": "1", "object": %q}`, objectType)
			}
			if refetched, ok := observeSnapshot(e, provider.Snapshot{ObjectType: objectType, ObjectID: "1",
				Body: body}); ok {
				record(e, "refetch", &refetched)
			}
		}
	}
	return out
}

// observeSnapshot returns the observation of a refetch with this response; false if it has no whole
// state.
func observeSnapshot(e config.Endpoint, s provider.Snapshot) (o provider.Observation, ok bool) {
	refetcher, ok := e.Provider.(provider.Refetcher)
	if !ok {
		return o, false
	}
	o, err := refetcher.Snapshot(e.Source, &s)
	o.ObjectType = s.ObjectType
	return o, err == nil && o.State != nil && o.Partial == ""
}

// A change of the ignored paths changes the comparison of stored states. Objects from before are
// recognized by their rule version, so such a change needs a new one.
func TestIgnoredPaths_change_needsNewRuleVersion(t *testing.T) {
	t.Parallel()
	const file = "testdata/compared.golden"
	now := ignoredPathsByType(t)
	var b strings.Builder
	fmt.Fprintf(&b, "rule %d\n", versioning.RuleVersion)
	for _, name := range slices.Sorted(maps.Keys(now)) {
		fmt.Fprintf(&b, "%s: %s\n", name, now[name])
	}
	text, err := os.ReadFile(file)
	if err != nil && !golden.Update() {
		t.Fatal(err)
	}
	rule, rest, _ := strings.Cut(string(text), "\n")
	if rule == fmt.Sprintf("rule %d", versioning.RuleVersion) {
		for line := range strings.Lines(rest) {
			name, fields, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
			if is, known := now[name]; !known || is != fields {
				t.Errorf("%s is compared without %q, and was compared without %q: raise versioning.RuleVersion, say "+
					"there and in CHANGELOG.md why, and run go test ./internal/provider/all -update", name, is, fields)
			}
		}
	}
	if !t.Failed() {
		golden.Page(t, file, b.String())
	}
}
