package retention_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
)

// A day with a sender's request that nobody has answered stays, and goes once somebody has, or what it asked for cannot be read any more.
func TestUnansweredRequestsHoldTheirDay(t *testing.T) {
	t.Parallel()
	for _, answered := range []bool{true, false} {
		t.Run(fmt.Sprint("answered ", answered), func(t *testing.T) {
			t.Parallel()
			b := setup(t, 29, 4, 10)
			request := b.days[0][3]
			b.exec(t, `UPDATE sources SET provider = 'shopify'`)
			b.exec(t, `ALTER TABLE events DISABLE TRIGGER USER`)
			b.exec(t, `UPDATE events SET event_type = 'customers/data_request' WHERE id = $1`, request)
			b.exec(t, `ALTER TABLE events ENABLE TRIGGER USER`)
			b.ask(t, retention.Policy{Bodies: 1})
			_, err := b.carry(t, b.runner())
			want := fmt.Sprintf("requests in it that nobody has answered: 1, the first of them event %d", request)
			if err == nil || !strings.Contains(err.Error(), want) {
				t.Fatalf("%v; want it to say %q", err, want)
			}
			if left := b.rows(t, `SELECT id::text FROM events WHERE id = $1`, request); len(left) != 1 {
				t.Fatal("the request is gone")
			}
			if answered {
				b.exec(t, `INSERT INTO redactions (run, who, reason, asked, requested_by, events, objects, conflicts, rejections, began_at, updated_at, ended_at)
					VALUES (77, '', '', '{}', $1, 0, 0, 0, 0, now(), now(), now())`, request)
			} else {
				b.exec(t, `UPDATE runs SET status = 'failed', ended_at = now() WHERE ended_at IS NULL`)
				b.redact(t, request)
				b.ask(t, retention.Policy{Bodies: 1})
			}
			if status, err := b.carry(t, b.runner()); err != nil || status != runs.Done {
				t.Fatal(status, err)
			}
			if left := b.rows(t, `SELECT id::text FROM events WHERE id = $1`, request); len(left) != 0 {
				t.Error("the day is still there")
			}
			if n, _, err := redaction.Unanswered(t.Context(), b.operator, 0, 1<<62); err != nil || n != 0 {
				t.Errorf("%d are unanswered, %v", n, err)
			}
		})
	}
}
