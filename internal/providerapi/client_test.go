package providerapi_test

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	dto "github.com/prometheus/client_model/go"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
)

func mustCall(t *testing.T, c *providerapi.Client, call provider.Call) *providerapi.Response {
	t.Helper()
	r, err := c.Do(t.Context(), call)
	testkit.Must(t, err)
	return r
}

func TestClient_do_sendsAuthenticatedRequest(t *testing.T) {
	t.Parallel()
	b := newDatabaseEnv(t)
	date := time.Now().Add(time.Hour).UTC().Truncate(time.Second)
	var got *http.Request
	url := reconciled.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		got = r
		w.Header().Set("Date", date.Format(http.TimeFormat))
		fmt.Fprint(w, `{"id": "SPRING"}`)
	})
	c, _ := b.client(t, url+"/mirror", func(a *provider.API) { a.Version = "2026-08-26.dahlia" })
	began := time.Now()
	r := mustCall(t, c, provider.Call{Account: "acct_1", Path: "/v1/coupons/a%2Fb%20c",
		Query: map[string][]string{"created[gte]": {"1"}}, Header: http.Header{"Stripe-Account": {"acct_1"}}})
	if r.Verdict.Kind != provider.Found || r.Status != 200 || string(r.Body) != `{"id": "SPRING"}` ||
		!r.Date.Equal(date) || r.Elapsed <= 0 || r.Elapsed > time.Since(began) {
		t.Errorf("%+v", r)
	}
	if got.Method != "GET" || got.RequestURI != "/mirror/v1/coupons/a%2Fb%20c?created%5Bgte%5D=1" {
		t.Errorf("%s %s", got.Method, got.RequestURI)
	}
	for name, want := range map[string]string{"Authorization": "Bearer " + reconciled.APIKey,
		"Stripe-Version": "2026-08-26.dahlia", "Stripe-Account": "acct_1", "Cache-Control": "no-cache"} {
		if got.Header.Get(name) != want {
			t.Errorf("%s: %q", name, got.Header.Get(name))
		}
	}
	// The provider's clock is an hour ahead. The known time is never ahead of it, and at most a
	// second and the duration of the call behind.
	if now, local := c.Now(), time.Now(); now.After(date.Add(local.Sub(began))) || now.Before(date) {
		t.Errorf("the provider's time is %s, with the Date %s", now, date)
	}
	if c.MaxLatency() != r.Elapsed {
		t.Errorf("longest %s, want %s", c.MaxLatency(), r.Elapsed)
	}
	for _, path := range []string{"", "v1/x", "@evil.example/", "/%zz"} {
		if _, err := c.Do(t.Context(), provider.Call{Path: path}); err == nil {
			t.Errorf("%q: accepted", path)
		}
	}
}

// Faults of the provider or the network become failure verdicts with a description that contains
// neither key nor query.
func TestClient_faultyResponses_returnFailureVerdict(t *testing.T) {
	t.Parallel()
	b := newDatabaseEnv(t)
	for name, tc := range map[string]struct {
		answer http.HandlerFunc
		detail string
		kind   provider.VerdictKind
	}{
		"too large": {func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "{%2000d}", 1) },
			"more than 1024 bytes", provider.Failure},
		"too large when decompressed": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Encoding", "gzip")
			z := gzip.NewWriter(w)
			_, _ = z.Write(append(bytes.Repeat([]byte(" "), 1<<20), "{}"...))
			_ = z.Close()
		}, "more than 1024 bytes", provider.Failure},
		"hangs": {func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() },
			"read the response: not done within 200ms", provider.Failure},
		"hangs within": {func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprint(w, "{")
			w.(http.Flusher).Flush()
			<-r.Context().Done()
		}, "read the response: not done within 200ms", provider.Failure},
		"cut": {func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Length", "100")
			fmt.Fprint(w, "{}")
		}, "EOF", provider.Failure},
		"hangs up": {func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) }, "EOF", provider.Failure},
		"wrong key": {func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(401) }, "api.key",
			provider.Rejected},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			c, _ := b.client(t, reconciled.Serve(t, tc.answer), func(a *provider.API) {
				a.MaxBytes = 1024
				if strings.Contains(tc.detail, "200ms") {
					a.Timeout = 200 * time.Millisecond
				}
			})
			// each case has the budget of its own account, because some faults block the budget
			r := mustCall(t, c, provider.Call{Account: name, Path: "/v1/customers",
				Query: url.Values{"email": {"jo@example.com"}}})
			if r.Verdict.Kind != tc.kind || !strings.Contains(r.Verdict.Detail, tc.detail) ||
				strings.Contains(r.Verdict.Detail, "email") || len(r.Body) > 1024 {
				t.Errorf("%+v", r.Verdict)
			}
			if c.MaxLatency() != 0 {
				t.Errorf("the duration of a failed call counts as that of a response: %s", c.MaxLatency())
			}
		})
	}
}

