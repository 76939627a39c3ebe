package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// twoEvents is an API with two events, and the objects that they left, at a moment that stands. Its clock is behind.
type twoEvents struct{ now time.Time }

func (a twoEvents) Now() time.Time       { return a.now }
func (twoEvents) Longest() time.Duration { return 0 }
func (twoEvents) Skew() time.Duration    { return -2100 * time.Millisecond }

func (twoEvents) Download(context.Context, string, string, int64) (io.ReadCloser, error) {
	return nil, errors.New("it has no files")
}

func (a twoEvents) Do(_ context.Context, c provider.Call) (*reconcile.Response, error) {
	body := fmt.Appendf(nil, `{"object_id": "obj_1", "object": {"a": 2}, "time": %d, "unit": 1, "rank": 1}`, sim.Start+2)
	if c.Path == "/list" {
		body = []byte(`{"things": [{"id": "obj_1", "answer": {"unit": 1, "object": {"a": 2}}}, {"id": "obj_2", "answer": {"unit": 1, "object": {"a": 3}}}, {"id": "obj_9", "answer": {"unit": 1, "object": {"a": 9}}}]}`)
	}
	if c.Path == "/events" {
		body = []byte(`{"events": []}`)
		if c.Query.Get("since") <= fmt.Sprint(sim.Start) && c.Query.Get("until") > fmt.Sprint(sim.Start) {
			body = fmt.Appendf(nil, `{"events": [{"id": "evt_1", "type": "thing", "object_id": "obj_1", "object": {"a": 1}, "time": %d, "unit": 1, "rank": 1},
				{"id": "evt_2", "type": "thing", "object_id": "obj_2", "object": {"a": 1}, "time": %d, "unit": 1, "rank": 1}]}`, sim.Start, sim.Start)
		}
	}
	return &reconcile.Response{Verdict: sim.Provider{}.Answer(http.StatusOK, http.Header{}, body), Body: body, Date: a.now, Elapsed: time.Millisecond}, nil
}

// reconciles carries out reconciliations; of the source stripe where it has an API.
func (b *testBundle) reconciles(t *testing.T, withAPI bool) (stop func()) {
	t.Helper()
	pool, number := b.db.Role(t, "processor"), b.known.Number["stripe"]
	p, err := processor.New(processor.Options{Pool: pool, Settings: processor.DefaultSettings, ID: "test", Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Sources: map[string]processor.Source{"stripe": {Number: number, Config: &provider.Source{Name: "stripe"}, Provider: sim.Provider{}}}})
	noError(t, err)
	settings := reconcile.DefaultSettings
	settings.Again = 10 * time.Millisecond
	carried := &reconcile.Runner{Pool: pool, Log: b.db.Role(t, "gateway"), Processor: p, Settings: settings, Sources: &reconcile.Sources{}}
	if withAPI {
		carried.Sources.Replace(&reconcile.Source{Name: "stripe", Number: number, Config: &provider.Source{Name: "stripe"}, API: &provider.API{},
			Provider: sim.Provider{}, Reader: sim.Provider{}, Caller: twoEvents{time.UnixMicro(sim.Start).Add(time.Hour).UTC()}})
	}
	return applied.Carry(t, pool, "test", 1, map[string]runs.Carry{reconcile.Job: carried.Carry})
}

