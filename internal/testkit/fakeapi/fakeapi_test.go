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

// service answers everything alike, after what its faults demand.
type service struct {
	fakeapi.Base
	odds fakeapi.Odds
}

func (s *service) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	fault := s.Meet(r, s.odds)
	status := http.StatusOK
	if fault == fakeapi.Broken {
		status = http.StatusInternalServerError
	}
	s.Send(w, r, fault, time.Millisecond, status, http.Header{"Date": {s.Date(0, 0)}}, []byte("an answer"))
}

func newService(t *testing.T, odds fakeapi.Odds) *service {
	t.Helper()
	s := &service{odds: odds}
	s.Start(t, s, 1, time.Date(2026, time.January, 1, 0, 0, 0, 0, time.UTC), false)
	return s
}

// get asks once; the error is what the client met, also while it read.
func (s *service) get(ctx context.Context, path string) (status int, date, body string, err error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, s.URL+path, http.NoBody)
	if err != nil {
		return 0, "", "", err
	}
	transport := &http.Transport{DisableKeepAlives: true} // which asks again where an old connection ends
	defer transport.CloseIdleConnections()
	a, err := (&http.Client{Transport: transport}).Do(r)
	if err != nil {
		return 0, "", "", err
	}
	defer func() { _ = a.Body.Close() }()
	text, err := io.ReadAll(a.Body)
	return a.StatusCode, a.Header.Get("Date"), string(text), err
}

// Each fault is what the client meets, in the order of the script, and is counted with its request.
func TestFaultsAreMet(t *testing.T) {
	t.Parallel()
	s := newService(t, fakeapi.Odds{})
	s.Script(fakeapi.Broken, fakeapi.Dropped, fakeapi.Cut, fakeapi.Slow)
	s.Advance(time.Hour)
	for n, want := range []struct {
		status int
		body   string
		fails  bool
	}{{500, "an answer", false}, {0, "", true}, {200, "an a", true}, {200, "an answer", false}, {200, "an answer", false}} {
		status, date, body, err := s.get(t.Context(), "/a?b=c")
		if status != want.status || body != want.body || (err != nil) != want.fails {
			t.Errorf("request %d: %d %q (%v)", n, status, body, err)
		}
		if status != 0 && date != "Thu, 01 Jan 2026 01:00:00 GMT" {
			t.Errorf("request %d is of %s", n, date)
		}
	}
	if s.Calls("/a") != 5 || s.Calls("/b") != 0 || s.Asked()[0] != "GET /a?b=c" || s.Met(fakeapi.Cut) != 1 || s.Met(fakeapi.Fine) != 1 {
		t.Errorf("asked %q, met %d cuts", s.Asked(), s.Met(fakeapi.Cut))
	}
}

// A request that hangs ends with its client, and chance meets as many as it should.
func TestHungRequestsEnd(t *testing.T) {
	t.Parallel()
	s := newService(t, fakeapi.Odds{fakeapi.Broken: 30})
	s.Script(fakeapi.Hung)
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	if _, _, _, err := s.get(ctx, "/"); err == nil {
		t.Error("a request that hangs was answered")
	}
	for range 200 {
		if _, _, _, err := s.get(t.Context(), "/"); err != nil {
			t.Fatal(err)
		}
	}
	if n := s.Met(fakeapi.Broken); n < 30 || n > 90 {
		t.Errorf("%d of 200 requests were broken, of which 30 %% should be", n)
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
