package console

import (
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

// Each page about jobs, effects and the instance says what is there. Without any data it says what
// would be here.
func TestWorkPages_noneAndMany_sayWhatIsThere(t *testing.T) {
	t.Parallel()
	e := newEnv(t, func(o *Options) { o.Retention = retention.Policy{Bodies: 30} })
	b := e.browser()
	b.wantPages(t, map[string][]string{
		"runs":               {"No run matches the filter. A run appears here when", "postern runs list"},
		"runs/new/replay":    {"Events0 counted", "No event matches the filter, so there is nothing to do."},
		"runs/new/retry":     {"Events0 counted", "No failed or dead event matches the filter"},
		"runs/new/rebuild":   {"Name the source first."},
		"runs/new/reconcile": {"Name the source first."},
		"schedules":          {"There are no schedules."},
		"effects":            {"No effect matches the filter."},
		"reconciliation":     {"Nothing is known to be complete yet."},
		"audit":              {"No entry matches the filter."},
		"retention":          {"Events30 days", "Keyswithout limit", "Retention has not run yet."},
		"redactions":         {"Nothing was redacted."},
		"health": {"Checked at ", "Events without an outcome0", "NATS does not respond",
			"No gateway has registered a spool.", "No report is stored. Run postern verify --store-report"},
		"help": {"g uRuns", "docs/reference/glossary.md"},
	})
	e.fill(t, "")
	b.wantPages(t, map[string][]string{
		"runs":               {"awaiting approval", "Apply events again: the whole log; mode force"},
		"runs/1":             {"The run failed", "Drift by type", "mirror older", "null → \"\""},
		"runs/1?kind=orphan": {"orphan"},
		"runs/new/replay":    {"Events6 counted", "evt_0", "Mode state: no effect happens"},
		"runs/new/replay?mode=force&exact=true": {"Mode force: 1 effect of these events", "Type the number 6 to " +
			"confirm"},
		"runs/new/retry":                 {"Events2 counted", "because", "Start the retry"},
		"runs/new/rebuild?source=stripe": {"Events6 counted", "No other rebuild is open."},
		"runs/new/reconcile?source=stripe&object_type=customer&dry_run=true": {
			"walks the provider's list of type customer", "only counts the differences"},
		"schedules/nightly":  {"Starts the job replay at 30 3 * * *", "The schedule has not started a run yet."},
		"effects":            {"needs review", "awaiting approval"},
		"effects/rules/mail": {"done1", "needs review1", "This process does not have the rule"},
		"effects/rules/receipt": {"The rule has no effect yet.", "Plans an effect for changes of type invoice of " +
			"source stripe.", "rule_version: 2", "Destinationsmail"},
		"effects/rules/receipt?since=1h": {"The rule would plan no effect for a change in this time"},
		"effects/1":                      {"None of its steps has started", "Template data"},
		"effects/2":                      {"Resolve", "an operator decides"},
		"effects/3":                      {"extra", "skipped", "its condition was false", "cannot be undone"},
		"reconciliation":                 {"events", "Newest reconciliations"},
		"audit":                          {"as the command reported"},
		"redactions":                     {"99"},
		"health":                         {"Remove spool gone", "2 violations were found", "6 keys"},
	})
	for path, want := range map[string]int{"runs/99": 404, "runs/x": 404, "runs/1?colour=red": 400, "effects/99": 404,
		"effects/rules/none": 404, "effects/rules/receipt?since=soon": 400, "schedules/none": 404,
		"runs/new/replay?mode=fast": 400, "help?x=1": 400, "runs/2?kind=orphan": 200} {
		b.get(t, Prefix+path).want(t, path, want)
	}
}

// The forms of a run are those that its status allows.
func TestRun_forms_fitTheStatus(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	b := e.browser()
	add := func(job, status string) string {
		t.Helper()
		return e.db.QueryStrings(t, `INSERT INTO runs (job, params, actor, reason, status, detail, bound, counts,
			created_at, ended_at, updated_at) VALUES ($1, '{"source": 1}', '', '', $2, '', 5, '{}', now(),
			CASE WHEN $2 IN ('done', 'failed') THEN now() END, now()) RETURNING run::text`, job, status)[0]
	}
	want := func(name, run, labels string) *response {
		t.Helper()
		p := b.get(t, Prefix+"runs/"+run)
		var got []string
		for _, label := range []string{"Approve", "Cancel", "Discard", "Pause", "Resume", "Swap"} {
			if _, ok := p.forms()[label]; ok {
				got = append(got, label)
			}
		}
		testkit.Equal(t, "forms of "+name, labels, strings.Join(got, " "))
		return p
	}
	for status, labels := range map[runs.Status]string{runs.AwaitingApproval: "Approve Cancel",
		runs.Queued: "Cancel Pause", runs.Running: "Cancel Pause", runs.Paused: "Cancel Resume", runs.Done: "",
		runs.Failed: ""} {
		want(string(status), add("replay", string(status)), labels)
	}
	// a swap is offered with the comparison, when all objects are staged
	rebuild := add("rebuild", "paused")
	want("a paused rebuild", rebuild, "Cancel Resume")
	e.db.Exec(t, `INSERT INTO checkpoints (job, run, cursor, lease_owner, lease_until, updated_at)
		VALUES ('rebuild', $1::bigint, 5, '', now(), now())`,
		rebuild)
	want("a staged rebuild", rebuild, "Discard Resume Swap").want(t, "a staged rebuild", http.StatusOK,
		"All compared objects are the same.")
}

// A replay of many events, and one that repeats effects, starts only with the number that the
// preview showed. The run selects what the preview showed.
func TestNewReplay_numberNotTyped_startsNothing(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	e.fill(t, "")
	b := e.browser()
	const forced = Prefix + "runs/new/replay?source=stripe&mode=force&since=1h"
	p := b.get(t, forced)
	for _, typed := range []string{"", "7", "six"} {
		b.submit(t, p, "Start the replay", "typed", typed).want(t, "typed "+typed, 400, "Nothing was started")
	}
	b.submit(t, p, "Start the replay", "typed", "1,001", "expected", "1001", "p.mode", "state").
		want(t, "grouped digits", 303)
	for _, form := range [][]string{{"expected", ""}, {"expected", "1001", "p.mode", ""}} {
		b.submit(t, b.get(t, Prefix+"runs/new/replay"), "Start the replay", form...).
			want(t, fmt.Sprintf("%q", form), 400)
	}
	e.db.WantRows(t, 3, "runs WHERE job = 'replay'") // two are of fill
	got := b.submit(t, b.get(t, forced), "Start the replay", "typed", " 6 ", "p.reason", "test")
	got.want(t, "the number of the preview", 303)
	run := e.db.QueryStrings(t, `SELECT unnest(ARRAY[status, params->'input'->>'since']) FROM runs
		WHERE run = $1::bigint`, strings.TrimPrefix(got.header.Get("Location"), Prefix+"runs/"))
	if _, err := time.Parse(time.RFC3339, run[1]); err != nil || run[0] != "awaiting_approval" {
		t.Errorf("the run is %s, since %q is not absolute: %v", run[0], run[1], err)
	}
	b.wantPages(t, map[string][]string{"runs/new/replay?source=stripe&dry_run=true": {"Processed6"}})
}

// A running run without progress for a minute shows since when, and whether a process executes it.
func TestRun_noProgress_showsSinceWhen(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	b := e.browser()
	for _, row := range []struct{ status, age, lease, want string }{
		{"running", "5 minutes", "-1 minute", "No process executes it"},
		{"running", "5 minutes", "1 minute", "Its process still has the lease"},
		{"running", "50 seconds", "-1 minute", ""},
		{"queued", "5 minutes", "-1 minute", ""},
	} {
		run := e.db.QueryStrings(t, `WITH r AS (INSERT INTO runs (job, params, actor, reason, status, detail, bound,
			expected, counts, created_at, started_at, updated_at) VALUES ('replay', '{"source": 1}', '', '', $1, '', 5,
			100, '{"processed": 50}', now() - interval '1 day', now() - interval '1 day', now() - $2::interval)
			RETURNING run), c AS (INSERT INTO checkpoints (job, run, cursor, lease_owner, lease_until, updated_at)
			SELECT 'replay', run, 5, 'p', now() + $3::interval, now() FROM r) SELECT run::text FROM r`, row.status,
			row.age, row.lease)[0]
		text := b.get(t, Prefix+"runs/"+run).text()
		if stalled := strings.Contains(text, "has made no progress since"); stalled != (row.want != "") ||
			!strings.Contains(text, row.want) {
			t.Errorf("%v: %.2000s", row, text)
		}
		if rate := strings.Contains(text, "per second"); rate != (row.status == "running" && row.want == "") {
			t.Errorf("%v: rate shown: %v", row, rate)
		}
	}
}

// Two reads of a run give its rate; without an earlier read it is the average since the start.
func TestRunRates_reads_giveTheRate(t *testing.T) {
	t.Parallel()
	var rates runRates
	start := time.Date(2026, 11, 27, 12, 0, 0, 0, time.UTC)
	for i, x := range []struct {
		processed int64
		second    int
		want      float64
	}{{1000, 10, 100}, {1000, 11, 100}, {1600, 12, 300}, {1600, 13, 300}, {1600, 200, 8}} {
		at := start.Add(time.Duration(x.second) * time.Second)
		run := &runs.Run{ID: 1, Status: runs.Running, Counts: map[string]int64{"processed": x.processed},
			StartedAt: events.Instant{Time: start}, UpdatedAt: events.Instant{Time: at}}
		if x.second == 11 || x.second == 13 { // no checkpoint since the last read
			run.UpdatedAt.Time = at.Add(-time.Second)
		}
		if got, ok := rates.rate(run, at); !ok || fmt.Sprintf("%.0f", got) != fmt.Sprintf("%.0f", x.want) {
			t.Errorf("read %d: %v %v, want %v", i, got, ok, x.want)
		}
	}
	for name, change := range map[string]func(*runs.Run){
		"ended":    func(run *runs.Run) { run.Status = runs.Done },
		"stalled":  func(run *runs.Run) { run.StalledSince = run.UpdatedAt },
		"deferred": func(run *runs.Run) { run.ConsecutiveFailures = 1 },
	} {
		run := &runs.Run{ID: 1, Status: runs.Running, Counts: map[string]int64{"processed": 2000},
			StartedAt: events.Instant{Time: start}, UpdatedAt: events.Instant{Time: start.Add(201 * time.Second)}}
		change(run)
		if rate, ok := rates.rate(run, start.Add(201*time.Second)); ok {
			t.Errorf("a run that is %s has the rate %v", name, rate)
		}
	}
}

// What a dry run cannot do becomes a sentence, and the rest of the page stays.
func TestNewReplay_dryRunRejected_saysWhy(t *testing.T) {
	t.Parallel()
	var problem *admin.Problem
	e := newEnv(t, func(o *Options) {
		o.API = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(problem.Status)
			_ = json.NewEncoder(w).Encode(problem) // the recorder takes everything
		})
	})
	const page = Prefix + "runs/new/replay?dry_run=true"
	b := e.browser()
	for name, want := range map[string]string{"busy": "This page tries again in 5 seconds.",
		"too-many": "The selection is too large for a dry run on a page.", "role": "A dry run needs the role " +
			"operator."} {
		problem = admin.NewProblem(name, "")
		p := b.get(t, page)
		p.want(t, name, http.StatusOK, want, "Events0 counted")
		if refreshes := strings.Contains(p.body, `hx-trigger="every 5s"`); refreshes != (name == "busy") {
			t.Errorf("%s: the page refreshes: %t", name, refreshes)
		}
	}
	problem = admin.NewProblem("internal", "")
	b.get(t, page).want(t, "an internal error", http.StatusInternalServerError)
}

// The menu says how much waits for an operator. It reads that again after ten seconds, and after a
// change.
func TestMenu_waitingThings_areCounted(t *testing.T) {
	t.Parallel()
	now := time.Now()
	e := newEnv(t, func(o *Options) { o.Now = func() time.Time { return now } })
	e.fill(t, "")
	b := e.browser()
	want := func(effects string) {
		t.Helper()
		b.wantPages(t, map[string][]string{"effects": {"Failures 1 waiting", "Runs 1 waiting", "Effects " + effects}})
	}
	want("1 waiting")
	e.db.Exec(t, `INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run,
		state, destination, planned_at, updated_at) SELECT 'more' || n, 1, 'mail', 1, '', '', '', 1, 0,
		'awaiting_approval', '', now(), now() FROM generate_series(1, 1000) n`)
	want("1 waiting")
	now = now.Add(badgeInterval)
	want("1,000+ waiting")
	e.db.Exec(t, `DELETE FROM effects WHERE key LIKE 'more%'`)
	b.submit(t, b.get(t, Prefix+"effects/1"), "Approve", "p.reason", "r").want(t, "approve", http.StatusSeeOther)
	want("Requests and mails") // without a number, the heading follows
}
