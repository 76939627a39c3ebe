package admin_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
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

// post sends a body to the handler and decodes the JSON response, which the OpenAPI document must
// describe.
func (b *testBundle) post(t *testing.T, path, kind, text string) (status int, body map[string]any) {
	t.Helper()
	req := httptest.NewRequest(http.MethodPost, "http://127.0.0.1:8081"+path, strings.NewReader(text))
	req.Header.Set("Content-Type", kind)
	res := httptest.NewRecorder()
	b.handler.ServeHTTP(res, req)
	checkDescribed(t, req, text, res)
	if err := json.Unmarshal(res.Body.Bytes(), &body); err != nil {
		t.Fatalf("%s: %v in %s", path, err, res.Body)
	}
	return res.Code, body
}

// wantResponses sends requests in order, each a method, a path below /api/v1 and a body. The
// expected responses are a status and a text in them; an error has it in its detail.
func (b *testBundle) wantResponses(t *testing.T, all [][2]string) {
	t.Helper()
	for _, c := range all {
		method, request, _ := strings.Cut(c[0], " ")
		path, text, _ := strings.Cut(request, " ")
		want, says, _ := strings.Cut(c[1], " ")
		var status int
		var body map[string]any
		if method == http.MethodGet {
			status, body = b.get(t, "/api/v1"+path)
		} else {
			status, body = b.post(t, "/api/v1"+path, "application/json", text)
		}
		got := fmt.Sprint(body)
		if status >= 400 {
			got = fmt.Sprint(body["detail"])
		}
		if fmt.Sprint(status) != want || !strings.Contains(got, says) {
			t.Errorf("%s: %d %v, want %s", c[0], status, body, c[1])
		}
	}
}

// A replay is previewed, queued, shown and changed. It waits for a processor.
func TestReplay_params_startRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for i := range 5 {
		b.append(t, "stripe", fmt.Sprint("k", i))
	}
	const kind = "application/json; charset=utf-8"
	if status, p := b.post(t, "/api/v1/replays", kind,
		`{"source": "stripe", "preview": true, "exact": true}`); status != 200 || p["events"] != 5.0 ||
		p["objects"] != 1.0 || p["exact"] != true {
		t.Errorf("preview: %d %v", status, p)
	}
	status, run := b.post(t, "/api/v1/replays", kind,
		`{"source": "stripe", "type": "order.*", "since": "1h", "rate": 12.5, "reason": "a test"}`)
	if status != 200 || run["run"] != 1.0 || run["status"] != "queued" || run["reason"] != "a test" ||
		!strings.HasPrefix(run["actor"].(string), "admin API") {
		t.Fatalf("%d %v", status, run)
	}
	params, _ := run["params"].(map[string]any)
	if paramsOf, _ := params["input"].(map[string]any); params["rate"] != 12.5 || paramsOf["type"] != "order.*" ||
		paramsOf["since"] != "1h" || len(paramsOf) != 3 {
		t.Errorf("params %v", params)
	}
	b.wantResponses(t, [][2]string{
		{"GET /runs?status=queued", "200 run:1 "},
		{"POST /runs/1/pause", "200 status:paused"},
		{"POST /runs/1/resume", "200 status:queued"},
		{"POST /runs/1/cancel", "200 status:cancelled"},
		{"POST /runs/1/resume", "400 is cancelled"},
	})
	if status, run := b.get(t, "/api/v1/runs/1"); status != 200 || run["status"] != "cancelled" ||
		run["ended_at"] == nil {
		t.Errorf("%d %v", status, run)
	}
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
	})
	if _, run := b.get(t, "/api/v1/runs/1"); run["status"] != "queued" || run["approval_reason"] != "agreed" ||
		!strings.HasPrefix(run["approved_by"].(string), "admin API") {
		t.Errorf("%v", run)
	}
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
	})
	if _, list := b.get(t, "/api/v1/runs"); len(list["items"].([]any)) != 0 {
		t.Errorf("%v", list)
	}
}

