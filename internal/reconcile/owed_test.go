package reconcile_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// What is owed and what is proven is measured, and is not known while the database does not answer.
func TestOwedIsMeasured(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 84, eventTime)
	b.DB.Exec(t, `INSERT INTO hints (source, account, object_type, object_id, reason, made_at, due, after)
		SELECT $1, '', 'thing', d.id, 'in doubt', now(), now() + d.due, 1 FROM (VALUES ('a', interval '-1 hour'), ('b', interval '-1 minute'), ('c', interval '1 hour')) d(id, due)`, b.Source)
	b.DB.Exec(t, `INSERT INTO hints (source, account, object_type, object_id, reason, made_at, due, after) VALUES ($1, '', 'thing', 'd', 'in doubt', now(), 'infinity', 1)`, b.Source)
	b.DB.Exec(t, `INSERT INTO watermarks (source, account, what, since, until, run, at) VALUES
		($1, '', 'events', to_timestamp(0), to_timestamp(2000), 1, now()), ($1, 'other', 'events', to_timestamp(0), to_timestamp(1000), 1, now()), ($1, '', 'run 7', to_timestamp(0), to_timestamp(7), 7, now())`, b.Source)
	b.DB.Exec(t, `INSERT INTO runs (run, job, asked, who, reason, detail, counts, status, made_at, updated_at, ended_at) OVERRIDING SYSTEM VALUE
		SELECT n, 'reconcile', jsonb_build_object('dry_run', n = 4), 'test', '', '', '{}', 'done', now(), now(), now() FROM generate_series(1, 6) n`)
	// Of the first account the newest sweep that is done is the third, since the fourth is a dry run and the fifth is under way; the sixth is another account's.
	b.DB.Exec(t, `INSERT INTO sweeps (run, source, account, object_type, phase, began, updated_at, missing, behind, ahead, different, ghosts, mended, remaining, hidden, checked)
		SELECT n, $1, CASE n WHEN 6 THEN 'other' ELSE '' END, 'thing', CASE n WHEN 5 THEN 'list' ELSE 'done' END, now(), now(), n, 10 * n, 100 * n, 1000 * n, 10000 * n, 100000 * n, 1000000 * n, 10000000 * n, 5 * n
		FROM generate_series(1, 6) n`, b.Source)
	b.DB.Exec(t, `INSERT INTO sweeps (run, source, account, object_type, phase, began, updated_at, remaining) VALUES (2, $1, '', 'widget', 'done', now(), now(), 7), (3, 99, '', 'gadget', 'done', now(), now(), 8)`, b.Source)
	// The day before the last that counts is over, and the account that has the most calls tells.
	b.DB.Exec(t, `INSERT INTO budgets (source, account, tokens, refilled_at, blocked_until, throttles, in_flight, calls)
		SELECT $1, a.account, 1, now(), now(), 0, '{}', jsonb_build_object(n.today - 31, 100 * a.calls, n.today - 30, a.calls, n.today, 7)
		FROM (VALUES ('', 5), ('other', 4)) a(account, calls), (SELECT floor(extract(epoch FROM now()) / 86400)::int AS today) n`, b.Source)
	reg := prometheus.NewRegistry()
	o, err := reconcile.NewOwed(reg, b.sources())
	if err != nil {
		t.Fatal(err)
	}
	read := func() map[string]float64 { return gauges(t, reg) }
	if err := o.Read(t.Context(), b.Pool); err != nil {
		t.Fatal(err)
	}
	got := read()
	if waits := got["postern_hints_waiting_seconds sim"]; waits < 3600 || waits > 3600+600 {
		t.Errorf("the oldest look is due for %v s", waits)
	}
	delete(got, "postern_hints_waiting_seconds sim")
	if diff := cmp.Diff(map[string]float64{"postern_api_monthly_calls sim": 12, "postern_api_monthly_limit_calls sim": 0, "postern_accounts_left_out sim excepted": 0, "postern_accounts_left_out sim disconnected": 0, "postern_hints sim": 4, "postern_hints_parked sim": 1, "postern_proven_until_timestamp_seconds sim events": 1000,
		"postern_drift_objects missing sim thing": 9, "postern_drift_objects behind sim thing": 90, "postern_drift_objects ahead sim thing": 900, "postern_drift_objects different sim thing": 9000,
		"postern_drift_objects ghost sim thing": 90000, "postern_drift_hidden_objects sim thing": 90000000, "postern_drift_checked_objects sim thing": 45, "postern_drift_mended_objects sim thing": 900000, "postern_drift_left_objects sim thing": 9000000,
		"postern_drift_objects missing sim widget": 0, "postern_drift_objects behind sim widget": 0, "postern_drift_objects ahead sim widget": 0, "postern_drift_objects different sim widget": 0,
		"postern_drift_objects ghost sim widget": 0, "postern_drift_hidden_objects sim widget": 0, "postern_drift_checked_objects sim widget": 0, "postern_drift_mended_objects sim widget": 0, "postern_drift_left_objects sim widget": 7}, got); diff != "" {
		t.Error(diff)
	}
	pool := b.DB.Role(t, "processor")
	pool.Close()
	if err := o.Read(t.Context(), pool); err == nil {
		t.Error("read from no database")
	}
	for name, v := range read() {
		if name != "postern_api_monthly_limit_calls sim" && !math.IsNaN(v) {
			t.Error(fmt.Sprint(name, " is ", v, " of a database that does not answer"))
		}
	}
}

