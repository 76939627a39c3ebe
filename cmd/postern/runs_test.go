package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

// A deferred run shows the reason in the list, in show and while watching.
func TestRunsShow_deferredRun_showsReason(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "k", `{"a": 1}`)
	b.want(t, "replay --yes --no-wait", 0, "queued", "")
	for _, want := range []string{"deferred once  permission denied\n", "deferred 2 times  permission denied\n"} {
		h, err := runs.Acquire(t.Context(), b.db.Role(t, "processor"), "test", time.Minute, replay.Job)
		if err != nil || h == nil {
			t.Fatal(h, err)
		}
		if _, err := h.Defer(t.Context(), errors.New("permission denied"), 0, 0); err != nil {
			t.Fatal(err)
		}
		b.want(t, "runs show 1", 0, want, "")
	}
	b.want(t, "runs list", 0, "permission denied\n", "")
	b.want(t, "runs show 1 -o json", 0, `"deferrals": 2`, "")
	var out bytes.Buffer
	(&runWatcher{progress: newProgress(&out, lineInterval, false)}).print(&runs.Run{ID: 1, Job: replay.Job,
		Status: runs.Running, Detail: "permission\ndenied",
		ConsecutiveFailures: 2}, time.Now())
	if !strings.HasSuffix(out.String(), "; deferred 2 times: permission·denied\n") {
		t.Errorf("watched: %q", out.String())
	}
	b.want(t, "runs cancel 1", 0, "last detail  permission denied\n", "")
}

func TestReplay_previewConfirmAndCreate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 3 {
		b.append(t, "stripe", fmt.Sprint("evt_", i), "{}")
	}
	b.want(t, "replay", 2, "3 events of 1 object, stored ",
		"no terminal to ask for confirmation: add --yes, or --preview to")
	b.want(t, "replay --preview --exact -o json", 0, `"events": 3,`, "")
	b.want(t, "replay --status dead --preview", 0, "", "postern retry --status dead tries them again")
	b.want(t, "runs list", 0, "No runs.", "")
	b.want(t, "replay --key evt_none --exact --yes", 0, "No events are selected.", "")
	b.want(t, "runs show 1", 3, "", "run 1: not found")
	b.want(t, "replay --source stripe --exact --yes --no-wait --reason 'corrected the rule'", 0,
		"3 events of 1 object, stored ", "")
	b.want(t, "runs list", 0, "corrected the rule", "")
	b.want(t, "runs show 1", 0, "0 processed", "")
	b.want(t, "runs pause 1", 0, "paused", "")
	b.want(t, "runs watch 1", 0, "run 1 paused: 0 of about 3 events", "")
	b.want(t, "runs cancel 1", 0, "cancelled", "")
	b.want(t, "runs resume 1", 2, "", "run 1 is cancelled, so it cannot become queued")
	b.want(t, "runs pause x", 2, "", `"x" is not an id: postern runs list shows them`)
}

