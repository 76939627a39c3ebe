package admin_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/versioning"
)

func TestMain(m *testing.M) { testkit.Main(m) }

type testBundle struct {
	db      *testkit.DB
	mu      sync.Mutex // for roles
	roles   map[string]*pgxpool.Pool
	known   events.Sources
	handler http.Handler
	ready   error
}

func setup(t *testing.T) *testBundle {
	t.Helper()
	b := &testBundle{db: testkit.Database(t), roles: map[string]*pgxpool.Pool{}}
	var err error
	if b.known, err = events.RegisterSources(t.Context(), b.db.Pool,
		map[string]string{"stripe": "stripe", "shop": "shopify"}); err != nil {
		t.Fatal(err)
	}
	b.handler = b.serve(t, b.role(t, "operator"))
	return b
}

// role returns the pool of a role; all callers of a test share it.
func (b *testBundle) role(t *testing.T, name string) *pgxpool.Pool {
	t.Helper()
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.roles[name] == nil {
		b.roles[name] = b.db.Role(t, name)
	}
	return b.roles[name]
}

func (b *testBundle) serve(t *testing.T, pool *pgxpool.Pool) http.Handler {
	return admin.New(admin.Options{Pool: pool, Logger: testkit.Logger(t),
		Ready:       func(context.Context) error { return b.ready },
		Metrics:     http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "postern_up 1\n") }),
		Reprocessor: b.reprocessor(t)})
}

// get sends a request to the handler and decodes the JSON response, which the OpenAPI document must
// describe.
func (b *testBundle) get(t *testing.T, path string) (status int, body map[string]any) {
	t.Helper()
	req := httptest.NewRequest(http.MethodGet, "http://127.0.0.1:8081"+path, nil)
	res := httptest.NewRecorder()
	b.handler.ServeHTTP(res, req)
	checkDescribed(t, req, "", res)
	if err := json.Unmarshal(res.Body.Bytes(), &body); err != nil {
		t.Fatalf("%s: %v in %s", path, err, res.Body)
	}
	if kind := res.Header().Get("Content-Type"); res.Code >= 400 && kind != "application/problem+json" {
		t.Errorf("%s: a problem of type %s", path, kind)
	}
	return res.Code, body
}

func (b *testBundle) append(t *testing.T, source, key string) int64 {
	t.Helper()
	receipts, err := events.Append(t.Context(), b.db.Pool,
		[]events.Delivery{{Source: b.known.Number[source], ReceivedAt: time.Now(), Origin: events.OriginWebhook,
			Headers: []byte(`{}`), Verification: []byte(`{}`), Body: []byte(key),
			Events: []provider.Event{{Key: key, Type: "order.updated", ObjectType: "order", ObjectID: "7"}}}})
	must(t, err)
	return receipts[0][0].ID
}

// object inserts one object with a state. Objects are inserted one by one, so that their order is
// known.
func (b *testBundle) object(t *testing.T, source, account, kind, id string, ambiguous bool) {
	t.Helper()
	_, err := b.db.Pool.Exec(t.Context(), `
		INSERT INTO objects (source, account, object_type, object_id, version_final, version_at, version_seen,
			version_rank, tied_states, overflow, time_from, time_to,
		  refetch_after, ambiguous, deleted, state_hash, exact_hash, state, sanitized, last_event_id, revision,
		  	rule_version, created_at, updated_at)
		VALUES ($1, $2, $3, $4, false, CASE WHEN $5 THEN -9223372036854775808 ELSE 17 END, 0, CASE WHEN $5 THEN 0
			ELSE 1 END, '[]', false, 0, 0, CASE WHEN $5 THEN 1790000000000001 ELSE 0 END, $5, false,
		  '\x00', '\x00', '{"a": 1}', false, 1152921504606846977, 1, 1, '2026-01-02T03:04:05.6Z',
		  	'2026-01-02T03:04:05.6Z')`,
		b.known.Number[source], account, kind, id, ambiguous)
	must(t, err)
}

func (b *testBundle) outcome(t *testing.T, event int64, key versioning.Key, status string) {
	t.Helper()
	_, err := b.db.Pool.Exec(t.Context(), `INSERT INTO outcomes (event_id, run, source, object, account, object_type,
		object_id, status, reason, attempts, at, rule_version)
		VALUES ($1, 0, $2, $3, $4, $5, $6, $7, 'because', 1, now(), 1)`, event, key.Source, key.Hash(), key.Account,
		key.Type, key.ID, status)
	must(t, err)
}

