package refetch_test

import (
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// The metrics show pending refetches and watermarks. They are not a number while the database does
// not answer.
func TestMetrics_pendingAndComplete_areMeasured(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 84, reconciled.EventTimeOptions)
	b.DB.Exec(t, `INSERT INTO refetch_requests (source, account, object_type, object_id, reason, requested_at, due,
		start_after)
		SELECT $1, '', 'thing', d.id, 'ambiguous', now(), now() + d.due, 1 FROM (VALUES ('a', interval '-1 hour'),
			('b', interval '-1 minute'), ('c', interval '1 hour')) d(id, due)`, b.Source)
	b.DB.Exec(t, `INSERT INTO refetch_requests (source, account, object_type, object_id, reason, requested_at, due,
		start_after)
		VALUES ($1, '', 'thing', 'd', 'ambiguous', now(), 'infinity', 1)`, b.Source)
	b.DB.Exec(t, `INSERT INTO watermarks (source, account, subject, since, until, run, recorded_at) VALUES
		($1, '', 'events', to_timestamp(0), to_timestamp(2000), 1, now()), ($1, 'other', 'events', to_timestamp(0),
			to_timestamp(1000), 1, now()), ($1, '', 'run 7', to_timestamp(0), to_timestamp(7), 7, now())`, b.Source)
	b.DB.Exec(t, `INSERT INTO runs (run, job, params, actor, reason, detail, counts, status, created_at, updated_at,
		ended_at)
		OVERRIDING SYSTEM VALUE
		SELECT n, 'reconcile', jsonb_build_object('dry_run', n = 4), 'test', '', '', '{}', 'done', now(), now(), now()
			FROM generate_series(1, 6) n`)
	// The newest finished scan of the first account is the third: the fourth is a dry run, the
	// fifth is in progress, and the sixth is of another account.
	b.DB.Exec(t, `INSERT INTO object_scans (run, source, account, object_type, phase, started_at, updated_at, missing,
		mirror_older,
		mirror_newer, content_differs, orphans, repaired, unrepaired, not_listed, checked)
		SELECT n, $1, CASE n WHEN 6 THEN 'other' ELSE '' END, 'thing', CASE n WHEN 5 THEN 'list' ELSE 'done' END, now(),
			now(), n, 10 * n, 100 * n, 1000 * n, 10000 * n, 100000 * n, 1000000 * n, 10000000 * n, 5 * n
		FROM generate_series(1, 6) n`, b.Source)
	b.DB.Exec(t, `INSERT INTO object_scans (run, source, account, object_type, phase, started_at, updated_at,
		unrepaired)
		VALUES (2, $1, '', 'widget', 'done', now(), now(), 7), (3, 99, '', 'gadget', 'done', now(), now(), 8)`,
		b.Source)
	// A day outside the thirty days does not count. The metric shows the account with the most
	// calls.
	b.DB.Exec(t, `INSERT INTO rate_budgets (source, account, tokens, refilled_at, blocked_until, throttles, in_flight,
		calls)
		SELECT $1, a.account, 1, now(), now(), 0, '{}', jsonb_build_object(n.today - 31, 100 * a.calls, n.today - 30,
			a.calls, n.today, 7)
		FROM (VALUES ('', 5), ('other', 4)) a(account, calls), (SELECT floor(extract(epoch FROM now()) / 86400)::int AS
			today) n`, b.Source)
	reg := prometheus.NewRegistry()
	o, err := reconcile.NewStateMetrics(reg, b.APISources())
	testkit.Must(t, err)
	read := func() map[string]float64 { return reconciled.GaugeValues(t, reg) }
	testkit.Must(t, o.Read(t.Context(), b.Pool))
	got := read()
	if waits := got["postern_refetches_oldest_seconds sim"]; waits < 3600 || waits > 3600+600 {
		t.Errorf("the oldest request is due for %v s", waits)
	}
	delete(got, "postern_refetches_oldest_seconds sim")
	testkit.Equal(t, "", map[string]float64{"postern_api_monthly_calls sim": 12,
		"postern_api_monthly_limit_calls sim": 0, "postern_accounts_excluded excluded sim": 0,
		"postern_accounts_excluded disconnected sim": 0, "postern_refetches_pending sim": 4,
		"postern_refetches_suspended sim": 1, "postern_complete_until_timestamp_seconds sim events": 1000,
		"postern_drift_objects missing sim thing": 9, "postern_drift_objects mirror_older sim thing": 90,
		"postern_drift_objects mirror_newer sim thing": 900, "postern_drift_objects content_differs sim thing": 9000,
		"postern_drift_objects orphan sim thing": 90000, "postern_drift_not_listed_objects sim thing": 90000000,
		"postern_drift_checked_objects sim thing": 45, "postern_drift_repaired_objects sim thing": 900000,
		"postern_drift_unrepaired_objects sim thing": 9000000, "postern_drift_objects missing sim widget": 0,
		"postern_drift_objects mirror_older sim widget": 0, "postern_drift_objects mirror_newer sim widget": 0,
		"postern_drift_objects content_differs sim widget": 0, "postern_drift_objects orphan sim widget": 0,
		"postern_drift_not_listed_objects sim widget": 0, "postern_drift_checked_objects sim widget": 0,
		"postern_drift_repaired_objects sim widget": 0, "postern_drift_unrepaired_objects sim widget": 7}, got)
	pool := b.DB.Role(t, "processor")
	pool.Close()
	if err := o.Read(t.Context(), pool); err == nil {
		t.Error("no error without a database")
	}
	for name, v := range read() {
		if name != "postern_api_monthly_limit_calls sim" && !math.IsNaN(v) {
			t.Errorf("%s is %v without a database", name, v)
		}
	}
}