// Watching shows progress and result; a failed run is an error of the command.
func TestRunsWatch_endOfRun_isExitStatus(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_1", "{}")
	for _, c := range []struct {
		end    runs.Status
		detail string
		dead   int64
		status int
		errs   string
	}{{runs.Done, "", 0, 0, ""}, {runs.Failed, "the order cannot be read", 0, 1, "failed: the order cannot be read"},
		{runs.Done, "", 2, 1, "0 events failed and 2 are dead: see postern outcomes list --run 3"}} {
		watched := make(chan result, 1)
		go func() { watched <- b.run(t, "replay", "--yes") }()
		var h *runs.Lease
		testkit.Eventually(t, time.Minute, func() (err error) {
			if h, err = runs.Acquire(t.Context(), b.db.Pool, "test", time.Minute, replay.Job); err == nil && h == nil {
				err = errors.New("nothing requested")
			}
			return err
		})
		h.Counts["applied"], h.Counts[replay.Processed], h.Counts[replay.Deduplicated] = 1, 1, 1
		h.Counts["dead"] = c.dead
		if _, err := h.Advance(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		testkit.Must(t, h.End(t.Context(), c.end, c.detail))
		r := <-watched
		if r.status != c.status || !strings.Contains(r.out, "1 processed, 1 applied") ||
			!strings.Contains(r.out, ", 1 of them deduplicated") || !strings.Contains(r.errs, c.errs) {
			t.Errorf("status %d\n%s\n%s", r.status, r.out, r.errs)
		}
	}
}

// The progress line has the rate and the remaining time.
func TestRunWatcher_progress_printsRateAndRemainingTime(t *testing.T) {
	t.Parallel()
	var out strings.Builder
	w := &runWatcher{progress: newProgress(&out, lineInterval, false)}
	now := time.Unix(1_790_000_000, 0)
	r := &runs.Run{ID: 3, Status: runs.Running, Expected: 1000, Counts: map[string]int64{replay.Processed: 100}}
	w.print(r, now)
	r.Counts[replay.Processed] = 300
	w.print(r, now.Add(time.Second)) // too early for another line
	w.print(r, now.Add(20*time.Second))
	const want = "run 3 running: 100 of about 1000 events\nrun 3 running: 300 of " +
		"about 1000 events, 10/s, about 1m10s left\n"
	if out.String() != want {
		t.Errorf("got\n%s\nwant\n%s", out.String(), want)
	}
}

// Ctrl-C stops the watching and not the run.
func TestRunsWatch_interrupted_runContinues(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_1", "{}")
	b.want(t, "replay --yes --no-wait", 0, "queued", "")
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if r := execute(ctx, "", "--dir", b.dir, "runs", "watch", "1"); r.status != 1 {
		t.Errorf("%+v", r)
	}
	b.want(t, "runs show 1", 0, "queued", "")
}

const customer = `{"id": "evt_1", "object": "event", "type": "customer.updated", "created": 1790000000, ` +
	`"api_version": "2026-01-28", "data": {"object":
  {"id": "cus_1", "object": "customer", "name": "Grace", "created": 1780000000, "metadata": {"a": "1"}}}}`

// A dry run shows the changes as text and as JSON, and needs the configuration of the source.
func TestReplay_dryRun_printsChangesAndWritesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_1", customer)
	b.append(t, "shop", "evt_2", "{}")
	b.want(t, "replay --dry-run --source stripe", 2, "", "source stripe is not in this configuration")
	b.writeStripe(t)
	r := b.want(t, "replay --dry-run", 0, "stripe customer cus_1 (new)\n", "")
	r.want(t, 0, "state ", "")
	r.want(t, 0, "2 processed, 1 applied, 1 failed. 1 object would change, 1 of them new. Nothing was written.\n", "")
	b.want(t, "replay --dry-run --source stripe -o json", 0,
		`{"counts":{"applied":1,"processed":1},"new":1,"objects":1}`+"\n", "")
	b.insertObject(t, "stripe", "", 17)
	b.db.Exec(t, `UPDATE objects SET version_at = 1780000000000000, state_hash = sha256('x'), exact_hash = sha256('x'),
		tied_states = '[{}]'`)
	b.want(t, "replay --dry-run --source stripe", 0, `"Ada" -> "Grace"`, "")
	b.want(t, "replay --dry-run --key none", 0, "0 processed. 0 objects would change", "")
	b.want(t, "runs list", 0, "No runs.", "")
}

// A run with force waits for an approval, which is kept with its reason.
func TestRunsApprove_forcedReplay_startsAfterApproval(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_1", "{}")
	b.want(t, "replay --mode all --yes", 2, "", "use one of state, missing, force")
	b.want(t, "replay --mode force --preview", 0, "No effects are repeated", "")
	b.want(t, "replay --mode force --yes", 0, "It starts after an approval: postern runs approve 1 --reason TEXT", "")
	b.run(t, "runs", "resume", "1").want(t, 2, "",
		"run 1 awaits approval: approve it or cancel it (postern runs approve 1 --reason TEXT, postern runs cancel 1)")
	if h, err := runs.Acquire(t.Context(), b.db.Pool, "test", time.Minute, replay.Job); h != nil || err != nil {
		t.Errorf("%+v %v", h, err)
	}
	b.want(t, "runs approve 1", 2, "", "give a reason with --reason")
	b.want(t, "runs approve 2 --reason x", 3, "", "run 2: not found")
	b.want(t, "runs approve 1 --reason 'agreed with finance'", 0, "agreed with finance", "")
	if h, err := runs.Acquire(t.Context(), b.db.Pool, "test", time.Minute, replay.Job); h == nil || err != nil ||
		!strings.Contains(string(h.Params), `"force"`) {
		t.Errorf("%+v %v", h, err)
	}
	b.want(t, "replay --mode force --yes", 0, "awaiting_approval", "")
	b.want(t, "runs cancel 2", 0, "cancelled", "")
}

