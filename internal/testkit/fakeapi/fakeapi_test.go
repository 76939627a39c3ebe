package fakeapi_test

import (
	"context"
	"errors"
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/fakeapi"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// service gives the same response to each request, after the fault of the request.
type service struct {
	fakeapi.Base
	odds fakeapi.Odds
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fault := s.ChooseFault(r, s.odds)
	status := http.StatusOK
	if fault == fakeapi.ServerError {
		status = http.StatusInternalServerError
	}
	s.SendResponse(w, r, fault, time.Millisecond, status, http.Header{"Date": {s.Date(0, 0)}}, []byte("an answer"))
}

func newService(t *testing.T, odds fakeapi.Odds) *service {
	t.Helper()
	s := &service{odds: odds}
	s.Start(t, s, 1, time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC), false)
	return s
}

// get makes one request. The error is the client's, including errors while it reads the body.
func (s *service) get(ctx context.Context, path string) (status int, date, body string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, http.NoBody)
	if err != nil {
		return 0, "", "", err
	}
	// keep-alives would make the transport repeat a request when an old connection ends
	transport := &http.Transport{DisableKeepAlives: true}
	defer transport.CloseIdleConnections()
	a, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return 0, "", "", err
	}
	defer func() { _ = a.Body.Close() }()
	text, err := io.ReadAll(a.Body)
	return a.StatusCode, a.Header.Get("Date"), string(text), err
}

// The client sees each fault in the order of the script, and each request is counted.
func TestBase_scriptedFaults_reachTheClientInOrder(t *testing.T) {
	t.Parallel()
	s := newService(t, fakeapi.Odds{})
	s.ScriptFaults(fakeapi.ServerError, fakeapi.Dropped, fakeapi.Truncated, fakeapi.Slow)
	s.Advance(time.Hour)
	for n, want := range []struct {
		status int
		body   string
		fails  bool
	}{{500, "an answer", false}, {0, "", true}, {200, "an a", true}, {200, "an answer", false},
		{200, "an answer", false}} {
		status, date, body, err := s.get(t.Context(), "/a?b=c")
		if status != want.status || body != want.body || (err != nil) != want.fails {
			t.Errorf("request %d: status %d, body %q (%v)", n, status, body, err)
		}
		if status != 0 && date != "Thu, 01 Jan 2026 01:00:00 GMT" {
			t.Errorf("request %d has the date %s", n, date)
		}
	}
	if s.RequestCount("/a") != 5 || s.RequestCount("/b") != 0 || s.RequestLines()[0] != "GET /a?b=c" ||
		s.FaultCount(fakeapi.Truncated) != 1 || s.FaultCount(fakeapi.NoFault) != 1 {
		t.Errorf("requests %q, %d truncated responses", s.RequestLines(), s.FaultCount(fakeapi.Truncated))
	}
}

// A hanging request ends with its client. Random faults occur as often as the percentage says.
func TestBase_hungRequest_endsWithTheClient(t *testing.T) {
	t.Parallel()
	s := newService(t, fakeapi.Odds{fakeapi.ServerError: 30})
	s.ScriptFaults(fakeapi.Hung)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, _, _, err := s.get(ctx, "/"); err == nil {
		t.Error("a hanging request got a response")
	}
	for range 200 {
		if _, _, _, err := s.get(t.Context(), "/"); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.FaultCount(fakeapi.ServerError); n < 30 || n > 90 {
		t.Errorf("%d of 200 requests failed, want about 30 %%", n)
	}
}

func TestDelay_matchingRequests_waitAndOthersDoNot(t *testing.T) {
	t.Parallel()
	s := newService(t, fakeapi.Odds{})
	s.Delay(func(r *http.Request) bool { return r.URL.Path == "/list" }, time.Hour)
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if status, _, _, err := s.get(ctx, "/list"); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a delayed request: %d, %v", status, err)
	}
	if status, _, _, err := s.get(t.Context(), "/one"); err != nil || status != http.StatusOK {
		t.Errorf("another request: %d, %v", status, err)
	}
	s.Delay(func(*http.Request) bool { return true }, 20*time.Millisecond)
	start := time.Now()
	status, _, _, err := s.get(t.Context(), "/one")
	if took := time.Since(start); err != nil || status != http.StatusOK || took < 20*time.Millisecond {
		t.Errorf("with a delay of 20 ms: %d, %v, after %s", status, err, took)
	}
}