// newUnseenEnv makes existing objects with pending refetches that the key may no longer see.
func newUnseenEnv(t *testing.T, seed uint64) *reconciled.Env {
	t.Helper()
	b := reconciled.NewMirroredEnv(t, seed, sim.Options{Objects: 30, Changes: 1, Contents: 4, Unit: 1, Gap: 2_000_000,
		ObjectVersions: true})
	b.DB.Exec(t, `UPDATE objects SET refetch_after = 1`)
	b.API.RespondTo(b.MissingResponse(), "/things/*")
	return b
}

// Refetches of several processes delete no more objects in an hour than a scan may without
// approval. Further requests report the remedy, and continue after an hour or on a manual request.
func TestRefetch_manyMissing_deletionsAreLimited(t *testing.T) {
	t.Parallel()
	b := newUnseenEnv(t, 211)
	b.StartRefetchers(t, 3)
	left := func(n int) {
		t.Helper()
		testkit.Eventually(t, time.Minute, func() error {
			deleted := reconciled.QueryOne[int](t, b, `SELECT count(*) FROM objects WHERE deleted`)
			got := reconciled.QueryOne[int](t, b, `SELECT count(*) FROM refetch_requests WHERE lease_owner = ''
				AND due > clock_now() + interval '50 minutes'
					AND error LIKE '%more than 1 \%%--type thing --full asks for approval%'`)
			if got != n || deleted+got != 30 {
				return fmt.Errorf("%d are deleted, %d wait", deleted, got)
			}
			return nil
		})
	}
	reconciled.WaitForValue(t, b, 0, `SELECT (SELECT count(*) FROM refetch_requests
		WHERE due < clock_now() + interval '50 minutes') +
		(SELECT count(*) FROM objects o WHERE refetch_after <> 0 AND NOT EXISTS (SELECT FROM refetch_requests h
			WHERE h.object_id = o.object_id))`)
	deleted := reconciled.QueryOne[int](t, b, `SELECT count(*) FROM objects WHERE deleted`)
	if deleted != 20 {
		t.Fatalf("%d are deleted", deleted)
	}
	left(30 - deleted)
	reconciled.WantValue[int](t, b, deleted, reconciled.CountRefetchesSQL)
	id := reconciled.QueryOne[string](t, b, `SELECT object_id FROM refetch_requests ORDER BY object_id LIMIT 1`)
	b.RequestRefetch(t, "thing", id, "me", "it is gone indeed")
	left(30 - deleted - 1)
	b.DB.Exec(t, `UPDATE recent_missing SET at = at - interval '61 minutes'`)
	b.DB.Exec(t, `UPDATE refetch_requests SET due = clock_now()`) // an hour later
	reconciled.WaitForValue(t, b, 0, `SELECT count(*) FROM objects WHERE NOT deleted`)
	reconciled.WantValue(t, b, 0, `SELECT count(*) FROM recent_missing WHERE at < clock_now() - interval '1 hour'`)
}

// If at most one percent of the objects is missing, no approval is needed.
func TestRefetch_missingBelowOnePercent_areDeleted(t *testing.T) {
	t.Parallel()
	b := newUnseenEnv(t, 212)
	b.DB.Exec(t, `INSERT INTO objects SELECT (jsonb_populate_record(o, jsonb_build_object('object_id', 'more_' || n,
		'refetch_after', 0))).* FROM objects o, generate_series(1, 3000) n WHERE o.object_id = 'obj_6'`)
	b.StartRefetchers(t, 2)
	reconciled.WaitForValue(t, b, 30, `SELECT count(*) FROM objects WHERE deleted`)
}