func TestRetry_previewConfirmAndCreate(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.append(t, "stripe", "evt_1", "{}")
	b.append(t, "stripe", "evt_2", "{}")
	b.outcome(t, id, "dead")
	b.want(t, "outcomes failures --source stripe", 0, "1       dead", "")
	b.want(t, "retry evt_9", 3, "", "evt_9: not found")
	b.want(t, "retry evt_1 --ids 7", 2, "", "give one of them")
	b.want(t, "retry evt_2", 0, "No failed or dead events are selected.", "")
	b.want(t, "retry --preview -o json", 0, `"events": 1,`, "")
	b.want(t, "retry evt_1", 2, "1 event failed or dead, stored ", "no terminal to ask for confirmation")
	b.want(t, "retry evt_1 --failure 'newer than' --reason corrected --yes --no-wait", 0, "corrected", "")
	b.want(t, "runs list --job retry", 0, "retry", "")
	b.want(t, "retry evt_1 --yes --no-wait --idempotency-key k", 0, "idempotency key", "")
	b.want(t, "retry evt_1 --yes --no-wait --idempotency-key k", 0, "was created with this key before", "")
	b.want(t, "retry --yes --no-wait --idempotency-key k", 2, "", "has other parameters (retry event=evt_1)")
	exec := func(sql string, args ...any) {
		t.Helper()
		b.db.Exec(t, sql, args...)
	}
	// While the first run works on the last events, none are left to select. A request with its key
	// still gets that run.
	exec(`UPDATE outcomes SET status = 'applied' WHERE event_id = $1`, id)
	again := b.run(t, "retry", "evt_1", "--yes", "--no-wait", "--idempotency-key", "k")
	again.contains(t, "No failed or dead events are selected.", "Run 2 was created with this key before")
	exec(`UPDATE runs SET status = 'failed', ended_at = now(), detail = 'the first failure' WHERE run = 2`)
	b.want(t, "retry evt_1 --yes --idempotency-key k", 1, "Run 2 was created", "the first failure")
	b.want(t, "retry evt_2 --yes --idempotency-key k", 2, "No failed or dead",
		"has other parameters (retry event=evt_1)")
	b.want(t, "retry evt_1 --preview --idempotency-key k", 0, "No failed or dead events are selected.", "")
	if none := b.run(t, "retry", "evt_1", "--yes", "--idempotency-key", "unused"); strings.Contains(none.out, "Run") {
		t.Error(none.out)
	}
	exec(`UPDATE outcomes SET status = 'dead' WHERE event_id = $1`, id)
	b.want(t, "retry --run 1 --yes", 2, "", "run 1 is a retry: only failures of a replay")
}

// The outcome of a run is shown with the live outcome.
func TestOutcomes_ofRun_showLiveOutcome(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.append(t, "stripe", "evt_1", "{}")
	b.outcome(t, id, "applied")
	b.db.Exec(t, `INSERT INTO outcomes SELECT event_id, 5, source, object, account, object_type, object_id, 'failed',
		reason, version, decided_by, attempts, now() + interval '1 h', at, rule_version FROM outcomes`)
	b.want(t, "outcomes list --run 5", 0, "failed (live: applied)", "")
	b.want(t, "outcomes list --run 5 -o json", 0, `"original":{"run":0,"status":"applied"}`, "")
	b.want(t, "outcomes list --run 0 -o json", 0, `"original":null`, "")
	r := b.run(t, "events", "show", "evt_1")
	if r.want(t, 0, "the live outcome, applied", ""); strings.Contains(r.out, "next attempt") {
		t.Error(r.out)
	}
}

