package provider_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

func TestRetryAfter(t *testing.T) {
	t.Parallel()
	const date = "Sun, 22 Nov 2026 04:00:00 GMT"
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "-3": 0, "3": 3 * time.Second, "0.25": 250 * time.Millisecond, "NaN": 0, "1e300": time.Hour, "86400": time.Hour, "soon": 0,
		"Sun, 22 Nov 2026 04:00:30 GMT": 30 * time.Second, "Sun, 22 Nov 2026 03:00:00 GMT": 0, "Mon, 23 Nov 2026 04:00:00 GMT": time.Hour,
	} {
		if got := provider.RetryAfter(http.Header{"Retry-After": {text}, "Date": {date}}); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	if got := provider.RetryAfter(http.Header{"Retry-After": {date}}); got != 0 {
		t.Errorf("a time without a Date to read it against: %s", got)
	}
}

func TestJudgeStatus(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		status int
		body   string
		kind   provider.VerdictKind
		wait   time.Duration
	}{
		{200, "{}", provider.Found, 0}, {201, "\n{ } ", provider.Found, 0}, {200, "[]", provider.Trouble, 0}, {204, "", provider.Trouble, 0}, {200, " ", provider.Trouble, 0},
		{302, "", provider.Trouble, 0}, {400, "", provider.Trouble, 0}, {401, "", provider.Refused, time.Minute}, {403, "", provider.Refused, 0},
		{404, "", provider.Trouble, 0}, {429, "", provider.Throttled, time.Second}, {502, "", provider.Trouble, 0}, {0, "", provider.Trouble, 0},
	} {
		if v := provider.JudgeStatus(tc.status, http.Header{}, []byte(tc.body)); v.Kind != tc.kind || v.Wait != tc.wait {
			t.Errorf("%d %q: %+v", tc.status, tc.body, v)
		}
	}
}
