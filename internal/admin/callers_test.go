package admin_test

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/testkit"
)

// guarded is a handler that requires tokens, with one token of each role.
func (b *testBundle) guarded(t *testing.T, o admin.Options) (h http.Handler, reader, operator string) {
	t.Helper()
	pool := b.role(t, "operator")
	o.Pool, o.Logger, o.Tokens = pool, testkit.Logger(t), &adminauth.TokenCache{DB: pool}
	o.Reprocessor = b.reprocessor(t)
	o.Metrics = http.HandlerFunc(func(http.ResponseWriter, *http.Request) {})
	return admin.New(o), token(t, pool, "grafana", adminauth.Reader), token(t, pool, "deploy", adminauth.Operator)
}

func token(t *testing.T, pool *pgxpool.Pool, name string, role adminauth.Role) string {
	t.Helper()
	secret, _, err := adminauth.CreateToken(t.Context(), pool, name, role, "ada", time.Time{})
	testkit.Must(t, err)
	return secret
}

// request sends a request with Authorization headers to any host name.
func request(h http.Handler, method, path, host string, authorization ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest(method, path, strings.NewReader("{}"))
	req.Host = host
	req.Header.Set("Content-Type", "application/json")
	req.Header["Authorization"] = authorization
	if len(authorization) == 0 {
		req.Header.Del("Authorization")
	}
	res := httptest.NewRecorder()
	h.ServeHTTP(res, req)
	return res
}

// postAs sends a body with a token and an idempotency key, unless they are "".
func postAs(h http.Handler, path, body, key, authorization string) *httptest.ResponseRecorder {
	header := http.Header{}
	if key != "" {
		header.Set("Idempotency-Key", key)
	}
	if authorization != "" {
		header.Set("Authorization", authorization)
	}
	res, _ := send(h, http.MethodPost, path, body, header)
	return res
}

// Every path is requested with every kind of token. A path that is not in the table fails here.
func TestAuthorize_roles_limitRoutes(t *testing.T) {
	t.Parallel()
	b := setup(t)
	h, reader, operator := b.guarded(t, admin.Options{RequireTokens: true})
	approver := token(t, b.role(t, "operator"), "finance", adminauth.Approver)
	both := token(t, b.role(t, "operator"), "lead", adminauth.OperatorApprover)
	decisions := []string{"/runs/1/approve", "/rebuilds/1/swap", "/effects/approve", "/effects/reject",
		"/effects/1/approve", "/effects/1/reject", "/effects/1/resolve", "/effects/1/compensate"}
	found := 0
	for _, route := range routes(t, h) {
		path := strings.NewReplacer(":run", "1", ":name", "x", ":id", "1", ":source", "stripe", ":type", "x",
			":profile", "symbol").Replace(route.Path)
		open := path == "/healthz" || path == "/readyz"
		profile := strings.HasPrefix(path, "/debug/pprof")
		decides := slices.Contains(decisions, strings.TrimPrefix(path, "/api/v1"))
		if decides {
			found++
		}
		for sender, tc := range map[string]struct {
			authorization []string
			refused       int
		}{
			"nobody": {nil, http.StatusUnauthorized},
			"a guess": {[]string{"Bearer " + adminauth.TokenPrefix + strings.Repeat("A", 52)},
				http.StatusUnauthorized},
			"another way":   {[]string{"Basic " + operator}, http.StatusUnauthorized},
			"two at once":   {[]string{"Bearer " + operator, "Bearer " + operator}, http.StatusUnauthorized},
			"the bare text": {[]string{operator}, http.StatusUnauthorized},
			"a reader":      {[]string{"Bearer " + reader}, http.StatusForbidden},
			"an approver":   {[]string{"Bearer " + approver}, http.StatusForbidden},
			"an operator":   {[]string{"bearer " + operator}, 0},
			"both":          {[]string{"Bearer " + both}, 0},
		} {
			want := tc.refused
			reads := !profile && (route.Method == http.MethodGet || route.Method == http.MethodPut)
			if open || want == http.StatusForbidden && (reads || decides && sender == "an approver") {
				want = 0
			}
			path := path
			if route.Method == http.MethodPut { // a reader's cursor is not another one's
				path += "-" + strings.ReplaceAll(sender, " ", "-")
			}
			res := request(h, route.Method, path, "postern.internal:8081", tc.authorization...)
			got := res.Code
			if got != http.StatusUnauthorized && got != http.StatusForbidden && got != http.StatusMisdirectedRequest {
				got = 0
			}
			if got != want {
				t.Errorf("%s %s by %s: %d, want %d", route.Method, path, sender, res.Code, want)
			}
			if got == http.StatusUnauthorized && !strings.HasPrefix(res.Header().Get("WWW-Authenticate"), "Bearer") ||
				strings.Contains(res.Body.String(), "AAAA") {
				t.Errorf("%s %s by %s: %v %s", route.Method, path, sender, res.Header(), res.Body)
			}
		}
	}
	if found != len(decisions) {
		t.Errorf("%d routes are decisions, want %q", found, decisions)
	}
}