func TestSchedules_listShowRunPause(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_1", "{}")
	b.want(t, "schedules list", 0, "No schedules. They are defined in the configuration", "")
	b.want(t, "schedules show nightly", 3, "", "schedule nightly: not found")
	p := &runs.Planner{Pool: b.db.Role(t, "processor"), Jobs: operations.Jobs, Logger: slog.New(slog.DiscardHandler),
		Interval: time.Hour}
	p.Replace([]runs.Schedule{{Name: "nightly", Job: "replay", Cron: "30 3 * * *", TimeZone: "Europe/Berlin",
		Overlap: runs.OverlapSkip, Missed: runs.MissedRun,
		Parameters: map[string]string{"source": "stripe", "rate": "5"}}})
	testkit.Must(t, p.Tick(t.Context()))
	b.want(t, "schedules list", 0, "nightly   replay  30 3 * * *  Europe/Berlin  20", "")
	b.want(t, "schedules show nightly", 0, "rate=5 source=stripe", "")
	b.want(t, "schedules pause nightly", 0, "paused", "")
	b.want(t, "schedules list", 0, "Europe/Berlin  paused", "")
	b.want(t, "schedules run nightly --no-wait --idempotency-key 'build 7'", 0, "idempotency key  build 7", "")
	again := b.run(t, "schedules", "run", "nightly", "--no-wait", "--idempotency-key", "build 7")
	again.want(t, 0, "Run 1 was created with this key before; no other run is created.", "")
	b.want(t, "schedules run nightly --no-wait", 2, "", "run 1 of schedule nightly is still queued")
	b.want(t, "schedules resume nightly", 0, "next", "")
	b.want(t, "schedules list", 0, "run 1 queued", "")
	b.want(t, "runs list --schedule nightly", 0, "nightly", "")
	b.want(t, "runs list --schedule other", 0, "No runs.", "")
	for _, line := range []string{"replay --exact --yes --no-wait --source stripe", "rebuild --source stripe --no-wait",
		"retention run --bodies 30 --yes --no-wait"} {
		key := " --idempotency-key '" + line + "'"
		b.want(t, line+key, 0, "idempotency key", "")
		b.want(t, line+key, 0, "was created with this key before", "")
	}
	b.want(t, "rebuild --source stripe --no-wait", 2, "", "is an open rebuild of this source")
	var s runs.ScheduleState
	if r := b.run(t, "schedules", "show", "nightly", "-o", "json"); json.Unmarshal([]byte(r.out), &struct {
		Last *int64 `json:"last_run"`
	}{&s.LastRun}) != nil || s.LastRun != 1 {
		t.Errorf("%+v", r)
	}
}

// Errors in schedules are reported with their line before a daemon starts.
func TestConfigCheck_invalidSchedules_areReported(t *testing.T) {
	t.Parallel()
	file := writeFile(t, "postern.yaml", "database: {url: postgres://x}\nschedules:\n  a: {job: replay, cron: "+
		"'@daily', parameters: {sauce: x}}\n  b: {job: nothing, cron: '@daily'}\n")
	r := execute(t.Context(), "", "config", "check", file)
	for _, want := range []string{file + `:3: schedules.a.parameters: `, `parameter "sauce" does not exist`,
		file + `:4: schedules.b.job: job "nothing" cannot be scheduled`} {
		if r.status != 1 || !strings.Contains(r.errs, want) {
			t.Errorf("want %s in %+v", want, r)
		}
	}
}