// A reconciliation is asked for and watched, and says in words what it has come to.
func TestReconcile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.run(t, "reconcile").want(t, 2, "", "postern reconcile takes SOURCE, got 0")
	b.run(t, "reconcile", "nobody").want(t, 2, "", "no source")
	b.run(t, "reconcile", "stripe", "--objects", "--type", "thing", "--object", "obj_1").want(t, 2, "", "give the one or the other")
	b.run(t, "reconcile", "stripe", "--object", "obj_1").want(t, 2, "", "name its type too")
	b.run(t, "reconcile", "stripe", "--since", "1h", "--until", "2h").want(t, 2, "", "is not before until")
	b.run(t, "reconcile", "stripe", "--no-wait", "--reason", "an outage", "--once-key", "k").want(t, 0, "an outage", "")
	b.run(t, "reconcile", "stripe", "--no-wait", "--once-key", "k").want(t, 0, "Run 1 was asked for with this key before", "")
	b.run(t, "drift", "show").want(t, 0, "Nothing is proven complete.", "")
	stop := b.reconciles(t, false)
	b.run(t, "reconcile", "stripe").want(t, 1, "failed", "the source has no section api in the configuration of the processor that took the run")
	b.run(t, "runs", "watch", "1").want(t, 1, "failed", "") // else the next process may carry it out
	stop()
	b.reconciles(t, true)
	dry := b.run(t, "reconcile", "stripe", "--dry-run")
	dry.want(t, 0, "The provider told of 2 events: the log had 0 and lacked 2. It was a dry run: nothing was appended, and nothing is proven by it.\n", "")
	dry.want(t, 0, "2 processed, 2 missing, clocks 3 s apart\n", "")
	dry.want(t, 0, "\nThe API's clock and the database's have differed by up to 3 seconds: see that the database's machine keeps the time (NTP).\n", "")
	b.run(t, "drift", "show").want(t, 0, "Nothing is proven complete.", "")
	until := time.UnixMicro(sim.Start).Add(time.Hour - reconcile.DefaultSettings.Settle).UTC().Truncate(time.Second).Format("2006-01-02T15:04:05.000000Z")
	since := time.UnixMicro(sim.Start).Add(time.Hour - reconcile.DefaultSettings.Kept).UTC().Truncate(time.Second).Format("2006-01-02T15:04:05.000000Z")
	done := b.run(t, "reconcile", "stripe")
	done.want(t, 0, "The provider told of 2 events: the log had 0 and lacked 2. The log is proven complete from "+since+" until "+until+".\n", "")
	done.want(t, 0, until+" of "+until, "")
	b.run(t, "drift", "show", "--source", "stripe").want(t, 0, until, "")
	b.run(t, "drift", "show", "--source", "shop").want(t, 0, "Nothing is proven complete.", "")
	b.run(t, "reconcile", "stripe", "--since", "2020-01-01").want(t, 0, "told of 2 events: the log had 2 and lacked 0.", "")
	look := []string{"reconcile", "stripe", "--type", "thing", "--object", "obj_1"}
	b.run(t, append(look, "--dry-run")...).want(t, 0, "The API has answered, and nothing was appended", "")
	found := b.run(t, look...)
	if found.want(t, 0, "The log lacked what the API answers now, and has it since.", ""); strings.Contains(found.out, "read up to") {
		t.Errorf("a look has no place in time:\n%s", found.out)
	}
	b.run(t, look...).want(t, 0, "The log had what the API answers now.", "")
	if r := b.run(t, append(look, "-o", "json")...); r.status != 0 || strings.Contains(r.out, "The log had") || !strings.Contains(r.out, `"present": 1`) {
		t.Errorf("%+v", r)
	}
	b.run(t, "runs", "list", "--job", "reconcile").want(t, 0, "an outage", "")
}

