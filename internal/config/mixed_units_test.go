package config_test

import (
	"fmt"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/versioning"
)

// mixedUnits is a sender with two kinds of events, one with milliseconds and one with whole
// seconds, and an API with either.
func mixedUnits(t *testing.T) config.Endpoint {
	t.Helper()
	c := parse(t, `
database: {url: postgres://x/y}
sources:
  shop:
    provider: hmac
    secrets: [{name: a, value: a-secret-of-the-shop}]
    scheme: {header: X-Signature, message: '{body}', encoding: hex}
    events: {type: '{json:type}'}
    objects:
      - {events: [fine], type: order, id: '{json:id}', state: order, version: {from: 'json:order.at'}}
      - {events: [coarse], type: order, id: '{json:id}', state: order, version: {from: 'json:changed'}}
    api:
      key: {value: k}
      base_url: https://shop.example
      control: /me
      objects: {order: {get: '/orders/{id}', version: {path: at}}}
`)
	return c.Endpoints()[0]
}

// readEvent returns the version of an event.
func readEvent(t *rapid.T, ep config.Endpoint, kind, body string, at time.Time) versioning.Input {
	o, err := provider.Observe(ep.Provider, ep.Source, &provider.StoredEvent{Type: kind, Body: []byte(body)})
	if err != nil || o.ObjectType != "order" || o.Partial != "" {
		t.Fatalf("%s: %+v, %v", body, o, err)
	}
	o.State = o.State.Get("n")
	in, err := versioning.InputFromObservation(o, at.Add(time.Second))
	must(t, err)
	return in
}

// TestMixedUnits_anyOrder_neverSilentlyWrong generates histories of an object. Its kinds of events,
// and its API, give the time of change in milliseconds or in whole seconds. After each history the
// mirror has the last state, or a refetch is pending. One refetch then leads to the last state,
// whatever webhooks were lost.
func TestMixedUnits_anyOrder_neverSilentlyWrong(t *testing.T) {
	t.Parallel()
	ep := mixedUnits(t)
	const second = 1_000_000
	layout := map[bool]string{true: "2006-01-02T15:04:05.000Z07:00", false: time.RFC3339}
	rapid.Check(t, func(t *rapid.T) {
		begin := time.Date(2026, 11, 24, 8, 0, 0, 0, time.UTC)
		fineAPI, at := rapid.Bool().Draw(t, "API of milliseconds"), begin
		body := func(state int, at time.Time, fine bool) string {
			return fmt.Sprintf(`{"id":"1","n":%d,"at":%q}`, state, at.Format(layout[fine]))
		}
		states := []time.Time{begin}
		var inputs []versioning.Input
		refetch := func(state int, changed, now time.Time) versioning.Input {
			l := &provider.Refetch{Snapshot: provider.Snapshot{ObjectType: "order", ObjectID: "1",
				Body: []byte(body(state, changed, fineAPI))},
				Date: now.Truncate(time.Second), Lag: time.Second}
			o, err := ep.Reader.Snapshot(ep.Source, &l.Snapshot)
			must(t, err)
			o.State = o.State.Get("n")
			in, err := versioning.InputFromRefetch(o, l, now)
			must(t, err)
			return in
		}
		lost := false
		for n := range rapid.IntRange(1, 6).Draw(t, "changes") {
			at = at.Add(time.Duration(rapid.IntRange(1, 1500).Draw(t, "milliseconds later")) * time.Millisecond)
			states = append(states, at)
			fine := rapid.Bool().Draw(t, "event of milliseconds")
			kind, effectWarnings := "coarse", at.Format(time.RFC3339)
			if fine {
				kind = "fine"
			}
			delivery := fmt.Sprintf(`{"type":%q,"id":"1","changed":%q,"order":%s}`, kind, effectWarnings,
				body(n+1, at, true))
			in := readEvent(t, ep, kind, delivery, at)
			if rapid.IntRange(0, 4).Draw(t, "lost") == 0 {
				lost = true
			} else {
				inputs = append(inputs, in)
			}
			if rapid.IntRange(0, 2).Draw(t, "refetched") == 0 {
				now := at.Add(time.Duration(rapid.IntRange(0, 1500).Draw(t, "refetched after")) * time.Millisecond)
				// The API then returns the state of the previous change, because the next one is
				// not made yet.
				inputs = append(inputs, refetch(n+1, at, now))
				at = now
			}
		}
		row := versioning.NewRow()
		for _, in := range rapid.Permutation(append(inputs, inputs...)).Draw(t, "order") {
			versioning.Apply(&row, in)
		}
		last := len(states) - 1
		if got := string(row.State.JSON); got != fmt.Sprint(last) && !row.Ambiguous && row.RefetchAfter == 0 && !lost {
			t.Fatalf("silently %s, the last state is %d", got, last)
		}
		versioning.Apply(&row, refetch(last, states[last], time.UnixMicro(max(at.UnixMicro(), row.RefetchAfter)+
			5*second)))
		if got := string(row.State.JSON); got != fmt.Sprint(last) || row.Ambiguous || row.RefetchAfter != 0 {
			t.Fatalf("after a refetch: state %s, ambiguous %t, refetch after %d; the last state is %d", got,
				row.Ambiguous, row.RefetchAfter, last)
		}
	})
}