// A server that returns the request does not make errors show the key.
func TestClient_echoingServer_errorsMaskTheKey(t *testing.T) {
	t.Parallel()
	b := newDatabaseEnv(t)
	for name, answer := range map[string]string{"status line": "%s\r\n\r\n",
		"header": "HTTP/1.1 200 OK\r\n%s\x00\r\n\r\n", "length": "HTTP/1.1 200 OK\r\nContent-Length: %s\r\n\r\n",
		"chunk":    "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n%s\r\n",
		"encoding": "HTTP/1.1 200 OK\r\nTransfer-Encoding: %s\r\n\r\n",
		"location": "HTTP/1.1 302 Found\r\nLocation: http://%s/\r\nContent-Length: 0\r\n\r\n"} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			coded := base64.StdEncoding.EncodeToString([]byte(reconciled.APIKey)) // as for user:password
			for _, code := range []bool{false, true} {
				c, _ := b.client(t, echoServer(t, answer, code), nil)
				r, err := c.Do(t.Context(), customerCall)
				if err != nil || r.Verdict.Kind != provider.Failure {
					t.Fatalf("%+v, %v", r, err)
				}
				if text := fmt.Sprintf("%v %+v", r.Verdict, r.Verdict); strings.Contains(text, "s3cret") ||
					strings.Contains(text, strings.TrimRight(coded, "=")) {
					t.Error(text)
				}
			}
		})
	}
	c, _ := b.client(t, reconciled.Serve(t, func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, "{}") }), nil)
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("stopped"))
	if _, err := c.Do(ctx, customerCall); err == nil || strings.Contains(err.Error(), "s3cret") ||
		!strings.Contains(err.Error(), "stopped") {
		t.Error(err)
	}
	c.ClosePool()
	if _, err := c.Do(t.Context(), customerCall); err == nil || strings.Contains(err.Error(), "s3cret") {
		t.Error(err)
	}
	if strings.Contains(b.log.String(), "s3cret") {
		t.Error(b.log.String())
	}
}

// echoServer is a server whose response contains the credential, plain or in base64.
func echoServer(t *testing.T, answer string, coded bool) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	testkit.Must(t, err)
	t.Cleanup(func() { _ = l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			req, err := http.ReadRequest(bufio.NewReader(conn))
			if err == nil {
				_, credential, _ := strings.Cut(req.Header.Get("Authorization"), " ")
				if coded {
					credential = base64.StdEncoding.EncodeToString([]byte(credential))
				}
				fmt.Fprintf(conn, answer, credential)
			}
			_ = conn.Close()
		}
	}()
	return "http://" + l.Addr().String()
}

// The key is sent to no other host, and each redirect on the same host counts as a call.
func TestClient_redirects_followedOnSameHostOnly(t *testing.T) {
	t.Parallel()
	b := newDatabaseEnv(t)
	strayed := 0
	other := reconciled.Serve(t, func(http.ResponseWriter, *http.Request) { strayed++ })
	for name, tc := range map[string]struct {
		location string
		method   string
		calls    int
		kind     provider.VerdictKind
	}{
		"to another host": {other + "/v1/customers/cus_1", "", 1, provider.Failure},
		"to another path": {"/moved", "", 2, provider.Found},
		"in a cycle":      {"/v1/customers/cus_1", "", 4, provider.Failure},
		"with a password": {"http://u:p@%s/moved", "", 1, provider.Failure},
		"to https":        {"https://%s/moved", "", 1, provider.Failure},
		"after a POST":    {"/moved", "POST", 1, provider.Failure},
		"to nowhere":      {"", "", 1, provider.Failure},
	} {
		t.Run(name, func(t *testing.T) {
			calls := 0
			c, reg := b.client(t, reconciled.Serve(t, func(w http.ResponseWriter, r *http.Request) {
				calls++
				if r.URL.Path == "/moved" {
					fmt.Fprint(w, "{}")
					return
				}
				w.Header().Set("Location", strings.ReplaceAll(tc.location, "%s", r.Host))
				w.WriteHeader(http.StatusTemporaryRedirect)
			}), nil)
			r := mustCall(t, c, provider.Call{Method: tc.method, Path: customerCall.Path})
			if r.Verdict.Kind != tc.kind || calls != tc.calls || strayed != 0 {
				t.Errorf("%+v after %d calls, %d to the other host", r.Verdict, calls, strayed)
			}
			if got := metricSum(t, reg, "postern_api_waiting_seconds", ""); got != float64(calls) {
				t.Errorf("the budget counted %v calls, want %d", got, calls)
			}
		})
	}
}

// metricSum returns the sum of a counter or a gauge, or the number of observations of a histogram,
// over the series with the given label if it is not "". It fails without such a series.
func metricSum(t *testing.T, reg *prometheus.Registry, name, label string) (sum float64) {
	t.Helper()
	found := false
	families, err := reg.Gather()
	testkit.Must(t, err)
	for _, f := range families {
		for _, m := range f.GetMetric() {
			labelled := func(l *dto.LabelPair) bool { return l.GetValue() == label }
			if f.GetName() == name && (label == "" || slices.ContainsFunc(m.GetLabel(), labelled)) {
				found = true
				sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	if !found {
		t.Errorf("no series of %s has the label %q", name, label)
	}
	return sum
}

func TestMetrics_calls_countedByVerdict(t *testing.T) {
	t.Parallel()
	b := newDatabaseEnv(t)
	status := 200
	c, reg := b.client(t, reconciled.Serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(status)
		fmt.Fprint(w, `{"error": {"code": "resource_missing"}}`)
	}), nil)
	for _, status = range []int{200, 200, 404, 403, 500} {
		mustCall(t, c, customerCall)
	}
	for verdict, want := range map[string]float64{"found": 2, "missing": 1, "expired": 0, "rejected": 1, "throttled": 0,
		"failure": 1, "": 5} {
		if got := metricSum(t, reg, "postern_api_calls_total", verdict); got != want {
			t.Errorf("%v calls with the verdict %q, want %v", got, verdict, want)
		}
	}
}