// What a run over objects has found is told by type, and field by field.
func TestDriftOnTheCommandLine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.reconciles(t, true)
	b.run(t, "reconcile", "stripe")
	b.run(t, "reconcile", "stripe", "--type", "thing", "--object", "obj_1")
	const heads = "TYPE   PHASE  CHANGED SINCE  CHECKED  EQUAL  MISSING  BEHIND  AHEAD  DIFFERENT  HIDDEN  GHOSTS  MENDED  LEFT\n"
	b.run(t, "reconcile", "stripe", "--objects", "--full", "--dry-run").want(t, 0, heads+"thing  done   -              3        1      1        1       0      0          0       0       0       0\n", "")
	b.run(t, "drift", "show").want(t, 0, "events", "")
	swept := b.run(t, "reconcile", "stripe", "--type", "thing")
	swept.want(t, 0, heads+"thing  done   -              3        1      1        1       0      0          0       0       2       0\n", "")
	swept.want(t, 0, "postern drift report 4.", "")
	swept.want(t, 0, "run 4 done: 3 objects", "")
	swept.want(t, 0, "have differed by up to 3 seconds", "")
	swept.want(t, 0, "3 processed, 1 equal, 1 missing, 1 behind, 2 mended", "")
	b.run(t, "drift", "show").want(t, 0, "type thing  1970-01-01T00:00:00.000000Z", "")
	report := b.run(t, "drift", "report", "4")
	report.want(t, 0, "\nthing obj_2 was behind, and is mended (event ", "")
	report.want(t, 0, "):\n  state.a: 1 here, 2 there\n", "")
	report.want(t, 0, "\nthing obj_9 was missing, and is mended (event ", "")
	if r := b.run(t, "drift", "report", "4", "--kind", "behind", "-o", "json"); r.status != 0 || !strings.Contains(r.out, `"behind": 1`) || !strings.Contains(r.out, `"path": "state.a"`) || strings.Contains(r.out, "obj_9") {
		t.Errorf("%+v", r)
	}
	b.run(t, "drift", "show", "--run", "4").want(t, 0, report.out, "")
	b.db.Exec(t, `UPDATE sweeps SET passed_over = '[{"part": "o/r", "why": "answered 404", "cut": false}, {"part": "o/s", "why": "answered 422", "cut": true}]' WHERE run = 4`)
	passed := b.run(t, "drift", "show", "--run", "4")
	passed.want(t, 0, "\nthing: o/r was passed over: answered 404 (let the key read it, or take it out of the source's section api)\n", "")
	passed.want(t, 0, "\nthing: o/s was not listed to its end: answered 422 (", "")
	b.run(t, "drift", "show", "--run", "4", "-o", "json").want(t, 0, `"passed_over": [`, "")
	b.db.Exec(t, `INSERT INTO sweeps (run, source, account, object_type, phase, began, updated_at) SELECT 4, number, '', t, 'rare', to_timestamp(0), now() FROM sources, unnest('{card,source}'::text[]) t WHERE name = 'stripe'`)
	b.run(t, "drift", "show", "--run", "4").want(t, 0, "\ncard, source: rare, and not read: the mirror has none, and the list costs much. Nothing is proven of them. To read one: postern reconcile stripe --type card\n", "")
	b.db.Exec(t, `INSERT INTO sweeps (run, source, account, object_type, phase, why, began, updated_at) SELECT 4, number, '', t, 'unlisted', 'answered 403', to_timestamp(0), now() FROM sources, unnest('{file,order}'::text[]) t WHERE name = 'stripe'`)
	table := b.run(t, "drift", "report", "4")
	if strings.Contains(table.out, "\nfile ") || strings.Contains(table.out, "\ncard ") {
		t.Errorf("what was not read has a line of the table:\n%s", table.out)
	}
	table.want(t, 0, "\nfile, order: unlisted, and so nothing is proven by this run: answered 403\n", "")
	b.run(t, "drift", "report", "4", "-o", "json").want(t, 0, `"why": "answered 403"`, "")
	b.db.Exec(t, `UPDATE sweeps SET phase = 'unlisted', why = 'answered 403' WHERE run = 4 AND object_type = 'thing'`)
	b.run(t, "drift", "show").want(t, 0, "unlisted in run 4: answered 403\n", "")
	b.run(t, "drift", "show", "-o", "json").want(t, 0, `"unlisted_by":4,"unlisted":"answered 403"`, "")
	b.run(t, "runs", "show", "4").want(t, 0, "asked for  objects of type thing, of stripe\n", "")
	b.run(t, "drift", "show", "--run", "1").want(t, 3, "", "no run over objects")
	b.run(t, "drift", "show", "--run", "4", "--source", "stripe").want(t, 2, "", "leave --source out")
	b.run(t, "drift", "report", "1").want(t, 3, "", "no run over objects")
	b.run(t, "reconcile", "stripe", "--full").want(t, 2, "", "name a type, or ask for objects")
}