// ids returns one member of each item of a list.
func ids(body map[string]any, member string) string {
	var all []string
	for _, item := range body["items"].([]any) {
		all = append(all, fmt.Sprint(item.(map[string]any)[member]))
	}
	return strings.Join(all, " ")
}

func TestRetention_policy_isShown(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "k")
	status, body := b.get(t, "/api/v1/retention")
	if parts, _ := body["partitions"].([]any); status != 200 || len(parts) == 0 ||
		parts[0].(map[string]any)["goes"] != "never" || body["policy"].(map[string]any)["bodies"] != 0.0 {
		t.Errorf("%d %v", status, body)
	}
	if status, _ := b.get(t, "/api/v1/retention?bodies=3"); status != 400 {
		t.Errorf("%d for a parameter that is none", status)
	}
}

func TestHandler_healthReadyMetrics_areServed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ready\n", "/metrics": "postern_up 1\n"} {
		res := httptest.NewRecorder()
		b.handler.ServeHTTP(res, httptest.NewRequest(http.MethodGet, "http://localhost"+path, nil))
		if res.Code != 200 || res.Body.String() != want {
			t.Errorf("%s: %d %q", path, res.Code, res.Body)
		}
	}
	b.ready = errors.New("PostgreSQL is away")
	if status, body := b.get(t, "/readyz"); status != 503 || body["detail"] != "PostgreSQL is away" {
		t.Errorf("not ready: %d %v", status, body)
	}
}

func TestLists_filters_selectRows(t *testing.T) {
	t.Parallel()
	b := setup(t)
	first, second := b.append(t, "stripe", "k1"), b.append(t, "shop", "k2")
	b.append(t, "shop", "k3")
	b.object(t, "stripe", "", "order", "7", false)
	b.object(t, "shop", "x.example", "order", "7", true)
	b.outcome(t, first, versioning.Key{Source: b.known.Number["stripe"], Type: "order", ID: "7"}, "applied")
	b.outcome(t, second, versioning.Key{Source: b.known.Number["shop"], Account: "x.example", Type: "order", ID: "7"},
		"dead")
	b.db.Exec(t, `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
		VALUES (1, 'wrong_signature', 'seen', '', now(), '{}', '', 0)`)
	for path, want := range map[string]string{
		"/api/v1/events":                                                 "event_id k3 k2 k1",
		"/api/v1/events?source=shop":                                     "event_id k3 k2",
		"/api/v1/events?type=order.*&limit=1":                            "event_id k3",
		"/api/v1/events?status=pending":                                  "event_id k3",
		"/api/v1/events?object_type=order&object_id=7":                   "event_id k2 k1",
		"/api/v1/events?object_type=order&object_id=7&source=stripe":     "event_id k1",
		"/api/v1/events?object_type=order&object_id=7&account=x.example": "event_id k2",
		"/api/v1/events?object_type=order&object_id=8":                   "event_id ",
		"/api/v1/events?since=1h&until=2099-01-01":                       "event_id k3 k2 k1",
		"/api/v1/events?until=1d":                                        "event_id ",
		"/api/v1/objects?ambiguous=true":                                 "account x.example",
		"/api/v1/objects?account=":                                       "source stripe",
		"/api/v1/objects?refetch_pending=false&type=order&id=7":          "source stripe",
		"/api/v1/outcomes?status=dead":                                   "account x.example",
		"/api/v1/outcomes?event=k1":                                      "status applied",
		"/api/v1/outcomes?object_type=order&object_id=7&run=0":           "status dead applied",
		"/api/v1/rejections?rejection_reason=wrong_signature":            "detail seen",
		"/api/v1/rejections?rejection_reason=stale_timestamp":            "detail ",
		"/api/v1/conflicts":                                              "id ",
	} {
		member, items, _ := strings.Cut(want, " ")
		if status, body := b.get(t, path); status != 200 || ids(body, member) != items {
			t.Errorf("%s: %d %v, want %s", path, status, body, want)
		}
	}
}