// A dry run over HTTP returns the changes, within limits.
func TestDryRun_replay_listsDifferences(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "k1")
	const kind = "application/json"
	if status, p := b.post(t, "/api/v1/replays", kind, `{"dry_run": true}`); status != 400 ||
		!strings.Contains(p["detail"].(string), "this process has no sources") {
		t.Errorf("%d %v", status, p)
	}
	b.handler = admin.New(admin.Options{Pool: b.role(t, "operator"),
		Endpoints: (&config.Config{Sources: config.DemoSources()}).Endpoints})
	status, p := b.post(t, "/api/v1/replays", kind, `{"dry_run": true, "source": "stripe"}`)
	counts, _ := p["counts"].(map[string]any)
	if status != 200 || p["dry_run"] != true || counts["processed"] != 1.0 || len(p["objects"].([]any)) != 0 {
		t.Errorf("%d %v", status, p)
	}
	b.db.Exec(t, `INSERT INTO events SELECT id + n, source, event_id, event_type, account, object_type, object_id,
		occurred_at, received_at, origin, api_version, headers,
  verification, fingerprint, id + n, 0, body FROM events, generate_series(1, 5000) n`)
	if status, p := b.post(t, "/api/v1/replays", kind, `{"dry_run": true}`); status != 422 ||
		!strings.Contains(p["detail"].(string), "at most 5000") {
		t.Errorf("%d %v", status, p)
	}
	if _, list := b.get(t, "/api/v1/runs"); len(list["items"].([]any)) != 0 {
		t.Errorf("%v", list)
	}
}

// Dry runs over HTTP use limited memory: the states of each are limited, and only one runs at a
// time.
func TestDryRun_largeReplay_isBounded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.handler = admin.New(admin.Options{Pool: b.role(t, "operator"),
		Endpoints: (&config.Config{Sources: config.DemoSources()}).Endpoints})
	const kind, all = "application/json", `{"dry_run": true, "source": "stripe"}`
	large := make([]events.Delivery, 34)
	for i := range large {
		body := fmt.Sprintf(`{"id":"evt_%d","object":"event","api_version":"2025-03-31.basil","created":1767323045,`+
			`"type":"customer.updated","livemode":false,
"data":{"object":{"id":"cus_%d","object":"customer","description":"%s"}}}`, i, i, strings.Repeat("x", 1<<20))
		large[i] = events.Delivery{Source: b.known.Number["stripe"], ReceivedAt: time.Now(),
			Origin: events.OriginWebhook, Headers: []byte(`{}`), Verification: []byte(`{}`), Body: []byte(body),
			Events: []provider.Event{{Key: fmt.Sprintf("evt_%d", i), Type: "customer.updated", ObjectType: "customer",
				ObjectID: fmt.Sprintf("cus_%d", i)}}}
	}
	receipts, err := events.Append(t.Context(), b.db.Pool, large)
	must(t, err)
	if status, p := b.post(t, "/api/v1/replays", kind, all); status != 422 || !strings.Contains(p["detail"].(string),
		"32 MiB of states") {
		t.Errorf("%d %v", status, p["detail"])
	}
	tx := testkit.OpenTx(t, b.db.Pool, `LOCK TABLE objects`) // a dry run waits for this lock
	one := fmt.Sprintf(`{"dry_run": true, "ids": "%d"}`, receipts[0][0].ID)
	answers := make(chan int, 2)
	var asking sync.WaitGroup
	for range 2 {
		asking.Go(func() {
			status, p := b.post(t, "/api/v1/replays", kind, one)
			if status == 429 && !strings.Contains(p["detail"].(string), "one dry run at a time") {
				t.Error(p)
			}
			answers <- status
		})
	}
	first := <-answers
	must(t, tx.Rollback(t.Context()))
	asking.Wait()
	if second := <-answers; first != 429 || second != 200 {
		t.Errorf("answered %d and %d", first, second)
	}
	if status, _ := b.post(t, "/api/v1/replays", kind, one); status != 200 {
		t.Errorf("the next one: %d", status)
	}
}

