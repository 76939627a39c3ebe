package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// twoEvents is an API with two events and their objects, at a fixed time. Its clock is behind.
type twoEvents struct{ now time.Time }

func (a twoEvents) Now() time.Time          { return a.now }
func (twoEvents) MaxLatency() time.Duration { return 0 }
func (twoEvents) Skew() time.Duration       { return -2100 * time.Millisecond }

func (twoEvents) Download(context.Context, string, string, int64) (io.ReadCloser, error) {
	return nil, errors.New("it has no files")
}

func (a twoEvents) Do(_ context.Context, c provider.Call) (*providerapi.Response, error) {
	body := fmt.Appendf(nil, `{"object_id": "obj_1", "object": {"a": 2}, "time": %d, "unit": 1, "rank": 1}`, sim.Start+
		2)
	if c.Path == "/list" {
		body = []byte(`{"things": [{"id": "obj_1", "answer": {"unit": 1, "object": {"a": 2}}}, ` +
			`{"id": "obj_2", "answer": {"unit": 1, "object": {"a": 3}}}, ` +
			`{"id": "obj_9", "answer": {"unit": 1, "object": {"a": 9}}}]}`)
	}
	if c.Path == "/events" {
		body = []byte(`{"events": []}`)
		if c.Query.Get("since") <= fmt.Sprint(sim.Start) && c.Query.Get("until") > fmt.Sprint(sim.Start) {
			body = fmt.Appendf(nil, `{"events": [{"id": "evt_1", "type": "thing", "object_id": "obj_1", `+
				`"object": {"a": 1}, "time": %d, "unit": 1, "rank": 1},
				{"id": "evt_2", "type": "thing", "object_id": "obj_2", `+
				`"object": {"a": 1}, "time": %d, "unit": 1, "rank": 1}]}`, sim.Start, sim.Start)
		}
	}
	return &providerapi.Response{Verdict: sim.Provider{}.Answer(http.StatusOK, http.Header{}, body), Body: body,
		Date: a.now, Elapsed: time.Millisecond}, nil
}

// reconciles executes reconciliations of the source stripe, if it has an API.
func (b *testBundle) reconciles(t *testing.T, withAPI bool) (stop func()) {
	t.Helper()
	p := b.applier(t, sim.Provider{})
	settings := reconcile.DefaultSettings
	settings.RetryDelay = 10 * time.Millisecond
	carried := &reconcile.Runner{Resources: &refetch.Resources{Pool: p.Pool, Log: b.db.Role(t, "gateway"), Applier: p,
		Sources: &providerapi.Sources{}, Limits: refetch.DefaultLimits}, Settings: settings}
	if withAPI {
		carried.Sources.Replace(&providerapi.Source{Name: "stripe", Number: b.known.Number["stripe"],
			Config: &provider.Source{Name: "stripe"}, API: &provider.API{},
			Provider: sim.Provider{}, Reader: sim.Provider{},
			Caller: twoEvents{time.UnixMicro(sim.Start).Add(time.Hour).UTC()}})
	}
	return applied.StartRunner(t, p.Pool, "test", 1, map[string]runs.Executor{reconcile.Job: carried.Execute})
}

