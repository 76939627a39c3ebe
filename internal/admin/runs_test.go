package admin_test

import (
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
)

// A replay is previewed, queued, shown and changed. It waits for a processor.
func TestReplay_params_startRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 5 {
		b.append(t, "stripe", fmt.Sprint("k", i))
	}
	b.wantResponses(t, [][2]string{
		{`POST /replays {"source": "stripe", "preview": true, "exact": true}`,
			`200 {"events": 5, "objects": 1, "exact": true}`},
		{`POST /replays {"source": "stripe", "type": "order.*", "since": "1h", "rate": 12.5, "reason": "a test"}`,
			`200 {"run": 1, "status": "queued", "reason": "a test", "actor": "admin API…", "params": {"rate": 12.5}}`},
		{"GET /runs/1", "200 input:map[since:1h source:stripe type:order.*]"},
		{"GET /runs?status=queued", "200 run:1 "},
		{"POST /runs/1/pause", "200 status:paused"},
		{"POST /runs/1/resume", "200 status:queued"},
		{"POST /runs/1/cancel", "200 status:cancelled"},
		{"POST /runs/1/resume", "400 is cancelled"},
		{"GET /runs/1", `200 {"status": "cancelled", "ended_at": "…"}`},
	})
}

// A run with force starts after its approval.
func TestApproveRun_runAwaitingApproval_starts(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "k")
	b.wantResponses(t, [][2]string{
		{`POST /replays {"mode": "force", "publish": false}`, "200 status:awaiting_approval"},
		{`POST /runs/1/approve`, "400 give a reason"},
		{`POST /runs/1/approve {"reason": "yes", "actor": "root"}`, `400 parameter "actor" does not exist`},
		{`POST /runs/1/approve {"reason": "agreed"}`, "200 status:queued"},
		{`POST /runs/1/approve {"reason": "agreed"}`, "400 does not await approval"},
		{`GET /runs/1`, `200 {"status": "queued", "approval_reason": "agreed", "approved_by": "admin API…"}`},
	})
}

func TestReplay_wrongParams_areRejected(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.wantResponses(t, [][2]string{
		{`POST /replays {"source": "nobody"}`, "400 is not known; the known sources are"},
		{`POST /replays {"rate": -1}`, "400 events per second"},
		{`POST /replays {"rate": "NaN"}`, "400 events per second"},
		{`POST /replays {"ids": "evt_1"}`, "400 not an id of Postern"},
		{`POST /replays {"ids": ["1"]}`, "400 give a text"},
		{`POST /replays {"limit": 5}`, "400 does not exist"},
		{`POST /replays [`, "400 not a JSON object"},
		{`POST /replays`, "400 not a JSON object"},
		{`POST /replays null`, "400 not a JSON object"},
		{`POST /replays {} {"preview": true}`, "400 continues after"},
		{`POST /replays {"preview": 1}`, "400 give true or false"},
		{`POST /replays?preview=true {}`, "400 in the body"},
		{`POST /replays {"ids": "17", "object_type": "order", "object_id": "7"}`, "400 give one of them"},
		{`POST /replays {"rate": 0.01}`, "400 at least 1"},
		{`POST /runs/7/pause`, "404 run 7"},
		{`POST /runs/x/pause`, "404"},
		{`GET /runs`, `200 {"items": []}`},
	})
}

// A dry run over HTTP returns the changes, within limits.
func TestDryRun_replay_listsDifferences(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "k1")
	b.wantResponses(t, [][2]string{{`POST /replays {"dry_run": true}`, "400 this process has no sources"}})
	b.handler = b.withSources(t)
	b.wantResponses(t, [][2]string{{`POST /replays {"dry_run": true, "source": "stripe"}`,
		`200 {"dry_run": true, "counts": {"processed": 1}, "objects": []}`}})
	b.db.Exec(t, `INSERT INTO events SELECT id + n, source, event_id, event_type, account, object_type, object_id,
		occurred_at, received_at, origin, api_version, headers,
  verification, fingerprint, id + n, 0, body FROM events, generate_series(1, 5000) n`)
	b.wantResponses(t, [][2]string{{`POST /replays {"dry_run": true}`, "422 at most 5000"},
		{"GET /runs", `200 {"items": []}`}})
}