func TestLists_cursor_continuesPage(t *testing.T) {
	t.Parallel()
	b := changing(t)
	for n := range 6 {
		b.append(t, "stripe", fmt.Sprint("k", n))
	}
	for path, want := range map[string]string{
		"/api/v1/events?limit=3&cursor=":  "event_id k5 k4 k3 k2 k1 k0 k",
		"/api/v1/effects?limit=2&cursor=": "effect 5 4 3 2 1",
	} {
		member, items, _ := strings.Cut(want, " ")
		var got []string
		for next, more := "", true; more; {
			status, body := b.get(t, path+next)
			if status != 200 {
				t.Fatalf("%s: %d %v", path, status, body)
			}
			got = append(got, ids(body, member))
			next, more = body["next_cursor"].(string)
		}
		if strings.Join(got, " ") != items {
			t.Errorf("%s: %q, want %q", path, got, items)
		}
	}
}

func TestShow_eachKind_returnsOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt/1 ?")
	b.object(t, "stripe", "", "order", "a/b", false)
	b.object(t, "shop", "x", "order", "7", false)
	b.object(t, "shop", "y", "order", "7", true)
	status, body := b.get(t, "/api/v1/events/evt%2F1%20%3F")
	if status != 200 || body["event_id"] != "evt/1 ?" || body["body"] != "evt/1 ?" || body["outcomes"] == nil {
		t.Errorf("event: %d %v", status, body)
	}
	status, body = b.get(t, "/api/v1/objects/stripe/order/a%2Fb")
	want := map[string]any{"object_id": "a/b", "last_event_id": "1152921504606846977", "refetch_after": nil,
		"updated_at": "2026-01-02T03:04:05.600000Z"}
	for member, value := range want {
		if status != 200 || body[member] != value {
			t.Errorf("object: %d, %s is %v, want %v", status, member, body[member], value)
		}
	}
	if v := body["version"].(map[string]any); v["at"] != 17.0 || v["rank"] != 1.0 || v["final"] != false {
		t.Errorf("version: %v", v)
	}
	status, body = b.get(t, "/api/v1/objects/shop/order/7")
	if matches := body["matches"].([]any); status != 409 || len(matches) != 2 ||
		matches[1].(map[string]any)["account"] != "y" {
		t.Errorf("several: %d %v", status, body)
	}
	status, body = b.get(t, "/api/v1/objects/shop/order/7?account=y")
	if status != 200 || body["version"] != nil || body["refetch_after"] != "2026-09-21T14:13:20.000001Z" {
		t.Errorf("without a version: %d %v", status, body)
	}
}

func TestProblem_errors_haveStatusAndType(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "same")
	b.append(t, "shop", "same")
	b.wantResponses(t, [][2]string{
		{"GET /events?sauce=x", "400 the parameters are source, account, type"},
		{"GET /events?source=a&source=b", "400 given 2 times"},
		{"GET /events?limit=0", "400 1 to 1000"},
		{"GET /events?limit=1001", "400 1 to 1000"},
		{"GET /events?limit=x", "400 is not a number"},
		{"GET /events?cursor=x", "400 use the next_cursor of the previous page"},
		{"GET /events?since=soon", "400 RFC 3339"},
		{"GET /events?status=lost", "400 pending, applied"},
		{"GET /events?source=none", "400 the known sources are shop, stripe"},
		{"GET /events?object_id=%00", "400 object_id: the text contains the character U+0000"},
		{"GET /spools/%FF", "400 name: the text contains the character U+0000 or is not valid UTF-8"},
		{"GET /objects?deleted=maybe", "400 true or false"},
		{"GET /objects/stripe/a/b?x=y", "400 the parameters are account"},
		{"GET /objects/stripe/a/b", "404 not found"},
		{"GET /objects/none/a/b", "404 the known sources are shop, stripe"},
		{"GET /events/none", "404 not found"},
		{"GET /events/same", "409 2 events have the key"},
		{"GET /rejections/9", "404 not found"},
		{"GET /nothing", "404 Not Found"},
	})
	if _, body := b.get(t, "/api/v1/events/same?source=shop"); body["source"] != "shop" {
		t.Errorf("narrowed: %v", body)
	}
}

