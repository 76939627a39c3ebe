package main

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

// A day of the log is shown, previewed, dropped when a person says so, and what is left of its events is told.
func TestRetention(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_young", "{}")
	const clock = `CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS 'SELECT clock_timestamp() + interval ''%d days'''`
	exec := func(sql string, args ...any) {
		t.Helper()
		if _, err := b.db.Pool.Exec(t.Context(), sql, args...); err != nil {
			t.Fatal(err)
		}
	}
	var id int64
	var at time.Time
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT id, event_time(id) FROM events`).Scan(&id, &at); err != nil {
		t.Fatal(err)
	}
	exec(fmt.Sprintf(clock, 40))
	day := at.UTC().Format("2006-01-02")
	b.run(t, "retention", "show").want(t, 0, "never", "the ages of the running processors are not known here")
	b.run(t, "retention", "show", "--bodies", "60").want(t, 0, at.UTC().Truncate(24*time.Hour).AddDate(0, 0, 61).Format("2006-01-02"), "")
	const cleared = "postern: warning: what effects hold is cleared 3 days after they ended, and events are kept "
	b.run(t, "retention", "show", "--effects", "3").want(t, 0, "3 days", cleared+"for ever: a replay with --mode force")
	b.run(t, "retention", "run", "--bodies", "400", "--effects", "3", "--dry-run").want(t, 0, "", cleared+"for 400 days: a replay")
	if r := b.run(t, "retention", "show", "--bodies", "3", "--effects", "3"); strings.Contains(r.errs, "warning") {
		t.Errorf("warns %q of contents that are kept for as long as events", r.errs)
	}
	b.run(t, "retention", "run").want(t, 2, "", "no age is set")
	b.run(t, "retention", "run", "--bodies", "30", "--keys", "7").want(t, 2, "", "keep keys at least as long as events")
	b.run(t, "retention", "run", "--bodies", "30", "--dry-run").want(t, 0, day+" stays for now: the auditor has not passed event "+fmt.Sprint(id), "")
	exec(`INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, at, rule_version) VALUES ($1, 0, 1, 0, '', '', '', 'dead', 'because', 1, now(), 1)`, id)
	exec(`INSERT INTO checkpoints (job, run, cursor, leased_by, leased_until, updated_at) VALUES ('auditor', 0, $1, '', now(), now())`, id)
	b.run(t, "retention", "run", "--bodies", "30", "--dry-run").want(t, 0, day+" has 1 dead event", "")
	b.run(t, "retention", "run", "--bodies", "30").want(t, 2, "These days of the log go", "nobody can be asked here: give --yes, or --dry-run to see no more than this")
	b.run(t, "retention", "run", "--bodies", "30", "--yes", "--no-wait", "--reason", "a test").want(t, 0, "waiting", "")
	b.run(t, "retention", "run", "--bodies", "30", "--yes").want(t, 2, "", "a run of retention is open already")

	proc, err := processor.New(processor.Options{Pool: b.db.Role(t, "processor"), Settings: processor.DefaultSettings, ID: "p", Logger: testkit.Logger(t), Metrics: prometheus.NewRegistry()})
	if err != nil {
		t.Fatal(err)
	}
	forgets := &retention.Runner{Pool: b.db.Role(t, "processor"), Keeper: b.db.Role(t, "maintenance"), Processor: proc}
	r := runs.NewRunner(runs.Options{Pool: forgets.Pool, ID: "p", Logger: testkit.Logger(t), Settings: runs.DefaultSettings, Jobs: map[string]runs.Carry{retention.Job: forgets.Carry}})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	b.run(t, "runs", "watch", "1").want(t, 0, "3 partitions dropped", "")
	cancel()
	if err := <-ended; err != nil {
		t.Fatal(err)
	}
	for _, arg := range []string{"evt_young", fmt.Sprint(id)} {
		b.run(t, "events", "show", arg).want(t, 0, "by retention, with headers and body", "")
		b.run(t, "events", "show", arg).want(t, 0, "dead", "")
	}
	b.run(t, "events", "show", "evt_young").want(t, 0, "evt_young", "")
	b.run(t, "events", "show", "evt_young", "-o", "json").want(t, 0, `"dropped_at": "20`, "")
	b.run(t, "events", "show", "evt_young", "--raw").want(t, 1, "", "retention dropped it")
	b.run(t, "events", "show", fmt.Sprint(id+1)).want(t, 3, "", "has kept nothing of an event with this id")
	b.run(t, "events", "show", fmt.Sprint(events.FirstID(at.AddDate(1, 0, 0)))).want(t, 3, "", "no event has this id")
	if out := b.run(t, "retention", "show").out; strings.Contains(out, day) {
		t.Errorf("still shown:\n%s", out)
	}
}