// All accounts that are known are reconciled, each by a run of its own, which are watched; an account that is still at it is left out.
func TestAllAccountsOnTheCommandLine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	all := []string{"reconcile", "stripe", "--all-accounts", "--reason", "an outage"}
	b.run(t, append(all, "--account", "acct_1")...).want(t, 2, "", "give the one or the other")
	b.reconciles(t, true)
	alone := b.run(t, all...)
	alone.want(t, 0, "The provider told of 2 events: the log had 0 and lacked 2.", "")
	if strings.Contains(alone.out, "runs entered") {
		t.Errorf("one account needs no second run:\n%s", alone.out)
	}
	b.db.Exec(t, `INSERT INTO objects SELECT (jsonb_populate_record(o, '{"account": "acct_1", "object_id": "obj_5"}')).* FROM objects o WHERE object_id = 'obj_1'`)
	b.db.Exec(t, `INSERT INTO objects SELECT (jsonb_populate_record(o, '{"account": "acct_2", "object_id": "obj_6"}')).* FROM objects o WHERE object_id = 'obj_1'`)
	b.db.Exec(t, `INSERT INTO runs (job, asked, who, reason, status, detail, counts, made_at, updated_at)
		SELECT 'reconcile', jsonb_build_object('source', number, 'account', 'acct_2', 'what', 'events', 'of', 1, 'words', '{}'::jsonb), '', '', 'paused', '', '{}', now(), now() FROM sources WHERE name = 'stripe'`)
	r := b.run(t, all...)
	r.want(t, 0, "runs entered for 2 accounts, and none for 1 whose run of before is still open", "")
	if n := strings.Count(r.out, "The provider told of 2 events"); n != 2 {
		t.Errorf("told of %d runs:\n%s", n, r.out)
	}
	of := b.db.Rows(t, `SELECT (asked ->> 'account') || ' ' || reason FROM runs WHERE asked ->> 'of' = '3' AND status = 'done' ORDER BY run`)
	if want := []string{" an outage", "acct_1 an outage"}; !slices.Equal(of, want) {
		t.Errorf("runs of %q, want %q", of, want)
	}
	if r := b.run(t, append(all, "-o", "json")...); r.status != 0 || strings.Count(r.out, `"job": "reconcile"`) != 3 {
		t.Errorf("%+v", r)
	}
}

// A run whose account is disconnected says so in the place of what it has come to, and what is proven of the account has a note.
func TestADisconnectedAccountOnTheCommandLine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `INSERT INTO runs (job, asked, who, reason, status, detail, counts, made_at, updated_at, ended_at)
		SELECT 'reconcile', jsonb_build_object('source', number, 'account', 'acct_1', 'what', w, 'of', 7, 'words', '{"source": "stripe"}'::jsonb), '', '', 'done', '', '{"disconnected": 1}', now(), now(), now()
		FROM sources, unnest('{events,objects}'::text[]) w WHERE name = 'stripe'`)
	for run := range int64(2) {
		var out strings.Builder
		if err := tellReconciled(t.Context(), &out, b.db.Pool, run+1); err != nil || !strings.HasPrefix(out.String(), "\nThe account is disconnected: ") {
			t.Errorf("%q, %v", out.String(), err)
		}
	}
	b.run(t, "runs", "show", "1").want(t, 0, "0 processed, the account is disconnected\n", "")
	b.db.Exec(t, `INSERT INTO watermarks (source, account, what, since, until, run, at) SELECT number, a, 'events', now(), now(), 1, now() FROM sources, unnest('{"",acct_1}'::text[]) a WHERE name = 'stripe'`)
	b.db.Exec(t, `INSERT INTO disconnected (source, account, since, at, run, why) SELECT number, 'acct_1', '2026-01-02 03:04:05Z', now(), 1, 'answered 403' FROM sources WHERE name = 'stripe'`)
	shown := b.run(t, "drift", "show")
	shown.want(t, 0, "disconnected since 2026-01-02T03:04:05.000000Z: answered 403\n", "")
	if n := strings.Count(shown.out, "disconnected"); n != 1 {
		t.Errorf("%d accounts are disconnected:\n%s", n, shown.out)
	}
	b.run(t, "drift", "show", "-o", "json").want(t, 0, `"disconnected_since":"2026-01-02T03:04:05.000000Z","disconnected":"answered 403"`, "")
}

