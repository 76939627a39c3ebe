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

	"github.com/google/go-cmp/cmp"
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
	b.known, err = events.RegisterSources(t.Context(), b.db.Pool,
		map[string]string{"stripe": "stripe", "shop": "shopify"})
	testkit.Must(t, err)
	b.handler = admin.New(admin.Options{Pool: b.role(t, "operator"), Logger: testkit.Logger(t),
		Ready:       func(context.Context) error { return b.ready },
		Metrics:     http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "postern_up 1\n") }),
		Reprocessor: b.reprocessor(t)})
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

// call sends a request to a path below /api/v1, and decodes the JSON response, which the OpenAPI
// document must describe.
func (b *testBundle) call(t *testing.T, method, path, text string) (status int, body map[string]any) {
	t.Helper()
	res, req := send(b.handler, method, path, text, nil)
	checkDescribed(t, req, text, res)
	if err := json.Unmarshal(res.Body.Bytes(), &body); err != nil {
		t.Fatalf("%s: %v in %s", path, err, res.Body)
	}
	if kind := res.Header().Get("Content-Type"); res.Code >= 400 && kind != "application/problem+json" {
		t.Errorf("%s: a problem of type %s", path, kind)
	}
	return res.Code, body
}

func (b *testBundle) get(t *testing.T, path string) (status int, body map[string]any) {
	t.Helper()
	return b.call(t, http.MethodGet, path, "")
}

func (b *testBundle) post(t *testing.T, path, text string) (status int, body map[string]any) {
	t.Helper()
	return b.call(t, http.MethodPost, path, text)
}

// wantResponses sends requests in order, each a method, a path below /api/v1 and a body, and
// returns the last response. The expected responses are a status and either a text in them, which
// an error has in its detail, or a JSON object of members that they have.
func (b *testBundle) wantResponses(t *testing.T, all [][2]string) (body map[string]any) {
	t.Helper()
	for _, c := range all {
		method, request, _ := strings.Cut(c[0], " ")
		path, text, _ := strings.Cut(request, " ")
		wantStatus, says, _ := strings.Cut(c[1], " ")
		var status int
		status, body = b.call(t, method, path, text)
		got := fmt.Sprint(body)
		if status >= 400 {
			got = fmt.Sprint(body["detail"])
		}
		diff := ""
		if strings.HasPrefix(says, "{") {
			var members any
			testkit.Must(t, json.Unmarshal([]byte(says), &members))
			diff = cmp.Diff(members, project(members, body))
		} else if !strings.Contains(got, says) {
			diff = fmt.Sprint(body)
		}
		if fmt.Sprint(status) != wantStatus || diff != "" {
			t.Errorf("%s: %d, want %s: %s", c[0], status, c[1], diff)
		}
	}
	return body
}

// project returns the members of a response that are expected too, so that a difference to the
// expected ones shows no others. An expected null also fits a missing member. A text that ends with
// "…" is the beginning of a text, so "…" is any text.
func project(want, got any) any {
	switch want := want.(type) {
	case map[string]any:
		if from, ok := got.(map[string]any); ok {
			members := map[string]any{}
			for name, value := range want {
				members[name] = project(value, from[name])
			}
			return members
		}
	case []any:
		if from, ok := got.([]any); ok && len(from) == len(want) {
			elements := make([]any, len(want))
			for i, value := range want {
				elements[i] = project(value, from[i])
			}
			return elements
		}
	case string:
		begin, isBegin := strings.CutSuffix(want, "…")
		if text, ok := got.(string); ok && isBegin && strings.HasPrefix(text, begin) {
			return want
		}
	}
	return got
}

// wantItems compares lists. For each path below /api/v1, it expects the name of a member and its
// values in the items.
func (b *testBundle) wantItems(t *testing.T, lists map[string]string) {
	t.Helper()
	for path, want := range lists {
		member, items, _ := strings.Cut(want, " ")
		if status, body := b.get(t, path); status != 200 || ids(body, member) != items {
			t.Errorf("%s: %d %v, want %s", path, status, body, want)
		}
	}
}