// A web page that points its own name to this address must not read what a browser on this machine
// can reach.
func TestHandler_foreignHost_isDenied(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for host, want := range map[string]int{"evil.example": 421, "127.0.0.1.evil.example:8081": 421, "localhost:9": 200,
		"127.0.0.2": 200, "[::1]:8081": 200, "[::1]": 200} {
		for _, path := range []string{"/api/v1/events", "/metrics"} {
			req := httptest.NewRequest(http.MethodGet, path, nil)
			req.Host = host
			res := httptest.NewRecorder()
			if b.handler.ServeHTTP(res, req); res.Code != want {
				t.Errorf("%s under %s: %d, want %d", path, host, res.Code, want)
			}
		}
	}
}

func TestHandler_databaseUnavailable_returns503(t *testing.T) {
	t.Parallel()
	b := setup(t)
	pool := b.role(t, "operator")
	b.handler = b.serve(t, pool)
	b.db.Exec(t, `ALTER TABLE events RENAME TO elsewhere`)
	if status, body := b.get(t, "/api/v1/events"); status != 500 || strings.Contains(fmt.Sprint(body), "relation") {
		t.Errorf("a fault must not show its SQL: %d %v", status, body)
	}
	b.handler = admin.New(admin.Options{Logger: testkit.Logger(t)}) // without a pool every query panics
	if status, _ := b.get(t, "/api/v1/events"); status != 500 {
		t.Errorf("a panic: %d", status)
	}
}

// must fails the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// routes returns the handler's routes, so that tests over all routes include new ones.
func routes(t *testing.T, h http.Handler) (all []*echo.Route) {
	t.Helper()
	for _, r := range h.(*echo.Echo).Routes() {
		if r.Method != echo.RouteNotFound {
			all = append(all, r)
		}
	}
	if len(all) < 30 {
		t.Fatalf("%d routes", len(all))
	}
	return all
}

// Unauthenticated clients learn that a process is not ready, but not why. They cannot cause more
// than one database check per second.
func TestScrape_readiness_isCached(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var asked atomic.Int64
		var log bytes.Buffer
		h := admin.NewScrape(admin.Options{Metrics: http.NotFoundHandler(),
			Logger: slog.New(slog.NewTextHandler(&log, nil)), Ready: func(context.Context) error {
				if asked.Add(1) > 1 {
					return nil
				}
				return errors.New("postgresql at db.internal: no answer")
			}})
		get := func() (int, string) {
			rec := httptest.NewRecorder()
			h.ServeHTTP(rec, httptest.NewRequest(http.MethodGet, "/readyz", nil))
			return rec.Code, rec.Body.String()
		}
		for range 100 {
			if status, body := get(); status != http.StatusServiceUnavailable || body != "not ready\n" {
				t.Fatalf("%d %q", status, body)
			}
		}
		if n := asked.Load(); n != 1 || strings.Count(log.String(), "db.internal") != 1 {
			t.Errorf("%d checks within a second, want 1; logged %s", n, &log)
		}
		<-time.After(1001 * time.Millisecond) // the fake clock of the test's bubble
		if status, body := get(); status != http.StatusOK || body != "ready\n" {
			t.Errorf("a second later: %d %q", status, body)
		}
	})
}

// The backlog of the streams is reported, also where this process does not reach NATS. A republish
// pass is requested and shown.
func TestStream_backlog_isReported(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_1")
	status, v := b.get(t, "/api/v1/stream")
	if status != 200 || v["failure"] == "" || v["unapplied"].(map[string]any)["count"] != 1.0 ||
		v["republisher"].(map[string]any)["process"] != "" || len(v["streams"].([]any)) != 0 {
		t.Errorf("%d %v", status, v)
	}
	const kind = "application/json"
	status, pass := b.post(t, "/api/v1/stream/republish-passes", kind, `{"reason": " a wiped disk "}`)
	if status != 200 || pass["pass"] != 1.0 || pass["reason"] != "a wiped disk" || pass["ended_at"] != nil ||
		!strings.HasPrefix(pass["requested_by"].(string), "admin API") {
		t.Errorf("%d %v", status, pass)
	}
	if status, again := b.get(t, "/api/v1/stream/republish-passes/1"); status != 200 ||
		again["requested_at"] != pass["requested_at"] {
		t.Errorf("%d %v", status, again)
	}
	if status, v := b.get(t, "/api/v1/stream"); status != 200 || v["republisher"].(map[string]any)["requested"] != 1.0 {
		t.Errorf("%d %v", status, v)
	}
	b.wantResponses(t, [][2]string{{"GET /stream/republish-passes/7", "404"},
		{"GET /stream/republish-passes/0", "404"}})
}