// What is left out or doubted is said.
func TestReconciledInWords(t *testing.T) {
	t.Parallel()
	counts := map[string]int64{reconcile.Seen: 1, reconcile.Conflicting: 1, reconcile.Refused: 3}
	want := "The provider told of 1 event: the log had 0 and lacked 0, and had 1 with other content (postern conflicts list). 3 more of accounts that the source does not take were left out."
	if got := reconciled(&reconcile.Order{What: reconcile.Events}, counts, time.Time{}, time.Time{}); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	lacked := map[string]int64{reconcile.Seen: 9, reconcile.Present: 4, reconcile.Missing: 5, reconcile.Undelivered: 3}
	want = "The provider told of 9 events: the log had 4 and lacked 5, and the provider itself says of 3 that they were not delivered."
	if got := reconciled(&reconcile.Order{What: reconcile.Events}, lacked, time.Time{}, time.Time{}); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := reconcileCounts(counts), "1 processed, 1 conflicting, 3 refused"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	counts = map[string]int64{reconcile.Seen: 1, reconcile.Absent: 1}
	want = "The mirror has never had such an object, and the API has none either: is the name right? Nothing was appended."
	if got := reconciled(&reconcile.Order{What: reconcile.Object}, counts, time.Time{}, time.Time{}); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got, want := reconcileCounts(counts), "1 processed, 1 absent"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// Who owes a look, and why none was made yet, is listed.
func TestHintsOnTheCommandLine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.run(t, "hints", "list").want(t, 0, "No refetch is pending.", "")
	_, err := b.db.Pool.Exec(t.Context(), `INSERT INTO hints (source, account, object_type, object_id, reason, made_at, due, after, attempts, error)
		VALUES ($1, 'acct_1', 'customer', 'cus_1', 'in doubt', now(), '2026-01-02T03:04:06Z', 1, 2, 'answered 500')`, b.known.Number["stripe"])
	noError(t, err)
	r := b.run(t, "hints", "list", "--source", "stripe")
	for _, text := range []string{"acct_1", "customer cus_1", "in doubt", "2026-01-02T03:04:06.000000Z", "answered 500"} {
		r.want(t, 0, text, "")
	}
	b.db.Exec(t, `UPDATE hints SET due = 'infinity'`)
	b.run(t, "hints", "list").want(t, 0, "parked", "")
	b.run(t, "hints", "list", "-o", "json").want(t, 0, `"due":null,"parked":true`, "")
	b.run(t, "hints", "list", "--source", "shop").want(t, 0, "No refetch is pending.", "")
	b.run(t, "hints", "list", "-o", "json").want(t, 0, `"attempts":2`, "")
}

// The list of refetches has each object that is flagged, also where no request can be made for it.
func TestHintsList_flaggedObjectWithoutRequest_saysWhy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.object(t, "stripe", "", 1) // flagged
	b.run(t, "objects", "list").want(t, 0, "refetch pending", "")
	for reads, want := range map[string]string{
		"NULL":       "no processor has said yet",
		"'{}'":       "the source has no section api",
		"'{object}'": "in doubt",
	} {
		b.db.Exec(t, `UPDATE sources SET api_reads = `+reads+` WHERE name = 'stripe'`)
		r := b.run(t, "hints", "list")
		r.want(t, 0, want, "")
		r.want(t, 0, "customer cus_1", "")
		if parked := strings.Contains(r.out, "parked"); parked != (reads == "'{}'") {
			t.Errorf("api_reads %s: parked %t:\n%s", reads, parked, r.out)
		}
	}
	b.db.Exec(t, `INSERT INTO hints (source, account, object_type, object_id, reason, made_at, due, after)
		SELECT source, account, object_type, object_id, 'in doubt', now(), now(), look_after FROM objects`)
	if r := b.run(t, "hints", "list", "-o", "json"); strings.Count(r.out, `"cus_1"`) != 1 {
		t.Errorf("%+v", r)
	}
}

// A person has an object looked at, and takes that back.
func TestHintsAreAddedAndDropped(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.run(t, "hints", "add", "stripe", "customer").want(t, 2, "", "takes SOURCE TYPE ID, got 2")
	b.run(t, "hints", "add", "nobody", "customer", "cus_1").want(t, 2, "", "no source")
	b.run(t, "hints", "add", "stripe", "customer", "cus_1").want(t, 2, "", "no processor reads the API of source stripe, so nobody would look: give the source a section api")
	b.run(t, "hints", "list").want(t, 0, "No refetch is pending.", "")
	b.db.Exec(t, `INSERT INTO budgets (source, account, tokens, refilled_at, blocked_until, throttles, in_flight) VALUES ($1, '', 1, now(), now(), 0, '{}')`, b.known.Number["stripe"])
	b.run(t, "hints", "add", "stripe", "customer", "cus_1", "--account", "acct_1", "--reason", "finance doubts it").want(t, 0, "customer cus_1 of source stripe will be looked at.\n", "")
	r := b.run(t, "hints", "list", "--source", "stripe")
	for _, text := range []string{"acct_1", "finance doubts it", operator().String()} {
		r.want(t, 0, text, "")
	}
	b.run(t, "hints", "drop", "stripe", "customer", "cus_1").want(t, 3, "", "not found")
	b.run(t, "hints", "drop", "stripe", "customer", "cus_1", "--account", "acct_1").want(t, 0, "customer cus_1 of source stripe is not looked at for this hint any more.\n", "")
	b.run(t, "hints", "list").want(t, 0, "No refetch is pending.", "")
}

