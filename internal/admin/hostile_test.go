package admin_test

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/testkit"
)

// hostileTexts are malformed values for a parameter of a path, a query or a body.
var hostileTexts = []string{
	"", " ", "\x00", "a\x00b", "\xff", "a\xc3", "\x1b[2J\u202e", strings.Repeat("x", 100_000), "%", "*", "../..", "'",
	"-1", "0", "9223372036854775807", "9223372036854775808", "-9223372036854775808", "99999999999999999999999",
	"1e400", "NaN", "0000-01-01", "-4800-01-01", "9999-12-31T23:59:59.999999999Z", "999999-01-01",
	"65535d", "-2562047h", "2562047h", "infinity",
	"true", "null", "[]", "{}", "[1]", `{"a": "\u0000"}`, "AAAA", "MA", "bnVsbA", "AAAA,,-,AA",
}

// hostileJSON are JSON values for a member of a body that are not texts.
var hostileJSON = []string{
	`null`, `[]`, `["a"]`, `{}`, `{"a": "\u0000"}`, `{"\u0000": [{"a": "b\u0000"}]}`, `{"a": "\ud800"}`,
	`{"a": 1e400000}`, `"\ud800"`, "\"\xff\"", `1e400000`, `-1`, `123456789012345678901234567890`, `0.5`,
	strings.Repeat(`{"a":`, 900) + "1" + strings.Repeat("}", 900),
}

// usual are valid values, with which a request reaches the database.
var usual = map[string]string{
	"source": "stripe", "type": "order", "object_type": "order", "object_id": "7", "id": "7", "reason": "because",
	"run": "1", "rule": "r", "step": "mail", "done": "true", "since": "1h", "event": "k", "job": "replay",
	"name": "nightly", "time": "1h", "spool": "gone", "effect": "3", "rebuild": "1", "stream": "1",
}

// TestRoutes_hostileParameters_areClientErrors calls all routes. A route's error about an unknown
// parameter lists the known ones, so new parameters are covered.
func TestRoutes_hostileParameters_areClientErrors(t *testing.T) {
	t.Parallel()
	b := changing(t)
	b.object(t, "stripe", "", "order", "7", true)
	h := b.walked(t)
	status, body := b.post(t, "/replays", `{"reason": "because"}`)
	if status != 200 || fmt.Sprint(body["run"]) != usual["run"] {
		t.Fatalf("%d %v", status, body)
	}
	found, sent := 0, 0
	for n, r := range routes(t, h) {
		if strings.HasPrefix(r.Path, "/api/v1") {
			w := &walk{h: h, route: r, turn: n}
			w.path(t)
			found += w.parameters(t)
			w.raw(t)
			sent += w.sent
		}
	}
	t.Logf("%d parameters, %d requests", found, sent)
	if found < 100 {
		t.Errorf("%d parameters found: do routes still say which they know?", found)
	}
}

// walked is the API with all of its routes. A token is accepted and not required.
func (b *testBundle) walked(t *testing.T) http.Handler {
	t.Helper()
	pool := b.role(t, "operator")
	return admin.New(admin.Options{Pool: pool, Logger: testkit.Logger(t), Tokens: &adminauth.TokenCache{DB: pool},
		Ready:     func(context.Context) error { return nil },
		Metrics:   http.NotFoundHandler(),
		Endpoints: func() []config.Endpoint { return nil },
		Rules:     func() []*rules.Rule { return nil }})
}

// hostileHeaders are headers that the API, its router or a proxy in front of it may read. The first
// ones, which the API reads, get each value.
var hostileHeaders = []string{
	"Authorization", "Idempotency-Key", "Content-Type", "Content-Encoding", "Accept", "Accept-Encoding",
	"Cookie", "Forwarded", "If-None-Match", "Origin", "Range", "Traceparent", "Transfer-Encoding",
	"X-Forwarded-For", "X-Forwarded-Proto", "X-Http-Method-Override", "X-Real-Ip", "X-Request-Id",
}