// gauges are all that a registry has, by name and labels.
func gauges(t *testing.T, reg *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += " " + l.GetValue()
			}
			got[name] = m.GetGauge().GetValue()
		}
	}
	return got
}

// unseen are living objects that all owe a look, and that the key may no longer see.
func unseen(t *testing.T, seed uint64) *world {
	t.Helper()
	b := newMirror(t, seed, sim.Options{Objects: 30, Changes: 1, Contents: 4, Unit: 1, Gap: 2_000_000, Own: true})
	b.DB.Exec(t, `UPDATE objects SET look_after = 1`)
	b.api.on(b.missing(), "/things/*")
	return b
}

// Many processes' looks of hints delete no more in an hour than a sweep may without asking; what is left says what to do, and goes on by the hour or by a person's wish.
func TestHintsDeleteFew(t *testing.T) {
	t.Parallel()
	b := unseen(t, 211)
	b.looking(t, 3)
	left := func(n int) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			dead := one[int](t, b, `SELECT count(*) FROM objects WHERE deleted`)
			said := one[int](t, b, `SELECT count(*) FROM hints WHERE taken_by = '' AND due > clock_now() + interval '50 minutes' AND error LIKE '%more than 1 \%%--type thing --full asks a person%'`)
			if said != n || dead+said != 30 {
				return fmt.Errorf("%d are deleted, %d are left", dead, said)
			}
			return nil
		})
	}
	eventually(t, b, 0, `SELECT (SELECT count(*) FROM hints WHERE due < clock_now() + interval '50 minutes') + (SELECT count(*) FROM objects o WHERE look_after <> 0 AND NOT EXISTS (SELECT FROM hints h WHERE h.object_id = o.object_id))`)
	dead := one[int](t, b, `SELECT count(*) FROM objects WHERE deleted`)
	if dead != 20 {
		t.Fatalf("%d are deleted", dead)
	}
	left(30 - dead)
	is[int](t, b, dead, countLooks)
	id := one[string](t, b, `SELECT object_id FROM hints ORDER BY object_id LIMIT 1`)
	b.wish(t, "thing", id, "me", "it is gone indeed")
	left(30 - dead - 1)
	b.DB.Exec(t, `UPDATE tombstones SET at = at - interval '61 minutes'`)
	b.DB.Exec(t, `UPDATE hints SET due = clock_now()`) // an hour later
	eventually(t, b, 0, `SELECT count(*) FROM objects WHERE NOT deleted`)
	is(t, b, 0, `SELECT count(*) FROM tombstones WHERE at < clock_now() - interval '1 hour'`)
}

// Where so many objects live that it is a hundredth of them at most, nobody is asked.
func TestHintsDeleteAHundredth(t *testing.T) {
	t.Parallel()
	b := unseen(t, 212)
	b.DB.Exec(t, `INSERT INTO objects SELECT (jsonb_populate_record(o, jsonb_build_object('object_id', 'more_' || n, 'look_after', 0))).* FROM objects o, generate_series(1, 3000) n WHERE o.object_id = 'obj_6'`)
	b.looking(t, 2)
	eventually(t, b, 30, `SELECT count(*) FROM objects WHERE deleted`)
}

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
	b.api.on(b.missing(), "/things/*")
	b.wish(t, "thing", "obj_1", "ada", "is it there")
	pass := passes(b, b.runnerOf(func(s *reconcile.Source) { s.Reader = counters{} }))
	ahead := time.Duration(0)
	hour := func() { // of passes
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
		hour()
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
	b.api.on(nil, "/things/*")
	doubt("two")
	hour()
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
	wish := func(who string) { b.wish(t, "unread", "obj_1", who, "is it there") }
	pass := passes(b, b.runnerOf(func(s *reconcile.Source) { s.Reader = callless{asked: func() { wish("bob") }} }))
	wish("ada")
	if _, err := pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.rows(t, `SELECT (due <= now()) || ' ' || taken_by || ' ' || wanted_by FROM hints`, "true  bob")
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