// delivery returns a webhook of a source with one event.
func (b *testBundle) delivery(source, body string, event provider.Event) events.Delivery {
	return events.Delivery{Source: b.known.Number[source], ReceivedAt: time.Now(), Origin: events.OriginWebhook,
		Headers: []byte(`{}`), Verification: []byte(`{}`), Body: []byte(body), Events: []provider.Event{event}}
}

// store appends deliveries and returns the ids of their events.
func (b *testBundle) store(t *testing.T, deliveries ...events.Delivery) (ids []int64) {
	t.Helper()
	receipts, err := events.Append(t.Context(), b.db.Pool, deliveries)
	testkit.Must(t, err)
	for _, r := range receipts {
		ids = append(ids, r[0].ID)
	}
	return ids
}

func (b *testBundle) append(t *testing.T, source, key string) int64 {
	t.Helper()
	return b.store(t, b.delivery(source, key, provider.Event{Key: key, Type: "order.updated", ObjectType: "order",
		ObjectID: "7"}))[0]
}

// object inserts one object with a state. Objects are inserted one by one, so that their order is
// known.
func (b *testBundle) object(t *testing.T, source, account, kind, id string, ambiguous bool) {
	t.Helper()
	b.db.Exec(t, `
		INSERT INTO objects (source, account, object_type, object_id, version_final, version_at, version_seen,
			version_rank, tied_states, overflow, time_from, time_to,
		  refetch_after, ambiguous, deleted, state_hash, exact_hash, state, sanitized, last_event_id, revision,
		  	rule_version, created_at, updated_at)
		VALUES ($1, $2, $3, $4, false, CASE WHEN $5 THEN -9223372036854775808 ELSE 17 END, 0, CASE WHEN $5 THEN 0
			ELSE 1 END, '[]', false, 0, 0, CASE WHEN $5 THEN 1790000000000001 ELSE 0 END, $5, false,
		  '\x00', '\x00', '{"a": 1}', false, 1152921504606846977, 1, 1, '2026-01-02T03:04:05.6Z',
		  	'2026-01-02T03:04:05.6Z')`,
		b.known.Number[source], account, kind, id, ambiguous)
}

