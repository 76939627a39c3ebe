package admin_test

import (
	"strings"
	"testing"
)

// The ledger of effects is asked over HTTP as by the command, and says what is safe to do next.
func TestEffects(t *testing.T) {
	t.Parallel()
	b := changing(t)
	for path, want := range map[string]string{
		"/api/v1/effects":                                      "effect 5 4 3 2 1",
		"/api/v1/effects?state=review&limit=1":                 "effect 4",
		"/api/v1/effects?rule=mail&source=stripe&type=order":   "effect 5 4 3 2 1",
		"/api/v1/effects?object_type=order&object_id=2":        "effect 2",
		"/api/v1/effects?event=7":                              "effect 5 4 3 2 1",
		"/api/v1/effects?key=mail:3&account=":                  "effect 3",
		"/api/v1/effects?since=2026-01-03":                     "effect ",
		"/api/v1/effects?until=2026-01-03&state=done":          "effect 5",
		"/api/v1/effects?source=stripe&type=invoice&rule=mail": "effect ",
	} {
		member, items, _ := strings.Cut(want, " ")
		if status, body := b.get(t, path); status != 200 || ids(body, member) != items {
			t.Errorf("%s: %d %v", path, status, body)
		}
	}
	status, body := b.get(t, "/api/v1/effects/3")
	if status != 200 || body["event_key"] != "k" || len(body["payload_sha256"].(string)) != 64 || !strings.Contains(body["next"].(string), "postern effects resolve 3 --step mail --done, or --not-done") {
		t.Errorf("%d %v", status, body)
	}
	if step := body["steps"].([]any)[0].(map[string]any); step["state"] != "unknown" || step["captured"].(map[string]any)["id"] != "m_1" || step["request"] != "POST /mail" || step["fingerprint"] != "01" {
		t.Errorf("%v", step)
	}
	for path, want := range map[string]int{"/api/v1/effects/99": 404, "/api/v1/effects/x": 404, "/api/v1/effects?state=lost": 400, "/api/v1/effects?bogus=1": 400} {
		if status, body := b.get(t, path); status != want {
			t.Errorf("%s: %d %v", path, status, body)
		}
	}
}

// A change needs a reason and an effect that is as it should be; then it answers the effect as it is now, and under one key it is made once.
func TestChangingEffects(t *testing.T) {
	t.Parallel()
	b := changing(t)
	for _, c := range []struct {
		path, body string
		status     int
		says       string
	}{
		{"1/approve", `{}`, 400, "say why with a reason"},
		{"1/approve", `{"reason": "why", "step": "mail"}`, 400, "no parameter"},
		{"x/approve", `{"reason": "why"}`, 404, "x"},
		{"99/approve", `{"reason": "why"}`, 404, "effect 99"},
		{"5/approve", `{"reason": "why"}`, 400, "effect 5: it is done"},
		{"3/resolve", `{"reason": "why", "step": "mail"}`, 400, "whether it was done"},
		{"3/resolve", `{"reason": "why", "step": "mail", "done": true, "captured": ["a"]}`, 400, "captured"},
		{"3/resolve", `{"reason": {"a": 1}, "step": "mail", "done": true}`, 400, "reason"},
		{"3/retry", `{"reason": "why"}`, 400, "resolve 3 --step mail"},
		{"5/compensate", `{"reason": "why"}`, 400, "no compensate for mail"},
	} {
		if status, body := b.post(t, "/api/v1/effects/"+c.path, "application/json", c.body); status != c.status || !strings.Contains(body["detail"].(string), c.says) {
			t.Errorf("%s %s: %d %v", c.path, c.body, status, body)
		}
	}
	if n := b.db.Rows(t, `SELECT count(*)::text FROM audit`); n[0] != "0" {
		t.Errorf("%s rows in the audit of what was refused", n)
	}
	for range 2 {
		if got := asksFor(b.handler, "/api/v1/effects/1/approve", `{"reason": "why"}`, "key-1", ""); got.Code != 200 || !strings.Contains(got.Body.String(), `"state":"planned"`) {
			t.Errorf("%d %s", got.Code, got.Body)
		}
	}
	if n := b.db.Rows(t, `SELECT count(*)::text FROM audit`); n[0] != "1" {
		t.Errorf("%s rows in the audit of what was done once", n)
	}
}
