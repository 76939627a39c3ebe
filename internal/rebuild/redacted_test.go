package rebuild_test

import (
	"fmt"
	"log/slog"
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

const hers = "ada.lovelace@example.org"

// thing is an event of an object at a time, with somebody's address.
func thing(object string, at int64, address string) sim.Event {
	text := fmt.Sprintf(`{"id": "%s%d%s", "type": "thing.updated", "object_id": %[1]q, "rank": 1, "time": %[4]d, "unit": 1, "object": {"email": %[3]q, "at": %[2]d}}`, object, at, address, sim.Start+at)
	return sim.Event{Object: object, Body: []byte(text), ReceivedAt: time.Now()}
}

// redact carries out a redaction to its end.
func (b *testBundle) redact(t *testing.T, o redaction.Order) {
	t.Helper()
	if _, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: redaction.Job, Asked: o, Who: "me", Reason: "she asked for it"}); err != nil {
		t.Fatal(err)
	}
	h, err := runs.Take(t.Context(), b.pool, "redacts", time.Minute, redaction.Job)
	if err != nil || h == nil {
		t.Fatal(h, err)
	}
	if status, err := (&redaction.Runner{Pool: b.pool, Processor: b.processor(t, nil)}).Carry(t.Context(), h, slog.New(slog.DiscardHandler)); err != nil || status != runs.Running {
		t.Fatal(status, err)
	}
	if err := h.End(t.Context(), runs.Done, ""); err != nil {
		t.Fatal(err)
	}
}

// What is redacted while a rebuild has it staged, up to the last moment before the lock, does not come back by the swap, nor is the object emptied by this rebuild or
// the next.
func TestRedactedBesideARebuild(t *testing.T) {
	t.Parallel()
	for _, keys := range []int{0, 1000} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d keys, late %t", keys, late), func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				r := seeded(t, 5)
				ids := b.append(t, r, b.source, []sim.Event{thing("hers", 1, "a@else.org"), thing("other", 1, "a@else.org"), thing("tied", 7, "tied@else.org"), thing("wholly", 3, hers)})
				ids = append(ids, b.append(t, r, b.source, []sim.Event{thing("hers", 5, hers)})...)
				ids = append(ids, b.append(t, r, b.source, []sim.Event{thing("tied", 7, hers)})...)
				b.live(t, r, ids)
				order := redaction.Order{Events: ids[4:], Objects: []redaction.Object{{Source: b.source, Type: "thing", ID: "wholly"}}}
				s := rebuild.DefaultSettings
				s.Keys = keys
				rebuilds := &rebuild.Runner{Pool: b.pool, Processor: b.processor(t, nil), Settings: s}
				redacted := false
				if late {
					rebuild.BeforeLock(rebuilds, func() {
						if !redacted {
							redacted = true
							b.redact(t, order)
						}
					})
				}
				stop := b.carry(t, "p", rebuilds)
				run := b.ask(t, rebuild.Order{Source: b.source})
				b.until(t, run, staged)
				if !late {
					b.redact(t, order)
				}
				if err := rebuild.Swap(t.Context(), b.operator, run); err != nil {
					t.Fatal(err)
				}
				b.until(t, run, done)
				want := []string{"hers null 5", "other a@else.org 1", "tied tied@else.org 7", "wholly null 3"}
				shows := func(when string) {
					got := b.rows(t, `SELECT o.object_id || ' ' || coalesce(o.state->>'email', 'null') || ' ' || (o.version_at - $1) FROM objects o ORDER BY 1`, sim.Start)
					if !slices.Equal(got, want) {
						t.Errorf("%s: %v, want %v", when, got, want)
					}
					for _, table := range b.rows(t, `SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'postern'::regnamespace AND relkind = 'r' ORDER BY 1`) {
						if n := b.rows(t, `SELECT count(*)::text FROM `+table+` t WHERE t::text ILIKE '%lovelace%' OR t::text ILIKE '%' || encode('lovelace', 'hex') || '%'`)[0]; n != "0" {
							t.Errorf("%s: left in %s", when, table)
						}
					}
				}
				shows("after the swap")
				b.rebuilt(t, b.source)
				shows("after another")
				stop()
			})
		}
	}
}
