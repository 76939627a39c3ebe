package admin_test

import (
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/runs"
)

// plan makes schedules known, as a processor does that has them in its configuration.
func (b *testBundle) plan(t *testing.T, schedules ...runs.Schedule) {
	t.Helper()
	p := &runs.Planner{Pool: b.db.Role(t, "processor"), Jobs: admin.Jobs, Logger: slog.New(slog.DiscardHandler), Every: time.Hour}
	p.Replace(schedules)
	if err := p.Tick(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// A schedule is listed, shown, paused, resumed and run now; a key is one run over all that ask.
func TestSchedules(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "k")
	s := runs.Schedule{Name: "nightly", Job: "replay", Cron: "30 3 * * *", TimeZone: "UTC", Overlap: runs.OverlapSkip, Missed: runs.MissedRun,
		Parameters: map[string]string{"source": "stripe", "rate": "5", "publish": "true"}}
	other := s
	other.Name, other.Parameters = "other", map[string]string{"mode": "force"}
	forget := s
	forget.Name, forget.Job, forget.Parameters = "zforget", "retention", map[string]string{"bodies": "30", "runs": "90", "export": "/srv/archive"}
	b.plan(t, s, other, forget)
	const kind = "application/json"
	status, page := b.get(t, "/api/v1/schedules?limit=1")
	items, _ := page["items"].([]any)
	if status != 200 || len(items) != 1 || items[0].(map[string]any)["schedule"] != "nightly" || page["next_cursor"] == nil {
		t.Fatalf("%d %v", status, page)
	}
	if _, page = b.get(t, "/api/v1/schedules?cursor="+page["next_cursor"].(string)); page["items"].([]any)[0].(map[string]any)["schedule"] != "other" {
		t.Errorf("%v", page)
	}
	if status, s := b.get(t, "/api/v1/schedules/nightly"); status != 200 || s["next"] == nil || s["planned"] != true || s["last_run"] != 0.0 {
		t.Errorf("%d %v", status, s)
	}
	if status, s := b.post(t, "/api/v1/schedules/nightly/pause", kind, ""); status != 200 || !strings.HasPrefix(s["paused_by"].(string), "admin API") || s["next"] != nil {
		t.Errorf("%d %v", status, s)
	}
	if status, s := b.post(t, "/api/v1/schedules/nightly/resume", kind, ""); status != 200 || s["paused_at"] != nil || s["next"] == nil {
		t.Errorf("%d %v", status, s)
	}
	status, run := b.post(t, "/api/v1/schedules/nightly/run", kind, `{"reason": "now", "once_key": "k"}`)
	asked, _ := run["asked"].(map[string]any)
	if status != 200 || run["run"] != 1.0 || run["schedule"] != "nightly" || run["reason"] != "now" || asked["rate"] != 5.0 || asked["publish"] != true || run["earlier"] != nil {
		t.Errorf("%d %v", status, run)
	}
	if status, run := b.post(t, "/api/v1/schedules/nightly/run", kind, `{"once_key": "k"}`); status != 200 || run["run"] != 1.0 || run["earlier"] != true {
		t.Errorf("%d %v", status, run)
	}
	if status, run := b.post(t, "/api/v1/schedules/other/run", kind, `{}`); status != 200 || run["status"] != "proposed" {
		t.Errorf("%d %v", status, run)
	}
	first := `{"source": "stripe", "once_key": "r", "reason": "a", "since": "1h"}`
	again := `{"once_key": "r", "since": "1h", "source": "stripe", "exact": true, "reason": "b"}`
	if status, run := b.post(t, "/api/v1/replays", kind, first); status != 200 || run["run"] != 3.0 || run["earlier"] != nil {
		t.Errorf("%d %v", status, run)
	}
	if status, run := b.post(t, "/api/v1/replays", kind, again); status != 200 || run["run"] != 3.0 || run["earlier"] != true || run["reason"] != "a" {
		t.Errorf("%d %v", status, run)
	}
	if status, list := b.get(t, "/api/v1/runs?schedule=nightly"); status != 200 || len(list["items"].([]any)) != 1 {
		t.Errorf("%d %v", status, list)
	}
	status, run = b.post(t, "/api/v1/schedules/zforget/run", kind, `{}`)
	if asked, _ = run["asked"].(map[string]any); status != 200 || asked["bodies"] != 30.0 || asked["runs"] != 90.0 || asked["at"] == nil || asked["folder"] != "/srv/archive" || asked["export"] != true {
		t.Errorf("%d %v", status, run)
	}
	for _, c := range []struct {
		path, body string
		status     int
		says       string
	}{
		{"/api/v1/schedules/none/run", `{}`, 404, "schedule none"},
		{"/api/v1/schedules/none/pause", ``, 404, "schedule none"},
		{"/api/v1/schedules/nightly/run", `{}`, 400, "run 1 of schedule nightly is still waiting"},
		{"/api/v1/schedules/nightly/run", `{"rate": 5}`, 400, "no parameter"},
		{"/api/v1/schedules/nightly/run?once_key=x", `{}`, 400, "in the body"},
		{"/api/v1/replays", `{"source": "stripe", "once_key": "r"}`, 400, "was used for run 3, which asked for something else (replay since=1h&source=stripe)"},
		{"/api/v1/replays", `{"source": "stripe", "once_key": "r", "since": "1h", "publish": true}`, 400, "was used for run 3"},
		{"/api/v1/replays", `{"once_key": "k"}`, 400, "was used for run 1"},
	} {
		if status, p := b.post(t, c.path, kind, c.body); status != c.status || !strings.Contains(p["detail"].(string), c.says) {
			t.Errorf("%s %s: %d %v", c.path, c.body, status, p)
		}
	}
	if status, _ := b.post(t, "/api/v1/schedules/nightly/run", "text/plain", `{}`); status != 415 {
		t.Errorf("from a foreign page: %d", status)
	}
}
