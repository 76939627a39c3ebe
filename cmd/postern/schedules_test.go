package main

import (
	"encoding/json"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/runs"
)

func TestSchedulesOnTheCommandLine(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_1", "{}")
	b.run(t, "schedules", "list").want(t, 0, "No schedules. They are made in the configuration", "")
	b.run(t, "schedules", "show", "nightly").want(t, 3, "", "schedule nightly: not found")
	p := &runs.Planner{Pool: b.db.Role(t, "processor"), Jobs: admin.Jobs, Logger: slog.New(slog.DiscardHandler), Every: time.Hour}
	p.Replace([]runs.Schedule{{Name: "nightly", Job: "replay", Cron: "30 3 * * *", TimeZone: "Europe/Berlin", Overlap: runs.OverlapSkip, Missed: runs.MissedRun,
		Parameters: map[string]string{"source": "stripe", "rate": "5"}}})
	if err := p.Tick(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.run(t, "schedules", "list").want(t, 0, "nightly   replay  30 3 * * *  Europe/Berlin  20", "")
	b.run(t, "schedules", "show", "nightly").want(t, 0, "rate=5 source=stripe", "")
	b.run(t, "schedules", "pause", "nightly").want(t, 0, "paused", "")
	b.run(t, "schedules", "list").want(t, 0, "Europe/Berlin  paused", "")
	b.run(t, "schedules", "run", "nightly", "--no-wait", "--once-key", "build 7").want(t, 0, "once key   build 7", "")
	again := b.run(t, "schedules", "run", "nightly", "--no-wait", "--once-key", "build 7")
	again.want(t, 0, "Run 1 was asked for with this key before; no other is made.", "")
	b.run(t, "schedules", "run", "nightly", "--no-wait").want(t, 2, "", "run 1 of schedule nightly is still waiting")
	b.run(t, "schedules", "resume", "nightly").want(t, 0, "next", "")
	b.run(t, "schedules", "list").want(t, 0, "run 1 waiting", "")
	b.run(t, "runs", "list", "--schedule", "nightly").want(t, 0, "nightly", "")
	b.run(t, "runs", "list", "--schedule", "other").want(t, 0, "No runs.", "")
	b.run(t, "replay", "--exact", "--yes", "--no-wait", "--once-key", "build 8", "--source", "stripe").want(t, 0, "once key", "")
	b.run(t, "replay", "--exact", "--yes", "--no-wait", "--once-key", "build 8", "--source", "stripe").want(t, 0, "Run 2 was asked for with this key before", "")
	b.run(t, "replay", "--exact", "--yes", "--no-wait", "--once-key", "build 8").want(t, 2, "", "was used for run 2, which asked for something else (replay source=stripe)")
	b.run(t, "rebuild", "--source", "stripe", "--no-wait", "--once-key", "build 9").want(t, 0, "once key", "")
	b.run(t, "rebuild", "--source", "stripe", "--no-wait", "--once-key", "build 9").want(t, 0, "was asked for with this key before", "")
	b.run(t, "rebuild", "--source", "stripe", "--no-wait", "--once-key", "build 9", "--yes").want(t, 2, "", "which asked for something else (rebuild source=stripe)")
	b.run(t, "rebuild", "--source", "stripe", "--no-wait").want(t, 2, "", "is an open rebuild of this source")
	b.run(t, "retention", "run", "--bodies", "30", "--yes", "--no-wait", "--once-key", "day 1", "--reason", "the disk").want(t, 0, "once key", "")
	b.run(t, "retention", "run", "--bodies", "30", "--yes", "--no-wait", "--once-key", "day 1").want(t, 0, "was asked for with this key before", "")
	b.run(t, "retention", "run", "--bodies", "31", "--yes", "--no-wait", "--once-key", "day 1").want(t, 2, "", "which asked for something else (retention bodies=30")
	b.run(t, "retention", "run", "--bodies", "31", "--yes", "--no-wait").want(t, 2, "", "open already")
	var s runs.Scheduled
	if r := b.run(t, "schedules", "show", "nightly", "-o", "json"); json.Unmarshal([]byte(r.out), &struct {
		Last *int64 `json:"last_run"`
	}{&s.Last}) != nil || s.Last != 1 {
		t.Errorf("%+v", r)
	}
}

// What is wrong with a schedule is said with its line, before a daemon starts.
func TestConfigCheckReadsSchedules(t *testing.T) {
	t.Parallel()
	file := filepath.Join(t.TempDir(), "postern.yaml")
	if err := os.WriteFile(file, []byte("database: {url: postgres://x}\nschedules:\n  a: {job: replay, cron: '@daily', parameters: {sauce: x}}\n  b: {job: nothing, cron: '@daily'}\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	r := execute(t.Context(), "", "config", "check", file)
	for _, want := range []string{file + `:3: schedules.a.parameters: `, `no parameter "sauce"`, file + `:4: schedules.b.job: job "nothing" cannot be asked for`} {
		if r.status != 1 || !strings.Contains(r.errs, want) {
			t.Errorf("want %s in %+v", want, r)
		}
	}
}