// The command creates a reconciliation, watches it and prints its result.
func TestReconcile_runAndDryRun_printResult(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want(t, "reconcile", 2, "", "postern reconcile takes SOURCE, got 0")
	b.want(t, "reconcile stripe --objects --type thing --object obj_1", 2, "", "give one of them")
	b.want(t, "reconcile stripe --no-wait --reason 'an outage' --idempotency-key k", 0, "an outage", "")
	b.want(t, "reconcile stripe --no-wait --idempotency-key k", 0, "Run 1 was created with this key before", "")
	b.want(t, "drift show", 0, "Nothing is reconciled yet, so it is not known.", "")
	stop := b.reconciles(t, false)
	b.want(t, "reconcile stripe", 1, "failed",
		"the configuration of the processor that executes the run has no section api for the source")
	b.run(t, "runs", "watch", "1").want(t, 1, "failed", "") // otherwise the next process may execute it
	stop()
	b.reconciles(t, true)
	dry := b.run(t, "reconcile", "stripe", "--dry-run")
	dry.want(t, 0, "The provider has 2 events: 0 were in the log and 2 were missing. It was a dry run: nothing was "+
		"appended, and the log does not count as complete.\n", "")
	dry.want(t, 0, "2 processed, 2 missing, clocks differ by 3 s\n", "")
	dry.want(t, 0, "\nThe clocks of the API and the database differed by up to 3 seconds: check that the database's "+
		"machine synchronizes its clock (NTP).\n", "")
	b.want(t, "drift show", 0, "Nothing is reconciled yet, so it is not known.", "")
	until := time.UnixMicro(sim.Start).Add(time.Hour - refetch.DefaultLimits.ListDelay).UTC().Truncate(
		time.Second).Format("2006-01-02T15:04:05.000000Z")
	since := time.UnixMicro(sim.Start).Add(time.Hour - refetch.DefaultLimits.EventRetention).UTC().Truncate(
		time.Second).Format("2006-01-02T15:04:05.000000Z")
	done := b.run(t, "reconcile", "stripe")
	done.want(t, 0, "The provider has 2 events: 0 were in the log and 2 were missing. The log is complete from "+since+
		" until "+until+".\n", "")
	done.want(t, 0, until+" of "+until, "")
	b.want(t, "drift show --source stripe", 0, until, "")
	b.want(t, "drift show --source shop", 0, "Nothing is reconciled yet, so it is not known.", "")
	b.want(t, "reconcile stripe --since 2020-01-01", 0, "has 2 events: 2 were in the log and 0 were missing.", "")
	command := []string{"reconcile", "stripe", "--type", "thing", "--object", "obj_1"}
	b.run(t, append(command, "--dry-run")...).want(t, 0, "The API has the object. It was a dry run", "")
	found := b.run(t, command...)
	if found.want(t, 0, "The API's current state was missing in the log and is appended.",
		""); strings.Contains(found.out,
		"read up to") {
		t.Errorf("a refetch shows a period:\n%s", found.out)
	}
	b.run(t, command...).want(t, 0, "The log already has the API's current state.", "")
	if r := b.run(t, append(command, "-o", "json")...); r.status != 0 ||
		strings.Contains(r.out, "The log already has") || !strings.Contains(r.out, `"present": 1`) {
		t.Errorf("%+v", r)
	}
	b.want(t, "runs list --job reconcile", 0, "an outage", "")
}