// withSources is the API of a process with sources.
func (b *testBundle) withSources(t *testing.T) http.Handler {
	t.Helper()
	return admin.New(admin.Options{Pool: b.role(t, "operator"),
		Endpoints: (&config.Config{Sources: config.DemoSources()}).Endpoints})
}

// Dry runs over HTTP use limited memory: the states of each are limited, and only one runs at a
// time.
func TestDryRun_largeReplay_isBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.handler = b.withSources(t)
	large := make([]events.Delivery, 34)
	for i := range large {
		body := fmt.Sprintf(`{"id":"evt_%d","object":"event","api_version":"2025-03-31.basil","created":1767323045,`+
			`"type":"customer.updated","livemode":false,
"data":{"object":{"id":"cus_%d","object":"customer","description":"%s"}}}`, i, i, strings.Repeat("x", 1<<20))
		large[i] = b.delivery("stripe", body, provider.Event{Key: fmt.Sprint("evt_", i), Type: "customer.updated",
			ObjectType: "customer", ObjectID: fmt.Sprint("cus_", i)})
	}
	stored := b.store(t, large...)
	b.wantResponses(t, [][2]string{{`POST /replays {"dry_run": true, "source": "stripe"}`, "422 32 MiB of states"}})
	tx := testkit.OpenTx(t, b.db.Pool, `LOCK TABLE objects`) // a dry run waits for this lock
	one := fmt.Sprintf(`{"dry_run": true, "ids": "%d"}`, stored[0])
	answers := make(chan int, 2)
	var asking sync.WaitGroup
	for range 2 {
		asking.Go(func() {
			status, p := b.post(t, "/replays", one)
			if status == 429 && !strings.Contains(p["detail"].(string), "one dry run at a time") {
				t.Error(p)
			}
			answers <- status
		})
	}
	first := <-answers
	testkit.Must(t, tx.Rollback(t.Context()))
	asking.Wait()
	if second := <-answers; first != 429 || second != 200 {
		t.Errorf("answered %d and %d", first, second)
	}
	b.wantResponses(t, [][2]string{{"POST /replays " + one, "200"}})
}

// A retry is previewed and queued.
func TestRetry_params_startRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.append(t, "stripe", "k1")
	b.append(t, "stripe", "k2")
	b.db.Exec(t, `INSERT INTO outcomes SELECT id, 0, source, 0, '', '', '', 'dead', 'no such thing', NULL, NULL, 9,
		NULL, now(), 1 FROM events WHERE id = $1`, id)
	b.wantResponses(t, [][2]string{
		{`POST /retries {"preview": true}`, `200 {"events": 1, "exact": true}`},
		{`POST /retries {"event": "k1", "failure": "no such", "reason": "repaired"}`,
			`200 {"job": "retry", "expected": 1, "reason": "repaired"}`},
		{`POST /retries {"event": "none"}`, "404"},
		{`POST /retries {"status": "applied"}`, "400 failed, dead"},
		{`POST /retries {"run": 99}`, "404 run 99"},
	})
}

// plan registers schedules, as a processor with them in its configuration does.
func (b *testBundle) plan(t *testing.T, schedules ...runs.Schedule) {
	t.Helper()
	p := &runs.Planner{Pool: b.role(t, "processor"), Jobs: operations.Jobs, Logger: slog.New(slog.DiscardHandler),
		Interval: time.Hour}
	p.Replace(schedules)
	testkit.Must(t, p.Tick(t.Context()))
}

