package reconcile_test

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// counters is a provider whose objects have a number that grows with each change, so that a missing one has no place in the order.
type counters struct{ sim.Provider }

func (counters) Snapshot(src *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	if s.Missing {
		return provider.Observation{Account: s.Account, ObjectType: s.ObjectType, ObjectID: s.ObjectID, Partial: "not found", Deleted: true}, nil
	}
	return sim.Provider{}.Snapshot(src, s)
}

// What the API cannot tell enough of is not asked for for ever: two looks that find the same, then no other until the object is in doubt anew. Who wanted the look has had it.
func TestUnfitAnswersEnd(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 130, sim.Options{Objects: 1, Changes: 3, Contents: 4, Unit: 1_000_000, Gap: 700_000, Own: true, Integer: true})
	src := b.Sources[applied.Name]
	src.Looker = counters{}
	b.proc.Replace(map[string]processor.Source{applied.Name: src})
	b.deliver(t, b.api.h.Events)
	b.api.set(time.Now())
	b.api.meets(func(c provider.Call) (*reconcile.Response, error) {
		if !strings.HasPrefix(c.Path, "/things/") {
			return nil, nil
		}
		return &reconcile.Response{Verdict: provider.Verdict{Kind: provider.Missing}, Date: b.api.now.Truncate(time.Second)}, nil
	})
	if _, err := reconcile.Wish(t.Context(), b.DB.Role(t, "operator"), versioning.Key{Source: b.Source, Type: "thing", ID: "obj_1"}, "ada", "is it there"); err != nil {
		t.Fatal(err)
	}
	run := b.runner()
	run.Sources = &reconcile.Sources{}
	s := &reconcile.Source{Name: applied.Name, Number: b.Source, Config: &provider.Source{Name: applied.Name}, API: &provider.API{Concurrency: 3}, Provider: sim.Provider{},
		Reader: counters{}, Caller: b.api}
	run.Sources.Replace(s)
	pass := (&reconcile.Looks{Runner: run, ID: "one", Logger: slog.New(slog.DiscardHandler)}).Passes(s)
	ahead := time.Duration(0)
	passes := func() { // an hour of them
		t.Helper()
		for range 30 {
			ahead += 2 * time.Minute
			b.api.set(time.Now().Add(ahead))
			b.DB.Exec(t, `UPDATE hints SET due = now() WHERE due < 'infinity'`)
			if _, err := pass(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	const hintSQL = `SELECT (due = 'infinity') || '; ' || reason || '; ' || wanted_by || '; ' || error FROM hints`
	parked := func(when string, looks, calls int) {
		t.Helper()
		passes()
		got := b.DB.Rows(t, hintSQL)
		if len(got) != 1 || !strings.HasPrefix(got[0], "true; in doubt; ; the API does not answer the object's whole state: not found; ") {
			t.Errorf("%s: %q", when, got)
		}
		if n := b.DB.Rows(t, `SELECT count(*)::text FROM events WHERE event_type = 'postern.look'`); n[0] != fmt.Sprint(looks) || b.api.made("/things/obj_1") != calls {
			t.Errorf("%s: %d calls made %s looks", when, b.api.made("/things/obj_1"), n[0])
		}
	}
	doubt := func(id string) {
		t.Helper()
		at := time.Now().Add(ahead)
		e := sim.Event{Key: id, Object: "obj_1", Happened: at.UnixMicro(), ReceivedAt: at,
			Body: fmt.Appendf(nil, `{"id":%q,"object_id":"obj_1","type":"thing.updated","unit":1,"partial":"a part","time":%d}`, id, at.UnixMicro())}
		b.api.h.Events = append(b.api.h.Events, e) // which the API knows
		b.deliver(t, []sim.Event{e})
	}
	parked("where somebody asks", 1, 2)
	doubt("one")
	parked("in doubt anew", 2, 4) // the first was the event of a wish
	b.api.meets(nil)
	doubt("two")
	passes()
	if left := b.DB.Rows(t, hintSQL); len(left) != 0 || b.api.made("/things/obj_1") != 5 || len(b.wrong(t)) != 0 {
		t.Errorf("found after all: %q, %d calls, %q", left, b.api.made("/things/obj_1"), b.wrong(t))
	}
}

// A hint that is parked while somebody asks for its object stays due for that, with who did.
func TestWishesAreNotParkedAway(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 131, eventTime)
	b.deliver(t, b.api.h.Events[:1])
	b.api.set(time.Now())
	operator := b.DB.Role(t, "operator")
	key := versioning.Key{Source: b.Source, Type: "unread", ID: "obj_1"}
	wish := func(who string) {
		t.Helper()
		if _, err := reconcile.Wish(t.Context(), operator, key, who, "is it there"); err != nil {
			t.Error(err)
		}
	}
	run := b.runner()
	run.Sources = &reconcile.Sources{}
	s := &reconcile.Source{Name: applied.Name, Number: b.Source, Config: &provider.Source{Name: applied.Name}, API: &provider.API{Concurrency: 3}, Provider: sim.Provider{},
		Reader: callless{asked: func() { wish("bob") }}, Caller: b.api}
	run.Sources.Replace(s)
	pass := (&reconcile.Looks{Runner: run, ID: "one", Logger: slog.New(slog.DiscardHandler)}).Passes(s)
	wish("ada")
	if _, err := pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := b.DB.Rows(t, `SELECT (due <= now()) || ' ' || taken_by || ' ' || wanted_by FROM hints`); len(got) != 1 || got[0] != "true  bob" {
		t.Errorf("%q", got)
	}
}

// callless is a provider that has no call for anything.
type callless struct {
	sim.Provider
	asked func()
}

func (u callless) Fetch(*provider.Source, *provider.API, string, string, string) (provider.Call, bool) {
	u.asked()
	return provider.Call{}, false
}