// Partial responses are not requested forever: two refetches with the same result, then none until
// the object is ambiguous again. A manual request is done after one.
func TestRefetch_partialResponses_areSuspended(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 130, sim.Options{Objects: 1, Changes: 3, Contents: 4, Unit: 1_000_000, Gap: 700_000,
		ObjectVersions: true, VersionIsCounter: true})
	src := b.Sources[applied.SourceName]
	src.RefetchReader = reconciled.CounterReader{}
	b.Proc.Replace(map[string]apply.Source{applied.SourceName: src})
	b.Deliver(t, b.API.History.Events)
	b.API.SetTime(time.Now())
	b.API.RespondTo(b.MissingResponse(), "/things/*")
	b.RequestRefetch(t, "thing", "obj_1", "ada", "is it there")
	pass := reconciled.RefetchPasses(b,
		b.RunnerWith(func(s *providerapi.Source) { s.Reader = reconciled.CounterReader{} }))
	ahead := time.Duration(0)
	passesOfAnHour := func() {
		t.Helper()
		for range 30 {
			ahead += 2 * time.Minute
			b.API.SetTime(time.Now().Add(ahead))
			b.DB.Exec(t, `UPDATE refetch_requests SET due = now() WHERE due < 'infinity'`)
			if _, err := pass(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
	}
	const errorSQL = `SELECT (due = 'infinity') || '; ' || reason || '; ' || requested_by || '; ' || error
		FROM refetch_requests`
	suspended := func(when string, refetches, calls int) {
		t.Helper()
		passesOfAnHour()
		got := b.DB.QueryStrings(t, errorSQL)
		if len(got) != 1 || !strings.HasPrefix(got[0], "true; ambiguous; ; the API does not return the object's whole "+
			"state: not found; ") {
			t.Errorf("%s: %q", when, got)
		}
		if n := b.DB.QueryStrings(t, `SELECT count(*)::text FROM events WHERE event_type = 'postern.refetch'`); n[0] !=
			fmt.Sprint(refetches) || b.API.CallCount("/things/obj_1") != calls {
			t.Errorf("%s: %d calls made %s refetches", when, b.API.CallCount("/things/obj_1"), n[0])
		}
	}
	makeAmbiguous := func(id string) {
		t.Helper()
		at := time.Now().Add(ahead)
		e := sim.Event{Key: id, Object: "obj_1", OccurredAt: at.UnixMicro(), ReceivedAt: at,
			Body: fmt.Appendf(nil, `{"id":%q,"object_id":"obj_1","type":"thing.updated","unit":1,"partial":"a part",`+
				`"time":%d}`, id, at.UnixMicro())}
		b.API.History.Events = append(b.API.History.Events, e) // the API knows it
		b.Deliver(t, []sim.Event{e})
	}
	suspended("after a manual request", 1, 2)
	makeAmbiguous("one")
	suspended("ambiguous again", 2, 4) // the first was made for the manual request
	b.API.RespondTo(nil, "/things/*")
	makeAmbiguous("two")
	passesOfAnHour()
	if left := b.DB.QueryStrings(t, errorSQL); len(left) != 0 || b.API.CallCount("/things/obj_1") != 5 ||
		len(b.Differences(t)) != 0 {
		t.Errorf("with a complete response: %q, %d calls, %q", left, b.API.CallCount("/things/obj_1"), b.Differences(t))
	}
}

// A request that is suspended during a manual request stays due, with its requester.
func TestRefetch_manualRequestDuringSuspension_staysDue(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 131, reconciled.EventTimeOptions)
	b.Deliver(t, b.API.History.Events[:1])
	b.API.SetTime(time.Now())
	request := func(who string) { b.RequestRefetch(t, "unread", "obj_1", who, "is it there") }
	pass := reconciled.RefetchPasses(b,
		b.RunnerWith(func(s *providerapi.Source) { s.Reader = uncallable{onFetch: func() { request("bob") }} }))
	request("ada")
	if _, err := pass(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.WantRows(t, `SELECT (due <= now()) || ' ' || lease_owner || ' ' || requested_by FROM refetch_requests`,
		"true  bob")
}

// uncallable is a provider without any call.
type uncallable struct {
	sim.Provider
	onFetch func()
}

func (u uncallable) Fetch(*provider.Source, *provider.API, string, string, string) (provider.Call, bool) {
	u.onFetch()
	return provider.Call{}, false
}