// A schedule is listed, shown, paused, resumed and run now. An idempotency key starts one run over
// all requests.
func TestSchedules_changes_areApplied(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "k")
	s := runs.Schedule{Name: "nightly", Job: "replay", Cron: "30 3 * * *", TimeZone: "UTC", Overlap: runs.OverlapSkip,
		Missed:     runs.MissedRun,
		Parameters: map[string]string{"source": "stripe", "rate": "5", "publish": "true"}}
	other := s
	other.Name, other.Parameters = "other", map[string]string{"mode": "force"}
	forget := s
	forget.Name, forget.Job, forget.Parameters = "zforget", "retention", map[string]string{"bodies": "30", "runs": "90",
		"export": "/srv/archive"}
	b.plan(t, s, other, forget)
	testkit.Equal(t, "schedules by page", []string{"nightly", "other", "zforget"},
		b.pages(t, "/schedules?limit=1", "schedule"))
	b.wantResponses(t, [][2]string{
		{"GET /schedules/nightly", `200 {"planned": true, "last_run": 0, "next": "…"}`},
		{"POST /schedules/nightly/pause", `200 {"paused_by": "admin API…", "next": null}`},
		{"POST /schedules/nightly/resume", `200 {"paused_at": null, "next": "…"}`},
		{`POST /schedules/nightly/run {"reason": "now", "idempotency_key": "k"}`,
			`200 {"run": 1, "schedule": "nightly", "reason": "now", "params": {"rate": 5, "publish": true},
				"earlier": null}`},
		{`POST /schedules/nightly/run {"idempotency_key": "k"}`, `200 {"run": 1, "earlier": true}`},
		{`POST /schedules/other/run {}`, "200 status:awaiting_approval"},
		{`POST /replays {"source": "stripe", "idempotency_key": "r", "reason": "a", "since": "1h"}`,
			`200 {"run": 3, "earlier": null}`},
		{`POST /replays {"idempotency_key": "r", "since": "1h", "source": "stripe", "exact": true, "reason": "b"}`,
			`200 {"run": 3, "earlier": true, "reason": "a"}`},
		{`GET /runs?schedule=nightly`, `200 {"items": [{"run": 1}]}`},
		{`POST /schedules/none/run {}`, "404 schedule none"},
		{`POST /schedules/none/pause`, "404 schedule none"},
		{`POST /schedules/nightly/run {}`, "400 run 1 of schedule nightly is still queued"},
		{`POST /schedules/nightly/run {"rate": 5}`, "400 does not exist"},
		{`POST /replays {"source": "stripe", "idempotency_key": "r"}`,
			"400 was used for run 3, which has other parameters (replay since=1h&source=stripe)"},
		{`POST /replays {"source": "stripe", "idempotency_key": "r", "since": "1h", "publish": true}`,
			"400 was used for run 3"},
		{`POST /replays {"idempotency_key": "k"}`, "400 was used for run 1"},
		{`POST /schedules/zforget/run {}`, `200 {"params": {"bodies": 30, "runs": 90, "at": "…",
			"folder": "/srv/archive", "export": true}}`},
	})
}

// A rebuild is queued, compared and changed. It waits for a processor.
func TestRebuild_params_startRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "k1")
	b.wantResponses(t, [][2]string{
		{`POST /rebuilds {"source": "stripe", "type": "order", "reason": "a test"}`,
			`200 {"run": 1, "job": "rebuild", "status": "queued", "expected": 1}`},
		{`GET /rebuilds/1/compare?limit=5`, `200 {"items": [], "next_cursor": null, "counts": {"same": 0}}`},
		{`POST /rebuilds/1/swap`, `200 {"params": {"swap": true}}`},
		{`POST /rebuilds {}`, "400 name the source"},
		{`POST /rebuilds {"source": "nobody"}`, "400 is not known; the known sources are"},
		{`POST /rebuilds {"source": "stripe", "swap": "yes"}`, "400 give true or false"},
		{`POST /rebuilds {"source": "stripe", "since": "1h"}`, "400 does not exist"},
		{`POST /rebuilds {"source": "stripe"}`, "400 run 1 is an open rebuild"},
		{`POST /rebuilds/7/swap`, "404 run 7"},
		{`GET /rebuilds/1/compare?limit=0`, "400 1 to 1000"},
		{`POST /rebuilds/1/discard`, "200 status:cancelled"},
		{`GET /rebuilds/1/compare`, "400 cancelled"},
		{`GET /objects?outdated=true`, "200"},
	})
}