func TestVersionUnits_typesReadFromSeveralFields_areCut(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct{ typeA, versionA, typeB, versionB, want string }{
		"one field":               {"x", "'json:at'", "x", "'json:at'", "map[]"},
		"two fields":              {"x", "'json:at'", "x", "'json:s.at'", "map[x:true]"},
		"two fields of two types": {"x", "'json:at'", "y", "'json:s.at'", "map[]"},
		"types in the body":       {"'{json:t}'", "'json:at'", "'{json:t}'", "'json:s.at'", "map[*:true]"},
		"integers":                {"x", "'json:n', unit: integer", "x", "'json:s.n', unit: integer", "map[]"},
	} {
		c := parse(t, fmt.Sprintf(`
database: {url: postgres://x/y}
sources:
  a:
    provider: hmac
    secrets: [{name: a, value: a-secret-of-the-shop}]
    scheme: {header: X-S, message: '{body}'}
    events: {type: '{json:type}'}
    objects:
      - {events: [a], type: %s, id: '{json:id}', state: s, version: {from: %s}}
      - {events: [b], type: %s, id: '{json:id}', state: s, version: {from: %s}}
`, tc.typeA, tc.versionA, tc.typeB, tc.versionB))
		if got := fmt.Sprint(c.Endpoints()[0].Source.WholeSeconds); got != tc.want {
			t.Errorf("%s: %s, want %s", name, got, tc.want)
		}
	}
	if got := fmt.Sprint(mixedUnits(t).Source.WholeSeconds); got != "map[order:true]" {
		t.Errorf("with an API: %s", got)
	}
}

// TestOneField_kindsOfMixedResolution_neverSilentlyWrong generates histories of an object. Its
// kinds of events give the time of change in one field, one kind in milliseconds and the other in
// whole seconds. Nothing in the configuration shows this.
func TestOneField_kindsOfMixedResolution_neverSilentlyWrong(t *testing.T) {
	t.Parallel()
	c := parse(t, `
database: {url: postgres://x/y}
sources:
  shop:
    provider: hmac
    secrets: [{name: a, value: a-secret-of-the-shop}]
    scheme: {header: X-Signature, message: '{body}', encoding: hex}
    events: {type: '{json:type}'}
    objects: [{events: ['*'], type: order, id: '{json:id}', state: order, version: {from: 'json:at'}}]
`)
	ep := c.Endpoints()[0]
	layout := map[bool]string{true: "2006-01-02T15:04:05.000Z07:00", false: time.RFC3339}
	undecided, right := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		at := time.Date(2026, 11, 24, 8, 0, 0, 0, time.UTC)
		mixed := rapid.Bool().Draw(t, "a kind of whole seconds")
		var inputs []versioning.Input
		last := 0
		for range rapid.IntRange(1, 6).Draw(t, "changes") {
			at = at.Add(time.Duration(rapid.IntRange(1, 1500).Draw(t, "milliseconds later")) * time.Millisecond)
			last = rapid.IntRange(0, 2).Draw(t, "state")
			mixed = mixed || at.Nanosecond() == 0 // a time with the fraction .000 may come from either clock
			fine := !mixed || rapid.Bool().Draw(t, "in milliseconds")
			body := fmt.Sprintf(`{"type":"a","id":"1","at":%q,"order":{"n":%d}}`, at.Format(layout[fine]), last)
			inputs = append(inputs, readEvent(t, ep, "a", body, at))
		}
		row := versioning.NewRow()
		for _, in := range rapid.Permutation(append(inputs, inputs...)).Draw(t, "order") {
			versioning.Apply(&row, in)
		}
		switch got := string(row.State.JSON); {
		case row.Ambiguous || row.RefetchAfter != 0:
			undecided++
			if !mixed {
				t.Fatalf("undecided (ambiguous %t, refetch after %d), though all times are of milliseconds",
					row.Ambiguous, row.RefetchAfter)
			}
		case got != fmt.Sprint(last):
			t.Fatalf("silently %s, the last state is %d", got, last)
		default:
			right++
		}
	})
	t.Logf("%d histories right, %d undecided", right, undecided)
}
