package admin_test

import (
	"strings"
	"testing"
)

// A rebuild is asked for, compared, and steered; it waits for a processor.
func TestRebuilds(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, "stripe", "k1")
	const kind = "application/json"
	status, run := b.post(t, "/api/v1/rebuilds", kind, `{"source": "stripe", "type": "order", "reason": "a test"}`)
	if status != 200 || run["run"] != 1.0 || run["job"] != "rebuild" || run["status"] != "waiting" || run["expected"] != 1.0 {
		t.Fatalf("%d %v", status, run)
	}
	if status, list := b.get(t, "/api/v1/runs?job=rebuild"); status != 200 || len(list["items"].([]any)) != 1 {
		t.Errorf("%d %v", status, list)
	}
	if status, page := b.get(t, "/api/v1/rebuilds/1/compare?limit=5"); status != 200 || len(page["items"].([]any)) != 0 || page["next_cursor"] != nil || page["counts"].(map[string]any)["same"] != 0.0 {
		t.Errorf("%d %v", status, page)
	}
	if status, run := b.post(t, "/api/v1/rebuilds/1/swap", kind, ""); status != 200 || run["asked"].(map[string]any)["swap"] != true {
		t.Errorf("%d %v", status, run)
	}
	for _, c := range []struct {
		path, kind, body string
		status           int
		says             string
	}{
		{"/api/v1/rebuilds", "text/plain", `{"source": "stripe"}`, 415, "application/json"},
		{"/api/v1/rebuilds", kind, `{}`, 400, "name the source"},
		{"/api/v1/rebuilds", kind, `{"source": "nobody"}`, 400, "no source"},
		{"/api/v1/rebuilds", kind, `{"source": "stripe", "swap": "yes"}`, 400, "want true or false"},
		{"/api/v1/rebuilds", kind, `{"source": "stripe", "since": "1h"}`, 400, "no parameter"},
		{"/api/v1/rebuilds?source=stripe", kind, `{}`, 400, "in the body"},
		{"/api/v1/rebuilds", kind, `{"source": "stripe"}`, 400, "run 1 is an open rebuild"},
		{"/api/v1/rebuilds/7/swap", kind, ``, 404, "run 7"},
		{"/api/v1/rebuilds/x/discard", kind, ``, 404, ""},
		{"/api/v1/rebuilds/1/discard", "text/plain", ``, 415, ""},
	} {
		if status, p := b.post(t, c.path, c.kind, c.body); status != c.status || !strings.Contains(p["detail"].(string), c.says) {
			t.Errorf("%s %s: %d %v", c.path, c.body, status, p)
		}
	}
	if status, run := b.post(t, "/api/v1/rebuilds/1/discard", kind, ""); status != 200 || run["status"] != "cancelled" {
		t.Errorf("%d %v", status, run)
	}
	if status, p := b.get(t, "/api/v1/rebuilds/1/compare"); status != 400 || !strings.Contains(p["detail"].(string), "cancelled") {
		t.Errorf("%d %v", status, p)
	}
	if status, p := b.get(t, "/api/v1/rebuilds/1/compare?limit=0"); status != 400 {
		t.Errorf("%d %v", status, p)
	}
	if status, p := b.get(t, "/api/v1/objects?outdated=true"); status != 200 {
		t.Errorf("%d %v", status, p)
	}
}