// No spelling of a path, and no other method, bypasses the authorization.
func TestAuthorize_malformedHeaders_areDenied(t *testing.T) {
	t.Parallel()
	b := setup(t)
	h, _, _ := b.guarded(t, admin.Options{RequireTokens: true,
		Ready: func(context.Context) error { return errors.New("connect to database prod on db.internal as gw") }})
	for _, target := range []string{"/api/v1/events", "//api/v1/events", "/api//v1/events", "/healthz/../api/v1/events",
		"/./api/v1/events", "/api/v1/events/", "/API/V1/events", "/api/v1%2Fevents", "/%61pi/v1/events",
		"/api/v1/events;a", "/metrics/", "/metrics//", "/%6Detrics", "/debug/pprof", "/debug/pprof/heap",
		"/debug/pprof/cmdline", "/debug/../api/v1/events", "/api/v1/audit?access_token=x", "/readyz", "*"} {
		for _, method := range []string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut,
			http.MethodPatch, http.MethodDelete, http.MethodOptions, http.MethodConnect, "PROPFIND"} {
			req := httptest.NewRequest(method, "/", strings.NewReader("{}"))
			req.URL, req.RequestURI, req.Host = &url.URL{Path: target}, target, "127.0.0.1:8081"
			if u, err := url.ParseRequestURI(target); err == nil {
				req.URL = u
			}
			req.Header.Set("Content-Type", "application/json")
			req.Header.Set("X-HTTP-Method-Override", "GET")
			req.Header.Set("X-Forwarded-For", "127.0.0.1")
			res := httptest.NewRecorder()
			h.ServeHTTP(res, req)
			if res.Code < 400 && res.Code != http.StatusNoContent ||
				strings.Contains(res.Body.String(), "db.internal") || strings.Contains(res.Body.String(), "items") {
				t.Errorf("%s %s: %s", method, target, responseText(res))
			}
		}
	}
}

func TestAuthorize_openMetrics_needsNoToken(t *testing.T) {
	t.Parallel()
	b := setup(t)
	h, _, _ := b.guarded(t, admin.Options{RequireTokens: true, OpenMetrics: true})
	for path, want := range map[string]int{"/metrics": 200, "/healthz": 200, "/api/v1/events": 401,
		"/debug/pprof/": 401} {
		if res := request(h, http.MethodGet, path, "postern.internal"); res.Code != want {
			t.Errorf("%s: %d, want %d", path, res.Code, want)
		}
	}
	// on loopback without tokens the host name still counts
	h, _, _ = setup(t).guarded(t, admin.Options{OpenMetrics: true})
	if res := request(h, http.MethodGet, "/metrics", "evil.example"); res.Code != http.StatusMisdirectedRequest {
		t.Errorf("metrics under a foreign name: %d", res.Code)
	}
}

// On loopback no token is required, but a sent token counts. A web page that points its own name to
// this address must not read what a browser on this machine can reach.
func TestHandler_foreignHost_isDenied(t *testing.T) {
	t.Parallel()
	b := setup(t)
	h, reader, operator := b.guarded(t, admin.Options{})
	const list, metrics, pause = "GET /api/v1/events", "GET /metrics", "POST /api/v1/runs/1/pause"
	for _, tc := range []struct {
		route, host string
		header      []string
		want        int
	}{
		{list, "127.0.0.1:8081", nil, 200},
		{list, "127.0.0.2", nil, 200},
		{list, "localhost:9", nil, 200},
		{list, "[::1]:8081", nil, 200},
		{list, "[::1]", nil, 200},
		{list, "evil.example", nil, 421},
		{list, "127.0.0.1.evil.example:8081", nil, 421},
		{list, "evil.example", []string{"Bearer x"}, 401},
		{list, "behind.proxy", []string{"Bearer " + reader}, 200},
		{metrics, "localhost:9", nil, 200},
		{metrics, "[::1]", nil, 200},
		{metrics, "evil.example", nil, 421},
		{metrics, "127.0.0.1.evil.example:8081", nil, 421},
		{pause, "127.0.0.1:8081", []string{"Bearer " + reader}, 403},
		{pause, "127.0.0.1:8081", nil, 404},
		{pause, "127.0.0.1:8081", []string{"Bearer " + operator}, 404},
		{pause, "evil.example", nil, 421},
	} {
		method, path, _ := strings.Cut(tc.route, " ")
		if res := request(h, method, path, tc.host, tc.header...); res.Code != tc.want {
			t.Errorf("%s at %s with %d headers: %s, want %d", tc.route, tc.host, len(tc.header), responseText(res),
				tc.want)
		}
	}
}