// A person has what the API answers win, says why, and sees what it is then.
func TestObjectsSettle(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.reconciles(t, true)
	settle := []string{"objects", "settle", "stripe", "thing", "obj_1"}
	b.run(t, settle...).want(t, 2, "", "say why with --reason")
	b.run(t, append(settle, "--reason", " ")...).want(t, 2, "", "say why with --reason")
	b.run(t, append(settle, "--reason", "ticket 12")...).want(t, 2, "", "nobody can be asked here: give --yes")
	b.run(t, "objects", "settle", "stripe", "thing").want(t, 2, "", "takes SOURCE TYPE ID, got 2")
	settle = append(settle, "--reason", "ticket 12", "--yes", "--once-key", "k")
	r := b.run(t, settle...)
	for _, text := range []string{"1 missing", "thing obj_1", "does not count: a person had a look of then win", "applied: a person had this look settle the object", `"a": 2`} {
		r.want(t, 0, text, "")
	}
	b.run(t, settle...).want(t, 0, "Run 1 was asked for with this key before", "")
	b.run(t, "reconcile", "stripe", "--type", "thing", "--object", "obj_1", "--once-key", "k").want(t, 2, "", "which asked for something else")
	b.run(t, "runs", "show", "1").want(t, 0, "ticket 12", "")
}

// rebuilds carries out rebuilds of the source stripe, whose events the simulated provider reads.
func (b *testBundle) rebuilds(t *testing.T) {
	t.Helper()
	pool := b.db.Role(t, "processor")
	p, err := processor.New(processor.Options{Pool: pool, Settings: processor.DefaultSettings, ID: "test", Logger: slog.New(slog.DiscardHandler), Metrics: prometheus.NewRegistry(),
		Sources: map[string]processor.Source{"stripe": {Number: b.known.Number["stripe"], Config: &provider.Source{Name: "stripe"}, Provider: sim.Provider{}}}})
	noError(t, err)
	carried := &rebuild.Runner{Pool: pool, Processor: p, Settings: rebuild.DefaultSettings}
	applied.Carry(t, pool, "test", 1, map[string]runs.Carry{rebuild.Job: carried.Carry})
}

