package admin_test

import (
	"strings"
	"testing"
)

// Spools are listed and shown; one is forgotten for a reason, and not while its gateway tells of it.
func TestSpools(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `INSERT INTO spools (spool, place, empty_at, told_at, deliveries, bytes, oldest_at) VALUES ('gone', 'there:/spool', '-infinity', now() - interval '1 h', 3, 100, '2026-01-01Z'), ('here', 'here:/spool', now(), now(), 0, 0, null)`)
	status, page := b.get(t, "/api/v1/spools?limit=1")
	items, _ := page["items"].([]any)
	if status != 200 || len(items) != 1 || items[0].(map[string]any)["spool"] != "gone" || page["next_cursor"] == nil {
		t.Fatalf("%d %v", status, page)
	}
	status, s := b.get(t, "/api/v1/spools/gone")
	if status != 200 || s["place"] != "there:/spool" || s["deliveries"] != 3.0 || s["bytes"] != 100.0 || s["oldest_at"] != "2026-01-01T00:00:00.000000Z" || s["empty_at"] != nil || s["told_at"] == nil || s["known_since"] == nil || len(s["redactions"].([]any)) != 0 {
		t.Errorf("%d %v", status, s)
	}
	const kind = "application/json"
	for _, c := range []struct {
		spool, body string
		status      int
		detail      string
	}{
		{"gone", `{}`, 400, "say why"},
		{"gone", `{"reason": " "}`, 400, "say why"},
		{"gone", `{"reason": "why", "force": "perhaps"}`, 400, "perhaps"},
		{"gone", `{"reason": "why", "now": true}`, 400, "no parameter"},
		{"nobody", `{"reason": "why"}`, 404, "nobody"},
		{"here", `{"reason": "why", "force": false}`, 400, "was told of at"},
		{"gone", `{"reason": "why"}`, 200, ""},
		{"gone", `{"reason": "why"}`, 404, "knows of none"},
		{"here", `{"reason": "why", "force": true}`, 200, ""},
	} {
		status, p := b.post(t, "/api/v1/spools/"+c.spool+"/forget", kind, c.body)
		if detail, _ := p["detail"].(string); status != c.status || !strings.Contains(detail, c.detail) {
			t.Errorf("%s %s: %d %v", c.spool, c.body, status, p)
		}
	}
	if status, page := b.get(t, "/api/v1/spools"); status != 200 || len(page["items"].([]any)) != 0 {
		t.Errorf("%d %v", status, page)
	}
	if status, p := b.get(t, "/api/v1/spools/gone"); status != 404 {
		t.Errorf("%d %v", status, p)
	}
}