// A foreign web page can make a browser send only forms and texts without a CORS check.
func TestRequireJSON_forms_areRejected(t *testing.T) {
	t.Parallel()
	b := setup(t)
	res, _ := send(b.handler, http.MethodPost, "/replays", `{"from": "2026-01-01T00:00:00Z"}`,
		http.Header{"Content-Type": {"application/json; charset=utf-8"}})
	if res.Code == http.StatusUnsupportedMediaType {
		t.Errorf("JSON in UTF-8 is rejected: %s", res.Body)
	}
	for _, route := range routes(t, b.handler) {
		if route.Method == http.MethodGet {
			continue
		}
		path := strings.NewReplacer("/api/v1", "", ":run", "1", ":name", "x").Replace(route.Path)
		for _, kind := range []string{"", "text/plain", "application/x-www-form-urlencoded",
			"multipart/form-data; boundary=x"} {
			res, _ := send(b.handler, route.Method, path, "{}", http.Header{"Content-Type": {kind}})
			if res.Code != http.StatusUnsupportedMediaType {
				t.Errorf("%s %s as %q: %d", route.Method, route.Path, kind, res.Code)
			}
		}
	}
}

// Denied requests are counted by reason. Accepted requests are not counted.
func TestDeniedRequests_reasons_areCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	registry := prometheus.NewRegistry()
	refusals, err := admin.NewDeniedRequests(registry)
	testkit.Must(t, err)
	h, reader, operator := b.guarded(t, admin.Options{RequireTokens: true, DeniedRequests: refusals})
	const events, post = "/api/v1/events", "/api/v1/stream/republish-passes"
	ask := func(n int, method, path string, authorization ...string) {
		for range n {
			request(h, method, path, "postern.internal:8081", authorization...)
		}
	}
	ask(1, http.MethodGet, events)
	ask(1, http.MethodGet, "/metrics")
	ask(1, http.MethodGet, events, "Basic "+operator)
	ask(1, http.MethodGet, events, "Bearer "+operator, "Bearer "+operator)
	ask(2, http.MethodGet, events, "Bearer "+adminauth.TokenPrefix+strings.Repeat("A", 52))
	ask(3, http.MethodGet, "/debug/pprof/", "Bearer "+reader)
	ask(2, http.MethodPost, post, "Bearer "+reader)
	ask(7, http.MethodGet, events, "Bearer "+reader)
	ask(7, http.MethodGet, "/healthz")
	h = admin.New(admin.Options{DeniedRequests: refusals})
	ask(6, http.MethodGet, events)
	h = admin.New(admin.Options{DeniedRequests: refusals, RequireTokens: true, Tokens: unread{}})
	ask(7, http.MethodGet, events, "Bearer "+operator)
	want := map[string]float64{"no_token": 4, "token": 2, "role": 5, "host": 6, "unread": 7}
	testkit.Equal(t, "denied requests", want, counted(t, registry))
}

// While the valid tokens cannot be read, one line is logged, whatever the number of requests.
func TestAuthorize_tokensUnavailable_isLoggedOnce(t *testing.T) {
	t.Parallel()
	var log bytes.Buffer
	h := admin.New(admin.Options{RequireTokens: true, Tokens: unread{},
		Logger: slog.New(slog.NewTextHandler(&log, nil))})
	for range 100 {
		if res := request(h, http.MethodGet, "/api/v1/events", "127.0.0.1:8081",
			"Bearer x"); res.Code != http.StatusInternalServerError {
			t.Fatalf("status %d", res.Code)
		}
	}
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "no answer") {
		t.Errorf("%d lines, want one with the reason:\n%s", n, &log)
	}
}

// unread is a Checker that cannot read tokens.
type unread struct{}

func (unread) Check(context.Context, string) (string, adminauth.Role, error) {
	return "", "", errors.New("no answer")
}

// counted returns the values of a registry's only metric by its only label.
func counted(t *testing.T, registry *prometheus.Registry) map[string]float64 {
	t.Helper()
	families, err := registry.Gather()
	if err != nil || len(families) != 1 {
		t.Fatalf("%d metrics, %v", len(families), err)
	}
	got := map[string]float64{}
	for _, m := range families[0].GetMetric() {
		got[m.GetLabel()[0].GetValue()] = m.GetCounter().GetValue()
	}
	return got
}

// A caller learns who it is, what it may do, and which process responds.
func TestMe_eachCaller_seesItsRights(t *testing.T) {
	t.Parallel()
	h, reader, operator := setup(t).guarded(t, admin.Options{ProcessID: "p"})
	const all = `"allowed":["read","decide","change","profile"],"process":"p"}`
	for _, tc := range []struct {
		authorization []string
		want          string
	}{
		{nil, `{"name":"","role":"operator","via":"loopback",` + all},
		{[]string{"Bearer " + reader},
			`{"name":"grafana","role":"reader","via":"token","allowed":["read"],"process":"p"}`},
		{[]string{"Bearer " + operator}, `{"name":"deploy","role":"operator","via":"token",` + all},
	} {
		res := request(h, http.MethodGet, "/api/v1/me", "localhost", tc.authorization...)
		if got := strings.TrimSpace(res.Body.String()); got != tc.want {
			t.Errorf("%d %s, want %s", res.Code, got, tc.want)
		}
	}
}