// A retry is previewed and queued.
func TestRetry_params_startRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.append(t, "stripe", "k1")
	b.append(t, "stripe", "k2")
	b.db.Exec(t, `INSERT INTO outcomes SELECT id, 0, source, 0, '', '', '', 'dead', 'no such thing', NULL, NULL, 9,
		NULL, now(), 1 FROM events WHERE id = $1`, id)
	const kind = "application/json"
	if status, p := b.post(t, "/api/v1/retries", kind, `{"preview": true}`); status != 200 || p["events"] != 1.0 ||
		p["exact"] != true {
		t.Errorf("%d %v", status, p)
	}
	status, run := b.post(t, "/api/v1/retries", kind, `{"event": "k1", "failure": "no such", "reason": "repaired"}`)
	if status != 200 || run["job"] != "retry" || run["expected"] != 1.0 || run["reason"] != "repaired" {
		t.Errorf("%d %v", status, run)
	}
	b.wantResponses(t, [][2]string{
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
	must(t, p.Tick(t.Context()))
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
	const kind = "application/json"
	status, page := b.get(t, "/api/v1/schedules?limit=1")
	items, _ := page["items"].([]any)
	if status != 200 || len(items) != 1 || items[0].(map[string]any)["schedule"] != "nightly" ||
		page["next_cursor"] == nil {
		t.Fatalf("%d %v", status, page)
	}
	_, page = b.get(t, "/api/v1/schedules?cursor="+page["next_cursor"].(string))
	if page["items"].([]any)[0].(map[string]any)["schedule"] != "other" {
		t.Errorf("%v", page)
	}
	if status, s := b.get(t, "/api/v1/schedules/nightly"); status != 200 || s["next"] == nil || s["planned"] != true ||
		s["last_run"] != 0.0 {
		t.Errorf("%d %v", status, s)
	}
	if status, s := b.post(t, "/api/v1/schedules/nightly/pause", kind, ""); status != 200 ||
		!strings.HasPrefix(s["paused_by"].(string), "admin API") || s["next"] != nil {
		t.Errorf("%d %v", status, s)
	}
	if status, s := b.post(t, "/api/v1/schedules/nightly/resume", kind, ""); status != 200 || s["paused_at"] != nil ||
		s["next"] == nil {
		t.Errorf("%d %v", status, s)
	}
	status, run := b.post(t, "/api/v1/schedules/nightly/run", kind, `{"reason": "now", "idempotency_key": "k"}`)
	params, _ := run["params"].(map[string]any)
	if status != 200 || run["run"] != 1.0 || run["schedule"] != "nightly" || run["reason"] != "now" ||
		params["rate"] != 5.0 || params["publish"] != true || run["earlier"] != nil {
		t.Errorf("%d %v", status, run)
	}
	if status, run := b.post(t, "/api/v1/schedules/nightly/run", kind, `{"idempotency_key": "k"}`); status != 200 ||
		run["run"] != 1.0 || run["earlier"] != true {
		t.Errorf("%d %v", status, run)
	}
	b.wantResponses(t, [][2]string{{"POST /schedules/other/run {}", "200 status:awaiting_approval"}})
	first := `{"source": "stripe", "idempotency_key": "r", "reason": "a", "since": "1h"}`
	again := `{"idempotency_key": "r", "since": "1h", "source": "stripe", "exact": true, "reason": "b"}`
	if status, run := b.post(t, "/api/v1/replays", kind, first); status != 200 || run["run"] != 3.0 ||
		run["earlier"] != nil {
		t.Errorf("%d %v", status, run)
	}
	if status, run := b.post(t, "/api/v1/replays", kind, again); status != 200 || run["run"] != 3.0 ||
		run["earlier"] != true || run["reason"] != "a" {
		t.Errorf("%d %v", status, run)
	}
	if status, list := b.get(t, "/api/v1/runs?schedule=nightly"); status != 200 || ids(list, "run") != "1" {
		t.Errorf("%d %v", status, list)
	}
	status, run = b.post(t, "/api/v1/schedules/zforget/run", kind, `{}`)
	if params, _ = run["params"].(map[string]any); status != 200 || params["bodies"] != 30.0 ||
		params["runs"] != 90.0 || params["at"] == nil || params["folder"] != "/srv/archive" ||
		params["export"] != true {
		t.Errorf("%d %v", status, run)
	}
	b.wantResponses(t, [][2]string{
		{`POST /schedules/none/run {}`, "404 schedule none"},
		{`POST /schedules/none/pause`, "404 schedule none"},
		{`POST /schedules/nightly/run {}`, "400 run 1 of schedule nightly is still queued"},
		{`POST /schedules/nightly/run {"rate": 5}`, "400 does not exist"},
		{`POST /replays {"source": "stripe", "idempotency_key": "r"}`,
			"400 was used for run 3, which has other parameters (replay since=1h&source=stripe)"},
		{`POST /replays {"source": "stripe", "idempotency_key": "r", "since": "1h", "publish": true}`,
			"400 was used for run 3"},
		{`POST /replays {"idempotency_key": "k"}`, "400 was used for run 1"},
	})
}

// A rebuild is queued, compared and changed. It waits for a processor.
func TestRebuild_params_startRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "k1")
	const kind = "application/json"
	status, run := b.post(t, "/api/v1/rebuilds", kind, `{"source": "stripe", "type": "order", "reason": "a test"}`)
	if status != 200 || run["run"] != 1.0 || run["job"] != "rebuild" || run["status"] != "queued" ||
		run["expected"] != 1.0 {
		t.Fatalf("%d %v", status, run)
	}
	if status, page := b.get(t, "/api/v1/rebuilds/1/compare?limit=5"); status != 200 ||
		len(page["items"].([]any)) != 0 || page["next_cursor"] != nil ||
		page["counts"].(map[string]any)["same"] != 0.0 {
		t.Errorf("%d %v", status, page)
	}
	if status, run := b.post(t, "/api/v1/rebuilds/1/swap", kind, ""); status != 200 ||
		run["params"].(map[string]any)["swap"] != true {
		t.Errorf("%d %v", status, run)
	}
	b.wantResponses(t, [][2]string{
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