// A rebuild is asked for, compared, swapped, and thrown away.
func TestRebuild(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, body := range []string{`{"object_id": "obj_1", "object": {"a": 1}, "time": 1700000000000000, "unit": 1, "rank": 1}`,
		`{"object_id": "obj_2", "object": {"a": {"b": 1}}, "time": 1700000000000000, "unit": 1, "rank": 1}`} {
		b.append(t, "stripe", body, body)
	}
	b.run(t, "rebuild").want(t, 2, "", "name the source to rebuild")
	b.run(t, "rebuild", "--source", "nobody").want(t, 2, "", "no source")
	b.run(t, "rebuild", "--source", "stripe", "--compare", "--yes").want(t, 2, "", "give --compare or --yes")
	b.run(t, "rebuild", "--source", "stripe", "--check").want(t, 2, "", "give --compare too")
	b.run(t, "rebuild", "--source", "stripe", "--no-wait", "--reason", "a test").want(t, 0, "waiting", "")
	b.run(t, "rebuild", "--source", "stripe", "--no-wait").want(t, 2, "", "run 1 is an open rebuild of this source")
	b.run(t, "rebuild", "compare", "1", "--check").want(t, 1, "not at rest", "nothing is proved: the rebuild is not at rest (waiting)")
	b.run(t, "rebuild", "discard", "1").want(t, 2, "", "nobody can be asked here: give --yes\n")
	b.run(t, "rebuild", "swap", "1").want(t, 2, "", "nobody can be asked here: give --yes\n")
	b.run(t, "runs", "show", "1").want(t, 0, "waiting", "")
	b.run(t, "rebuild", "discard", "1", "--yes").want(t, 0, "cancelled", "")
	b.run(t, "rebuild", "compare", "1").want(t, 2, "", "rebuild 1 is cancelled")
	b.run(t, "rebuild", "swap", "7").want(t, 3, "", "run 7: not found")
	b.rebuilds(t)
	// The refused one took the number 2.
	b.run(t, "rebuild", "--source", "stripe").want(t, 0, "your decision: postern rebuild compare 3 shows what differs; then postern rebuild swap 3", "")
	b.run(t, "runs", "list").want(t, 0, "waits for your decision: postern rebuild compare 3", "")
	b.run(t, "objects", "list", "--source", "stripe").want(t, 0, "No objects.", "the objects of source stripe are as before rebuild 3, which waits for your decision")
	b.run(t, "objects", "list", "--source", "shop").want(t, 0, "No objects.", "")
	b.run(t, "rebuild", "compare", "3", "--check").want(t, 1, "only staged", "2 objects not the same")
	b.run(t, "rebuild", "swap", "3", "--yes").want(t, 0, "2 objects swapped, 2 objects grown, 0 objects emptied", "")
	b.run(t, "objects", "list").want(t, 0, "obj_2", "")
	b.run(t, "objects", "list", "--outdated").want(t, 0, "No objects.", "")
	b.db.Exec(t, `UPDATE objects SET state = '{"a": {"b": 2}}', rule_version = 0 WHERE object_id = 'obj_2'`)
	b.run(t, "objects", "list", "--outdated").want(t, 0, "obj_2", "")
	compare := b.run(t, "rebuild", "--source", "stripe", "--compare")
	compare.want(t, 0, "a.b", "")
	compare.want(t, 0, "then postern rebuild swap 4", "")
	found := b.run(t, "rebuild", "compare", "4", "-o", "json", "--check")
	var compared struct {
		Counts map[string]int
		Items  []rebuild.Difference
	}
	if err := json.Unmarshal([]byte(found.out), &compared); err != nil || found.status != 1 || compared.Counts["same"] != 1 || len(compared.Items) != 1 || compared.Items[0].Paths[0] != "a.b" {
		t.Errorf("%v in status %d, %s", err, found.status, found.out)
	}
	b.run(t, "rebuild", "swap", "4", "-y").want(t, 0, "1 objects swapped, 1 objects grown", "")
	b.run(t, "rebuild", "--source", "stripe", "--compare", "--check", "-o", "json").want(t, 0, `{"items": []`, "")
	b.db.Exec(t, `UPDATE objects SET state = '{"a": 3}', last_event_id = 9000000000000000000 WHERE object_id = 'obj_1'`)
	b.run(t, "rebuild", "compare", "5", "--check").want(t, 1, "ahead of the rebuild", "1 object ahead of the rebuild, and not proved: let it catch up (postern runs resume 5)")
	b.run(t, "rebuild", "discard", "5", "-y").want(t, 0, "cancelled", "")
	b.run(t, "rebuild", "--source", "stripe", "--yes", "-o", "json").want(t, 0, `"processed": 2,`, "")
	b.run(t, "runs", "list", "--job", "rebuild", "--status", "done").want(t, 0, "rebuild", "")
}

// What is expected of a rebuild of one type are the events of that type, as those are what it counts.
func TestRebuildOfOneTypeExpectsItsEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", `{"object_id": "obj_1"}`, `{"object_id": "obj_2"}`)
	b.run(t, "rebuild", "--source", "stripe", "--type", "nothing", "--no-wait", "-o", "json").want(t, 0, `"expected": 0,`, "")
	b.run(t, "rebuild", "discard", "1", "--yes").want(t, 0, "cancelled", "")
	b.run(t, "rebuild", "--source", "stripe", "--no-wait", "-o", "json").want(t, 0, `"expected": 1,`, "")
}

// The line of whoever watches says what the rebuild does.
func TestWatcherTellsTheStage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		run  runs.Run
		want string
	}{
		{runs.Run{Status: runs.Waiting}, ""}, {runs.Run{Status: runs.Running}, "clearing what another left"}, {runs.Run{Status: runs.Running, Cursor: 5}, "copying bases"},
		{runs.Run{Status: runs.Running, Cursor: 5, Bound: 9}, "staging"}, {runs.Run{Status: runs.Running, Cursor: 9, Bound: 9}, "caught up"},
		{runs.Run{Status: runs.Paused, Cursor: 9, Bound: 9}, "staged"}, {runs.Run{Status: runs.Done, Cursor: 9, Bound: 9}, ""},
	} {
		c.run.Job = rebuild.Job
		if got := rebuild.Stage(&c.run); got != c.want {
			t.Errorf("%+v is %q, want %q", c.run, got, c.want)
		}
	}
}