// The findings of an object scan are printed by type and by field.
func TestDrift_showAndReport(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.reconciles(t, true)
	b.run(t, "reconcile", "stripe")
	b.run(t, "reconcile", "stripe", "--type", "thing", "--object", "obj_1")
	const heads = "TYPE   PHASE  CHANGED SINCE  CHECKED  EQUAL  MISSING  MIRROR OLDER  MIRROR NEWER  " +
		"CONTENT DIFFERS  NOT LISTED  ORPHANS  REPAIRED  UNREPAIRED\n"
	b.run(t, "reconcile", "stripe", "--objects", "--full", "--dry-run").want(t, 0, heads+"thing  done   -            "+
		"  3        1      1        1             0             0                0           0        0         0\n",
		"")
	b.want(t, "drift show", 0, "events", "")
	scanned := b.run(t, "reconcile", "stripe", "--type", "thing")
	scanned.contains(t, heads+"thing  done   -              3        1      1        1             0             0"+
		"                0           0        2         0\n", "postern drift report 4.", "run 4 done: 3 objects",
		"differed by up to 3 seconds", "3 processed, 1 equal, 1 missing, 1 mirror older, 2 repaired")
	b.want(t, "drift show", 0, "type thing  1970-01-01T00:00:00.000000Z", "")
	report := b.want(t, "drift report 4", 0, "\nthing obj_2: mirror_older, now repaired (event ", "")
	report.want(t, 0, "):\n  state.a: 1 in the mirror, 2 at the provider\n", "")
	report.want(t, 0, "\nthing obj_9: missing, now repaired (event ", "")
	if r := b.run(t, "drift", "report", "4", "--kind", "mirror_older", "-o", "json"); r.status != 0 ||
		!strings.Contains(r.out, `"mirror_older": 1`) || !strings.Contains(r.out, `"path": "state.a"`) ||
		strings.Contains(r.out, "obj_9") {
		t.Errorf("%+v", r)
	}
	b.want(t, "drift show --run 4", 0, report.out, "")
	b.db.Exec(t, `UPDATE object_scans SET skipped_parts =
		'[{"part": "o/r", "reason": "answered 404", "truncated": false}, `+
		`{"part": "o/s", "reason": "answered 422", "truncated": true}]'
			WHERE run = 4`)
	passed := b.run(t, "drift", "show", "--run", "4")
	passed.contains(t, "\nthing: o/r was skipped: answered 404 (let the key read it, or remove it from the "+
		"source's section api)\n", "\nthing: o/s was not listed to its end: answered 422 (")
	b.want(t, "drift show --run 4 -o json", 0, `"skipped_parts": [`, "")
	b.db.Exec(t, `INSERT INTO object_scans (run, source, account, object_type, phase, started_at, updated_at)
		SELECT 4, number, '',
		t, 'skipped', to_timestamp(0), now() FROM sources, unnest('{card,source}'::text[]) t WHERE name = 'stripe'`)
	b.run(t, "drift", "show", "--run", "4").want(t, 0, "\ncard, source: skipped, because the mirror has no such "+
		"object and the list is expensive. They are not verified. To read "+
		"one: postern reconcile stripe --type card\n", "")
	b.db.Exec(t, `INSERT INTO object_scans (run, source, account, object_type, phase, reason, started_at, updated_at)
		SELECT 4, number, '', t, 'not_listable', 'answered 403', to_timestamp(0), now()
			FROM sources, unnest('{file,order}'::text[]) t WHERE name = 'stripe'`)
	table := b.run(t, "drift", "report", "4")
	if strings.Contains(table.out, "\nfile ") || strings.Contains(table.out, "\ncard ") {
		t.Errorf("a skipped type has a line in the table:\n%s", table.out)
	}
	table.want(t, 0, "\nfile, order: not listable, so this run does not verify that they are complete: answered 403\n",
		"")
	b.want(t, "drift report 4 -o json", 0, `"reason": "answered 403"`, "")
	b.db.Exec(t, `UPDATE object_scans SET phase = 'not_listable', reason = 'answered 403' WHERE run = 4
		AND object_type = 'thing'`)
	b.want(t, "drift show", 0, "not listable in run 4: answered 403\n", "")
	b.want(t, "drift show -o json", 0, `"not_listable_since_run":4,"not_listable":"answered 403"`, "")
	b.want(t, "runs show 4", 0, "parameters  objects of type thing, source stripe\n", "")
	b.want(t, "drift show --run 1", 3, "", "run 1 is not an object scan that has started")
	b.want(t, "drift show --run 4 --source stripe", 2, "", "omit --source")
	b.want(t, "drift report 1", 3, "", "run 1 is not an object scan that has started")
	b.want(t, "reconcile stripe --full", 2, "", "name a type, or set objects")
}