func (b *testBundle) outcome(t *testing.T, event int64, key versioning.Key, status string) {
	t.Helper()
	b.db.Exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type,
		object_id, status, reason, attempts, at, rule_version)
		VALUES ($1, 0, $2, $3, $4, $5, $6, $7, 'because', 1, now(), 1)`, event, key.Source, key.Hash(), key.Account,
		key.Type, key.ID, status)
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
	body := b.wantResponses(t, [][2]string{{"GET /retention?bodies=3", "400"},
		{"GET /retention", `200 {"policy": {"bodies": 0}}`}})
	if parts, _ := body["partitions"].([]any); len(parts) == 0 || parts[0].(map[string]any)["goes"] != "never" {
		t.Errorf("%v", body)
	}
}

func TestHandler_healthReadyMetrics_areServed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for path, want := range map[string]string{"/healthz": "ok\n", "/readyz": "ready\n", "/metrics": "postern_up 1\n"} {
		if res := request(b.handler, http.MethodGet, path, "localhost"); res.Code != 200 || res.Body.String() != want {
			t.Errorf("%s: %s", path, responseText(res))
		}
	}
	b.ready = errors.New("PostgreSQL is away")
	if got := responseText(request(b.handler, http.MethodGet, "/readyz", "localhost")); !strings.Contains(got,
		`"detail":"PostgreSQL is away"`) || !strings.HasPrefix(got, "503 application/problem+json ") {
		t.Errorf("not ready: %s", got)
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
	b.wantItems(t, map[string]string{
		"/events":                                                 "event_id k3 k2 k1",
		"/events?source=shop":                                     "event_id k3 k2",
		"/events?type=order.*&limit=1":                            "event_id k3",
		"/events?status=pending":                                  "event_id k3",
		"/events?object_type=order&object_id=7":                   "event_id k2 k1",
		"/events?object_type=order&object_id=7&source=stripe":     "event_id k1",
		"/events?object_type=order&object_id=7&account=x.example": "event_id k2",
		"/events?object_type=order&object_id=8":                   "event_id ",
		"/events?since=1h&until=2099-01-01":                       "event_id k3 k2 k1",
		"/events?until=1d":                                        "event_id ",
		"/objects?ambiguous=true":                                 "account x.example",
		"/objects?account=":                                       "source stripe",
		"/objects?refetch_pending=false&type=order&id=7":          "source stripe",
		"/outcomes?status=dead":                                   "account x.example",
		"/outcomes?event=k1":                                      "status applied",
		"/outcomes?object_type=order&object_id=7&run=0":           "status dead applied",
		"/rejections?rejection_reason=wrong_signature":            "detail seen",
		"/rejections?rejection_reason=stale_timestamp":            "detail ",
		"/conflicts": "id ",
	})
}

func TestLists_cursor_continuesPage(t *testing.T) {
	t.Parallel()
	b := changing(t)
	for n := range 6 {
		b.append(t, "stripe", fmt.Sprint("k", n))
	}
	for path, want := range map[string]string{"/events?limit=3": "event_id k5 k4 k3 k2 k1 k0 k",
		"/effects?limit=2": "effect 5 4 3 2 1"} {
		member, items, _ := strings.Cut(want, " ")
		if got := strings.Join(b.pages(t, path, member), " "); got != items {
			t.Errorf("%s: %q, want %q", path, got, items)
		}
	}
}

// pages returns the values of a member on each page of a list that has items.
func (b *testBundle) pages(t *testing.T, path, member string) (all []string) {
	t.Helper()
	requests := 0
	for next, more := "", true; more; requests++ {
		status, body := b.get(t, path+"&cursor="+next)
		if status != 200 || requests > 100 {
			t.Fatalf("%s: %d %v", path, status, body)
		}
		if items := ids(body, member); items != "" {
			all = append(all, items)
		}
		next, more = body["next_cursor"].(string)
	}
	return all
}

func TestShow_eachKind_returnsOne(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt/1 ?")
	b.object(t, "stripe", "", "order", "a/b", false)
	b.object(t, "shop", "x", "order", "7", false)
	b.object(t, "shop", "y", "order", "7", true)
	b.wantResponses(t, [][2]string{
		{"GET /events/evt%2F1%20%3F", `200 {"event_id": "evt/1 ?", "body": "evt/1 ?", "outcomes": []}`},
		{"GET /objects/stripe/order/a%2Fb", `200 {"object_id": "a/b", "last_event_id": "1152921504606846977",
			"refetch_after": null, "updated_at": "2026-01-02T03:04:05.600000Z",
			"version": {"at": 17, "rank": 1, "final": false}}`},
		{"GET /objects/shop/order/7", `409 {"matches": [{}, {"account": "y"}]}`},
		{"GET /objects/shop/order/7?account=y",
			`200 {"version": null, "refetch_after": "2026-09-21T14:13:20.000001Z"}`},
	})
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
	if _, body := b.get(t, "/events/same?source=shop"); body["source"] != "shop" {
		t.Errorf("narrowed: %v", body)
	}
}

func TestHandler_faults_areInternalErrors(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `ALTER TABLE events RENAME TO elsewhere`)
	if status, body := b.get(t, "/events"); status != 500 || strings.Contains(fmt.Sprint(body), "relation") {
		t.Errorf("a fault must not show its SQL: %d %v", status, body)
	}
	b.handler = admin.New(admin.Options{Logger: testkit.Logger(t)}) // without a pool every query panics
	if status, _ := b.get(t, "/events"); status != 500 {
		t.Errorf("a panic: %d", status)
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
	pass := b.wantResponses(t, [][2]string{
		{"GET /stream", `200 {"failure": "nats.url is not configured here", "unapplied": {"count": 1},
			"republisher": {"process": ""}, "streams": []}`},
		{`POST /stream/republish-passes {"reason": " a wiped disk "}`,
			`200 {"pass": 1, "reason": "a wiped disk", "ended_at": null, "requested_by": "admin API…"}`},
	})
	b.wantResponses(t, [][2]string{
		{"GET /stream/republish-passes/1", fmt.Sprintf(`200 {"requested_at": %q}`, pass["requested_at"])},
		{"GET /stream", `200 {"republisher": {"requested": 1}}`},
		{"GET /stream/republish-passes/7", "404"},
		{"GET /stream/republish-passes/0", "404"},
	})
}