// The parameters of a run are described as text.
func TestDescribeParams_byJob(t *testing.T) {
	t.Parallel()
	for want, r := range map[string]runs.Run{
		"events, source stripe, all accounts, dry run": {Job: "reconcile",
			Params: []byte(`{"source":1,"scope":"events","all_accounts":true,"dry_run":true,` +
				`"input":{"source":"stripe"}}`)},
		"objects of type customer, full list, source stripe, account acct_1": {Job: "reconcile",
			Params: []byte(`{"source":1,"account":"acct_1","scope":"objects","type":"customer","full":true,` +
				`"input":{"source":"stripe","full":"true"}}`)},
		"objects of all types, source shop, since 2026-11-22T01:02:03.000000Z, " +
			"until 2026-11-22T02:00:00.000000Z": {Job: "reconcile",
			Params: []byte(`{"source":1,"scope":"objects","since":"2026-11-22T01:02:03Z",` +
				`"until":"2026-11-22T02:00:00Z","input":{"source":"shop"}}`)},
		"customer cus_1, source stripe": {Job: "reconcile",
			Params: []byte(`{"source":1,"scope":"object","type":"customer","id":"cus_1","input":{"source":"stripe"}}`)},
		"customer cus_1, overwriting the local history, source stripe": {Job: "reconcile",
			Params: []byte(`{"source":1,"scope":"object","type":"customer","id":"cus_1","overwrite":true,` +
				`"input":{"source":"stripe"}}`)},
		"since 6h, source stripe": {Job: "replay",
			Params: []byte(`{"filter":{},"input":{"source":"stripe","since":"6h"},"rate":5}`)},
		"source stripe, mode force": {Job: "replay",
			Params: []byte(`{"filter":{},"input":{"source":"stripe"},"rate":0,"mode":"force"}`)},
		"source stripe, publish true": {Job: "replay",
			Params: []byte(`{"filter":{},"input":{"source":"stripe"},"rate":0,"publish":true,"mode":"state"}`)},
		`{"bodies":30}`: {Job: "retention", Params: []byte(`{"bodies":30}`)},
		`{"scope":7}`:   {Job: "reconcile", Params: []byte(`{"scope":7}`)},
	} {
		if got := describeParams(&r); got != want {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// The list of runs shows the counted unit: an object scan counts objects.
func TestRunsList_processedUnits_byJob(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_1", "{}")
	b.want(t, "replay --yes --no-wait", 0, "queued", "")
	parseID := b.known.Number["stripe"]
	b.db.Exec(t, `INSERT INTO runs (job, params, actor, reason, status, detail, counts, created_at, updated_at) VALUES
		('reconcile', jsonb_build_object('source', $1::int, 'scope', 'objects'), 'me', '', 'running', '',
			'{"processed": 2600, "equal": 2600}', now(), now()),
		('reconcile', jsonb_build_object('source', $1::int, 'scope', 'object', 'type', 'customer', 'id', 'cus_1'), 'me',
			'', 'running', '', '{"processed": 1}', now(), now()),
		('reconcile', jsonb_build_object('source', $1::int, 'scope', 'events', 'all_accounts', true), 'me', '',
			'running', '', '{"accounts": 3}', now(), now()),
		('reconcile', jsonb_build_object('source', $1::int, 'scope', 'events'), 'me', '', 'running', '',
			'{"processed": 2}', now(), now())`, parseID)
	r := b.run(t, "runs", "list")
	var cells []string
	for _, line := range strings.Split(strings.TrimSpace(r.out), "\n") {
		at := strings.Index(r.out, "PROCESSED")
		cells = append(cells, strings.TrimSpace(line[at:strings.Index(r.out, "CREATED")]))
	}
	if got, want := strings.Join(cells, "|"),
		"PROCESSED|2 events|3 accounts|1 object|2600 objects|0 events"; got != want {
		t.Errorf("%s, want %s in\n%s", got, want, r.out)
	}
}

// Each approval is shown with its subject.
func TestPrintRun_approvals_showSubject(t *testing.T) {
	t.Parallel()
	at := events.Instant{Time: time.Date(2026, 11, 22, 1, 2, 3, 0, time.UTC)}
	r := &runs.Run{Job: "reconcile", Params: []byte(`{"scope":"events"}`), ApprovedBy: "ada",
		ApprovalReason: "they are gone",
		Approvals: []runs.Approval{
			{Subject: "key 1", Message: "nothing shows that the key is right", Actor: "bob", Reason: "it is", At: at},
			{Subject: "tombstones", Message: "90 of 90 objects", Actor: "ada", Reason: "they are gone", At: at}}}
	var out strings.Builder
	testkit.Must(t, printRun(&call{out: &out}, r))
	for _, want := range []string{"approved by  bob at 2026-11-22T01:02:03.000000Z\nreason       it is\n" +
		"approved     nothing shows that the key is right\n",
		"approved by  ada at 2026-11-22T01:02:03.000000Z\nreason       they are gone\n" +
			"approved     90 of 90 objects\n"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("want %q in\n%s", want, out.String())
		}
	}
	out.Reset()
	r.Approvals = nil
	if err := printRun(&call{out: &out}, r); err != nil ||
		!strings.Contains(out.String(), "approved by  ada\nreason       they are gone\n") {
		t.Errorf("run with one approval only: %v\n%s", err, out.String())
	}
}