// All known accounts are reconciled, each by its own run, which the command watches. An account
// with an open run is skipped.
func TestReconcile_allAccounts_watchesEachRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	all := []string{"reconcile", "stripe", "--all-accounts", "--reason", "an outage"}
	b.run(t, append(all, "--account", "acct_1")...).want(t, 2, "", "give one of them")
	b.reconciles(t, true)
	alone := b.run(t, all...)
	alone.want(t, 0, "The provider has 2 events: 0 were in the log and 2 were missing.", "")
	if strings.Contains(alone.out, "runs created") {
		t.Errorf("one account needs no second run:\n%s", alone.out)
	}
	b.db.Exec(t, `INSERT INTO objects SELECT (jsonb_populate_record(o, '{"account": "acct_1", "object_id": "obj_5"}')).*
		FROM objects o WHERE object_id = 'obj_1'`)
	b.db.Exec(t, `INSERT INTO objects SELECT (jsonb_populate_record(o, '{"account": "acct_2", "object_id": "obj_6"}')).*
		FROM objects o WHERE object_id = 'obj_1'`)
	b.db.Exec(t, `INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at, updated_at)
		SELECT 'reconcile', jsonb_build_object('source', number, 'account', 'acct_2', 'scope', 'events', 'parent_run',
			1,
			'input', '{}'::jsonb), '', '', 'paused', '', '{}', now(), now() FROM sources WHERE name = 'stripe'`)
	r := b.run(t, all...)
	r.want(t, 0, "runs created for 2 accounts, and none for 1 whose previous run is still open", "")
	if n := strings.Count(r.out, "The provider has 2 events"); n != 2 {
		t.Errorf("results of %d runs:\n%s", n, r.out)
	}
	of := b.db.QueryStrings(t, `SELECT (params ->> 'account') || ' ' || reason FROM runs
		WHERE params ->> 'parent_run' = '3'
		AND status = 'done' ORDER BY run`)
	if want := []string{" an outage", "acct_1 an outage"}; !slices.Equal(of, want) {
		t.Errorf("runs of %q, want %q", of, want)
	}
	if r := b.run(t, append(all, "-o", "json")...); r.status != 0 || strings.Count(r.out, `"job": "reconcile"`) != 3 {
		t.Errorf("%+v", r)
	}
}