// TestRoutes_hostileHeaders_areClientErrors sends each header with each value, and twice, to each
// route and to an unknown path and method.
func TestRoutes_hostileHeaders_areClientErrors(t *testing.T) {
	t.Parallel()
	b := changing(t)
	h, sent := b.walked(t), 0
	all := append(routes(t, h), &echo.Route{Method: "BREW", Path: "/api/v1/events"},
		&echo.Route{Method: "GET", Path: "/"})
	for n, r := range all {
		if strings.HasPrefix(r.Path, "/debug/pprof") {
			continue // a profile takes time, and only one at a time is allowed
		}
		w := &walk{h: h, route: r, turn: n}
		for i, name := range hostileHeaders {
			texts := headerTexts
			if i >= 3 {
				texts = texts[:5]
			}
			values := [][]string{{}, {"a", "a"}}
			for _, text := range texts {
				values = append(values, []string{text})
			}
			for _, value := range values {
				if w.takesTurn() {
					w.headers(t, http.Header{name: value})
				}
			}
		}
		w.headers(t, http.Header{"Host": {"\xff\x00"}})
		sent += w.sent
	}
	t.Logf("%d routes, %d requests", len(all), sent)
}

// headerTexts are values of headers, including valid texts of each kind.
var headerTexts = []string{
	"", "\x00", "\xff", "a\r\nb: c", strings.Repeat("x", 100_000), `"\x00"`, `"` + "\xff" + `"`, `"\`, "-1", "1e400",
	strings.Repeat("a", 255), strings.Repeat("a", 256), "Bearer ", "Bearer \x00", "Bearer \xff",
	"bearer " + adminauth.TokenPrefix + strings.Repeat("A", 52),
	"Bearer " + adminauth.TokenPrefix + strings.Repeat("\xff", 52),
	"application/json; charset=\xff", "application/json; a=b; a=b", "multipart/form-data", "chunked", "bytes=9-1",
}

// headers sends a valid request except for some headers. "Host" is the request's host.
func (w *walk) headers(t *testing.T, header http.Header) {
	t.Helper()
	req := w.request(w.to("", ""), "", `{"reason": "because"}`)
	for name, values := range header {
		if name == "Host" {
			req.Host = values[0]
			continue
		}
		req.Header[name] = values
	}
	w.do(t, req, fmt.Sprintf("%.200q", header))
}

// raw sends queries and bodies that do not consist of names and values.
func (w *walk) raw(t *testing.T) {
	t.Helper()
	for _, query := range []string{
		"%zz", "%", "a;b", ";", "&&&", "=", "limit=1&limit=2", "%00=1", "%ff=%ff", "limit=%ff&limit=%00",
		strings.Repeat("a=1&", 20_000), strings.Repeat("limit=1&", 20_000), strings.Repeat("%00", 10_000),
	} {
		if w.takesTurn() {
			w.send(t, w.to("", ""), query, `{"reason": "because"}`)
		}
	}
	for _, body := range []string{
		"", "\x00", "\xff", "{", "null", "[]", "{}{}", `{"reason": "a", "reason": "\u0000"}`, `{"\u0000": "a"}`,
		"{\"\xff\": \"\xff\", \"reason\": \"a\"}", strings.Repeat("[", 100_000), strings.Repeat(`{"a":`, 100_000),
		`{"reason": "` + strings.Repeat("x", 2<<20) + `"}`, strings.Repeat(" ", 2<<20), "\ufeff{}",
		`{` + strings.Repeat(`"reason": "a", `, 10_000) + `"reason": "a"}`,
	} {
		if w.takesTurn() {
			w.send(t, w.to("", ""), "", body)
		}
	}
}

// walk sends requests to a route.
type walk struct {
	h          http.Handler
	route      *echo.Route
	turn, sent int
}

// takesTurn tells whether to send the next request. The routes share the code that reads requests,
// so the short form sends every seventh: each parameter and each route gets other texts.
func (w *walk) takesTurn() bool {
	w.turn++
	return !testing.Short() || w.turn%7 == 0
}

var pathParameter = regexp.MustCompile(`:[a-z_]+`)

// to returns the path with a value of one of its parameters, and valid values of the others.
func (w *walk) to(name, value string) string {
	return pathParameter.ReplaceAllStringFunc(w.route.Path, func(p string) string {
		if p[1:] == name {
			return url.PathEscape(value)
		}
		if known, ok := usual[strings.TrimSuffix(strings.Split(w.route.Path, "/")[3], "s")]; ok && p != ":source" &&
			p != ":type" { // the thing that the route is about
			return known
		}
		if known, ok := usual[p[1:]]; ok {
			return known
		}
		return "1"
	})
}

// path tries each parameter of the path.
func (w *walk) path(t *testing.T) {
	for _, p := range pathParameter.FindAllString(w.route.Path, -1) {
		for _, text := range hostileTexts {
			if w.takesTurn() {
				w.send(t, w.to(p[1:], text), "", `{"reason": "because", "step": "mail", "done": true}`)
			}
		}
	}
}

// parameters tries each parameter of query and body, alone and with valid others, and returns their
// number.
func (w *walk) parameters(t *testing.T) int {
	query, known := "bogus=1", []string{}
	if w.route.Method != http.MethodGet {
		query, known = "", []string{"reason", "preview", "dry_run"} // some routes read them without listing them
	}
	_, detail := w.send(t, w.to("", ""), query, `{"bogus": 1, "reason": "because"}`)
	if _, list, _ := strings.Cut(detail, "the parameters are "); list != "" {
		known = append(known, strings.Split(list, ", ")...)
	}
	for _, name := range known {
		for _, others := range []bool{false, true} {
			for _, text := range hostileTexts {
				if !w.takesTurn() && !strings.ContainsRune(text, 0) {
					continue
				}
				all := values(known, others, name, text)
				query, body := all.Encode(), ""
				if w.route.Method != http.MethodGet {
					query, body = "", members(all, name, quoted(text))
				}
				status, _ := w.send(t, w.to("", ""), query, body)
				if status != 400 && strings.ContainsRune(text, 0) {
					t.Errorf("%s %s: %s with U+0000: %d, want 400", w.route.Method, w.route.Path, name, status)
				}
			}
			for _, value := range hostileJSON {
				if w.route.Method != http.MethodGet && w.takesTurn() {
					w.send(t, w.to("", ""), "", members(values(known, others, name, ""), name, value))
				}
			}
		}
	}
	return len(known)
}

// values returns the parameter and valid values of the other known parameters.
func values(known []string, others bool, name, text string) url.Values {
	all := url.Values{}
	for _, other := range known {
		if value, ok := usual[other]; ok && others {
			all.Set(other, value)
		}
	}
	all.Set(name, text)
	return all
}

// members returns values as a JSON object, one of them unchanged.
func members(all url.Values, name, value string) string {
	var out []string
	for other := range all {
		text := quoted(all.Get(other))
		if other == name {
			text = value
		}
		out = append(out, quoted(other)+": "+text)
	}
	return "{" + strings.Join(out, ", ") + "}"
}

// quoted returns a text as JSON.
func quoted(text string) string {
	b, err := json.Marshal(text)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// send fails the test if the response is a server error. Every second change has an idempotency
// key, so that its response is stored too.
func (w *walk) send(t *testing.T, path, query, body string) (status int, detail string) {
	t.Helper()
	req := w.request(path, query, body)
	if w.sent%2 == 1 && w.route.Method != http.MethodGet {
		req.Header.Set("Idempotency-Key", fmt.Sprint("key_", w.sent))
	}
	return w.do(t, req, fmt.Sprintf("%.200s?%.200s %.200s", path, query, body))
}

// request creates a request to the route.
func (w *walk) request(path, query, body string) *http.Request {
	req := httptest.NewRequest(w.route.Method, "http://127.0.0.1:8081"+path, strings.NewReader(body))
	req.URL.RawQuery = query
	req.Header.Set("Content-Type", "application/json")
	return req
}

// do sends a request, which the text describes.
func (w *walk) do(t *testing.T, req *http.Request, text string) (status int, detail string) {
	t.Helper()
	w.sent++
	res := httptest.NewRecorder()
	w.h.ServeHTTP(res, req)
	// This handler follows no events, and says so for each valid request.
	if res.Code >= 500 && w.route.Path != "/api/v1/events/tail" {
		t.Errorf("%s %s %s: %d %s", w.route.Method, w.route.Path, text, res.Code, res.Body)
	}
	var p struct{ Detail string }
	_ = json.Unmarshal(res.Body.Bytes(), &p) // a response that is not a problem has no type
	return res.Code, p.Detail
}
