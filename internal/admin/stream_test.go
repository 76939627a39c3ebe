package admin_test

import (
	"strings"
	"testing"
)

// How far the streams are behind is told, also where this process does not reach them; a pass of the auditor is asked for and shown.
func TestStream(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "evt_1")
	status, v := b.get(t, "/api/v1/stream")
	if status != 200 || v["trouble"] == "" || v["unapplied"].(map[string]any)["count"] != 1.0 || v["auditor"].(map[string]any)["process"] != "" || len(v["streams"].([]any)) != 0 {
		t.Errorf("%d %v", status, v)
	}
	const kind = "application/json"
	status, heal := b.post(t, "/api/v1/stream/heals", kind, `{"reason": " a wiped disk "}`)
	if status != 200 || heal["heal"] != 1.0 || heal["reason"] != "a wiped disk" || heal["ended_at"] != nil || !strings.HasPrefix(heal["wanted_by"].(string), "admin API") {
		t.Errorf("%d %v", status, heal)
	}
	if status, again := b.get(t, "/api/v1/stream/heals/1"); status != 200 || again["wanted_at"] != heal["wanted_at"] {
		t.Errorf("%d %v", status, again)
	}
	if status, v := b.get(t, "/api/v1/stream"); status != 200 || v["auditor"].(map[string]any)["wanted"] != 1.0 {
		t.Errorf("%d %v", status, v)
	}
	for path, want := range map[string]int{"/api/v1/stream/heals/7": 404, "/api/v1/stream/heals/0": 404, "/api/v1/stream/heals/x": 404} {
		if status, p := b.get(t, path); status != want {
			t.Errorf("%s: %d %v", path, status, p)
		}
	}
	for _, c := range []struct {
		kind, body string
		status     int
	}{{"text/plain", `{}`, 415}, {kind, `{"now": true}`, 400}, {kind, `[]`, 400}} {
		if status, p := b.post(t, "/api/v1/stream/heals", c.kind, c.body); status != c.status {
			t.Errorf("%s: %d %v", c.body, status, p)
		}
	}
}