// A run whose account is disconnected says so, and the account's watermark has a note.
func TestReconcile_disconnectedAccount_isSkipped(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at, updated_at,
		ended_at)
		SELECT 'reconcile', jsonb_build_object('source', number, 'account', 'acct_1', 'scope', w, 'parent_run', 7,
			'input',
			'{"source": "stripe"}'::jsonb), '', '', 'done', '', '{"disconnected": 1}', now(), now(), now()
		FROM sources, unnest('{events,objects}'::text[]) w WHERE name = 'stripe'`)
	for run := range int64(2) {
		var out strings.Builder
		x := &call{cli: &cli{}, ctx: t.Context(), out: &out, pool: b.db.Pool}
		if err := printReconciled(x, run+1); err != nil ||
			!strings.HasPrefix(out.String(), "\nThe account is disconnected: ") {
			t.Errorf("%q, %v", out.String(), err)
		}
	}
	b.want(t, "runs show 1", 0, "0 processed, the account is disconnected\n", "")
	b.db.Exec(t, `INSERT INTO watermarks (source, account, subject, since, until, run, recorded_at) SELECT number, a,
		'events',
		now(), now(), 1, now() FROM sources, unnest('{"",acct_1}'::text[]) a WHERE name = 'stripe'`)
	b.db.Exec(t, `INSERT INTO disconnected_accounts (source, account, since, observed_at, run, reason)
		SELECT number, 'acct_1',
		'2026-01-02 03:04:05Z', now(), 1, 'answered 403' FROM sources WHERE name = 'stripe'`)
	shown := b.want(t, "drift show", 0, "disconnected since 2026-01-02T03:04:05.000000Z: answered 403\n", "")
	if n := strings.Count(shown.out, "disconnected"); n != 1 {
		t.Errorf("%d accounts are disconnected:\n%s", n, shown.out)
	}
	b.want(t, "drift show -o json", 0,
		`"disconnected_since":"2026-01-02T03:04:05.000000Z","disconnected":"answered 403"`, "")
}

// Skipped and conflicting events are described.
func TestDescribeReconciled_counts(t *testing.T) {
	t.Parallel()
	counts := map[string]int64{reconcile.Processed: 1, reconcile.Conflicting: 1, reconcile.Rejected: 3}
	want := "The provider has 1 event: 0 were in the log and 0 were missing, and 1 have other content in the log " +
		"(postern conflicts list). 3 more are of accounts that the source does not accept and were skipped."
	if got := describeReconciled(&reconcile.Params{Scope: reconcile.Events}, counts, time.Time{},
		time.Time{}); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	lacked := map[string]int64{reconcile.Processed: 9, reconcile.Present: 4, reconcile.Missing: 5,
		reconcile.Undelivered: 3}
	want = "The provider has 9 events: 4 were in the log and 5 were missing, and the " +
		"provider reports 3 of them as not delivered."
	if got := describeReconciled(&reconcile.Params{Scope: reconcile.Events}, lacked, time.Time{},
		time.Time{}); got != want {
		t.Errorf("%s, want %s", got, want)
	}
	if got, want := describeReconcileCounts(counts), "1 processed, 1 conflicting, 3 rejected"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
	counts = map[string]int64{reconcile.Processed: 1, reconcile.Absent: 1}
	want = "Neither the mirror nor the API has such an object: is the id correct? Nothing was appended."
	if got := describeReconciled(&reconcile.Params{Scope: reconcile.Object}, counts, time.Time{},
		time.Time{}); got != want {
		t.Errorf("%s\nwant %s", got, want)
	}
	if got, want := describeReconcileCounts(counts), "1 processed, 1 absent"; got != want {
		t.Errorf("%s, want %s", got, want)
	}
}

// The list shows pending refetches and the errors of their attempts.
func TestRefetchesList_pendingRefetch_showsReasonAndError(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want(t, "refetches list", 0, "No refetch is pending.", "")
	_, err := b.db.Pool.Exec(t.Context(), `INSERT INTO refetch_requests (source, account, object_type, object_id,
		reason, requested_at,
		due, start_after, attempts, error)
		VALUES ($1, 'acct_1', 'customer', 'cus_1', 'ambiguous', now(), '2026-01-02T03:04:06Z', 1, 2, 'answered 500')`,
		b.known.Number["stripe"])
	testkit.Must(t, err)
	r := b.run(t, "refetches", "list", "--source", "stripe")
	r.contains(t, "acct_1", "customer cus_1", "ambiguous", "2026-01-02T03:04:06.000000Z",
		"answered 500")
	b.db.Exec(t, `UPDATE refetch_requests SET due = 'infinity'`)
	b.want(t, "refetches list", 0, "suspended", "")
	b.want(t, "refetches list -o json", 0, `"due":null,"suspended":true`, "")
	b.want(t, "refetches list --source shop", 0, "No refetch is pending.", "")
	b.want(t, "refetches list -o json", 0, `"attempts":2`, "")
}

// The list of refetches has each flagged object, also if no request can be created for it.
func TestRefetchesList_flaggedObjectWithoutRequest_saysWhy(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.insertObject(t, "stripe", "", 1) // flagged
	b.want(t, "objects list", 0, "refetch pending", "")
	for reads, want := range map[string]string{
		"NULL":       "no processor has reported yet",
		"'{}'":       "the source has no section api",
		"'{object}'": "ambiguous",
	} {
		b.db.Exec(t, `UPDATE sources SET api_reads = `+reads+` WHERE name = 'stripe'`)
		r := b.want(t, "refetches list", 0, want, "")
		r.want(t, 0, "customer cus_1", "")
		if suspended := strings.Contains(r.out, "suspended"); suspended != (reads == "'{}'") {
			t.Errorf("api_reads %s: suspended %t:\n%s", reads, suspended, r.out)
		}
	}
	b.db.Exec(t, `INSERT INTO refetch_requests (source, account, object_type, object_id, reason, requested_at, due,
		start_after)
		SELECT source, account, object_type, object_id, 'ambiguous', now(), now(), refetch_after FROM objects`)
	if r := b.run(t, "refetches", "list", "-o", "json"); strings.Count(r.out, `"cus_1"`) != 1 {
		t.Errorf("%+v", r)
	}
}

// An operator requests the refetch of an object and cancels it.
func TestRefetches_addAndCancel(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.want(t, "refetches add stripe customer", 2, "", "takes SOURCE TYPE ID, got 2")
	b.want(t, "refetches add nobody customer cus_1", 2, "", "is not known; the known sources are")
	b.want(t, "refetches add stripe customer cus_1", 2, "",
		"no processor reads the API of source stripe, so it cannot refetch the object: give the source a section api")
	b.want(t, "refetches list", 0, "No refetch is pending.", "")
	b.db.Exec(t, `INSERT INTO rate_budgets (source, account, tokens, refilled_at, blocked_until, throttles, in_flight)
		VALUES ($1, '', 1, now(), now(), 0, '{}')`, b.known.Number["stripe"])
	b.want(t, "refetches add stripe customer cus_1 --account acct_1 --reason 'finance reports a wrong address'", 0,
		"customer cus_1 of source stripe will be refetched.\n", "")
	r := b.run(t, "refetches", "list", "--source", "stripe")
	r.contains(t, "acct_1", "finance reports a wrong address", operator().String())
	b.want(t, "refetches cancel stripe customer cus_1", 3, "", "not found")
	b.want(t, "refetches cancel stripe customer cus_1 --account acct_1", 0,
		"customer cus_1 of source stripe is not refetched for this request.\n", "")
	b.want(t, "refetches list", 0, "No refetch is pending.", "")
}

// An operator overwrites an object from the provider with a reason, and sees the result.
func TestObjectsOverwrite_replacesObjectAndKeepsReason(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.reconciles(t, true)
	overwrite := []string{"objects", "overwrite", "stripe", "thing", "obj_1"}
	b.run(t, overwrite...).want(t, 2, "", "give a reason with --reason")
	b.run(t, append(overwrite, "--reason", " ")...).want(t, 2, "", "give a reason with --reason")
	b.run(t, append(overwrite, "--reason", "ticket 12")...).want(t, 2, "",
		"no terminal to ask for confirmation: add --yes")
	b.want(t, "objects overwrite stripe thing", 2, "", "takes SOURCE TYPE ID, got 2")
	overwrite = append(overwrite, "--reason", "ticket 12", "--yes", "--idempotency-key", "k")
	r := b.run(t, overwrite...)
	r.contains(t, "1 missing", "thing obj_1",
		"is ignored: an operator overwrote the object from the provider",
		"applied: an operator overwrote the object with this refetch", `"a": 2`)
	b.run(t, overwrite...).want(t, 0, "Run 1 was created with this key before", "")
	b.want(t, "reconcile stripe --type thing --object obj_1 --idempotency-key k", 2, "", "which has other parameters")
	b.want(t, "runs show 1", 0, "ticket 12", "")
}

// rebuilds executes rebuilds of the source stripe with the simulated provider.
func (b *testBundle) rebuilds(t *testing.T) {
	t.Helper()
	p := b.applier(t, sim.Provider{})
	carried := &rebuild.Runner{Pool: p.Pool, Applier: p, Settings: rebuild.DefaultSettings}
	applied.StartRunner(t, p.Pool, "test", 1, map[string]runs.Executor{rebuild.Job: carried.Execute})
}

// A rebuild is created, compared, swapped and discarded.
func TestRebuild_compareSwapDiscard(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for _, body := range []string{
		`{"object_id": "obj_1", "object": {"a": 1}, "time": 1700000000000000, "unit": 1, "rank": 1}`,
		`{"object_id": "obj_2", "object": {"a": {"b": 1}}, "time": 1700000000000000, "unit": 1, "rank": 1}`} {
		b.append(t, "stripe", body, body)
	}
	b.want(t, "rebuild", 2, "", "name the source to rebuild")
	b.want(t, "rebuild --source nobody", 2, "", "is not known; the known sources are")
	b.want(t, "rebuild --source stripe --compare --yes", 2, "", "give --compare or --yes")
	b.want(t, "rebuild --source stripe --check", 2, "", "give --compare too")
	b.want(t, "rebuild --source stripe --no-wait --reason 'a test'", 0, "queued", "")
	b.want(t, "rebuild --source stripe --no-wait", 2, "", "run 1 is an open rebuild of this source")
	b.want(t, "rebuild compare 1 --check", 1, "not staged",
		"the comparison is incomplete: the rebuild is not staged (queued)")
	b.want(t, "rebuild discard 1", 2, "", "no terminal to ask for confirmation: add --yes\n")
	b.want(t, "rebuild swap 1", 2, "", "no terminal to ask for confirmation: add --yes\n")
	b.want(t, "runs show 1", 0, "queued", "")
	b.want(t, "rebuild discard 1 --yes", 0, "cancelled", "")
	b.want(t, "rebuild compare 1", 2, "", "rebuild 1 is cancelled")
	b.want(t, "rebuild swap 7", 3, "", "run 7: not found")
	b.rebuilds(t)
	// The rejected request used the number 2.
	b.want(t, "rebuild --source stripe", 0,
		"awaiting decision  postern rebuild compare 3 shows the differences; then postern rebuild swap 3", "")
	b.want(t, "runs list", 0, "awaiting decision: postern rebuild compare 3", "")
	b.run(t, "objects", "list", "--source", "stripe").want(t, 0, "No objects.",
		"the objects of source stripe are those from before rebuild 3, which is awaiting decision: postern rebuild "+
			"compare 3")
	b.want(t, "objects list --source shop", 0, "No objects.", "")
	b.want(t, "rebuild compare 3 --check", 1, "new in the rebuild", "2 objects not equal")
	b.want(t, "rebuild swap 3 --yes", 0, "2 objects replaced, 2 got a higher revision, 0 removed from the mirror", "")
	b.want(t, "objects list", 0, "obj_2", "")
	b.want(t, "objects list --outdated", 0, "No objects.", "")
	b.db.Exec(t, `UPDATE objects SET state = '{"a": {"b": 2}}', rule_version = 0 WHERE object_id = 'obj_2'`)
	b.want(t, "objects list --outdated", 0, "obj_2", "")
	comparison := b.want(t, "rebuild --source stripe --compare", 0, "a.b", "")
	comparison.want(t, 0, "then postern rebuild swap 4", "")
	found := b.run(t, "rebuild", "compare", "4", "-o", "json", "--check")
	var compared struct {
		Counts map[string]int
		Items  []rebuild.Difference
	}
	if err := json.Unmarshal([]byte(found.out), &compared); err != nil || found.status != 1 ||
		compared.Counts["same"] != 1 || len(compared.Items) != 1 || compared.Items[0].Paths[0] != "a.b" {
		t.Errorf("%v in status %d, %s", err, found.status, found.out)
	}
	b.want(t, "rebuild swap 4 -y", 0, "1 object replaced, 1 got a higher revision", "")
	b.want(t, "rebuild --source stripe --compare --check -o json", 0, `{"items": []`, "")
	b.db.Exec(t, `UPDATE objects SET state = '{"a": 3}', last_event_id = 9000000000000000000 WHERE object_id = 'obj_1'`)
	b.want(t, "rebuild compare 5 --check", 1, "changed since the rebuild read the log",
		"1 object changed since the rebuild read the log: let it catch up (postern runs resume 5)")
	b.want(t, "rebuild discard 5 -y", 0, "cancelled", "")
	b.want(t, "rebuild --source stripe --yes -o json", 0, `"processed": 2,`, "")
	b.want(t, "runs list --job rebuild --status done", 0, "rebuild", "")
}

// The estimate for a rebuild of one type counts only events of that type, because the run counts
// those.
func TestRebuild_oneType_expectsItsEvents(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", `{"object_id": "obj_1"}`, `{"object_id": "obj_2"}`)
	b.want(t, "rebuild --source stripe --type nothing --no-wait -o json", 0, `"expected": 0,`, "")
	b.want(t, "rebuild discard 1 --yes", 0, "cancelled", "")
	b.want(t, "rebuild --source stripe --no-wait -o json", 0, `"expected": 1,`, "")
}

// The progress line shows the stage of a rebuild.
func TestRunWatcher_rebuild_printsStage(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		run  runs.Run
		want string
	}{
		{runs.Run{Status: runs.Queued}, ""}, {runs.Run{Status: runs.Running}, "clearing older staged objects"},
		{runs.Run{Status: runs.Running, Cursor: 5}, "copying retained objects"},
		{runs.Run{Status: runs.Running, Cursor: 5, Bound: 9}, "staging"},
		{runs.Run{Status: runs.Running, Cursor: 9, Bound: 9}, "caught up"},
		{runs.Run{Status: runs.Paused, Cursor: 9, Bound: 9}, "staged"},
		{runs.Run{Status: runs.Done, Cursor: 9, Bound: 9}, ""},
	} {
		c.run.Job = rebuild.Job
		if got := rebuild.Stage(&c.run); got != c.want {
			t.Errorf("%+v is %q, want %q", c.run, got, c.want)
		}
	}
}
