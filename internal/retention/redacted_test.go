package retention_test

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
)

// redact carries out a redaction of events to its end.
func (b *testBundle) redact(t *testing.T, ids ...int64) {
	t.Helper()
	must(t,
		errOf(runs.Ask(t.Context(), b.operator, runs.Order{Job: redaction.Job, Asked: redaction.Order{Events: ids},
			Who: "me", Reason: "asked for"})))
	h := taken(t, b.pool, "redacts", time.Minute, redaction.Job)
	if status, err := (&redaction.Runner{Pool: b.pool, Processor: b.proc}).Carry(t.Context(), h, slog.New(slog.DiscardHandler)); err != nil || status != runs.Running {
		t.Fatal(status, err)
	}
	must(t, h.End(t.Context(), runs.Done, ""))
}

// Events may be redacted before their day is folded, while it is, and after it is ready: neither its base nor its export has them, and a rebuild makes the mirror.
func TestRedactedBesideRetention(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"", "begin", "fold", "folded", "ready", "detach", "drop"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			b := setup(t, 23, 4, 15)
			newest := b.newest(t, 0)
			bodies := b.rows(t, `SELECT convert_from(body, 'UTF8') FROM events WHERE id = ANY($1)`, newest)
			if step == "" {
				b.redact(t, newest...)
				b.folder = t.TempDir()
			}
			b.ask(t, retention.Policy{Bodies: 1})
			r, redacted := b.runner(), false
			r.AtStep(func(name string) error {
				if name == step && !redacted {
					redacted = true
					b.redact(t, newest...)
				}
				return nil
			})
			b.finishes(t, r)
			b.remakes(t, 1000)
			for _, object := range b.rows(t, `SELECT object_id FROM objects WHERE last_event_id = ANY($1) AND (state IS NOT NULL OR tie_set <> '[]')`, newest) {
				t.Errorf("%s shows what was redacted", object)
			}
			if step == "" {
				b.lacks(t, bodies)
			}
		})
	}
}

// newest are events of a day that objects show, and no other event of their version.
func (b *testBundle) newest(t *testing.T, day int) (ids []int64) {
	t.Helper()
	rows, err := b.db.Pool.Query(t.Context(), `SELECT o.last_event_id FROM objects o WHERE o.last_event_id = ANY($1) AND o.state IS NOT NULL
		AND (SELECT count(*) FROM outcomes c WHERE c.object_id = o.object_id AND c.run = 0 AND c.version = version_json(o.version_final, o.version_at, o.version_seen, o.version_rank)) = 1
		ORDER BY 1 LIMIT 5`, b.days[day])
	must(t, err)
	for rows.Next() {
		var id int64
		must(t, rows.Scan(&id))
		ids = append(ids, id)
	}
	if rows.Err() != nil || len(ids) == 0 {
		t.Fatal("no object shows an event of the day", rows.Err())
	}
	return ids
}

// lacks wants that no exported file has a body.
func (b *testBundle) lacks(t *testing.T, bodies []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(b.folder, "*"))
	if err != nil || len(files) == 0 {
		t.Fatal("nothing is exported", err)
	}
	for _, file := range files {
		text := unpacked(t, file)
		for _, body := range bodies {
			if strings.Contains(text, quoted(t, body)) {
				t.Errorf("%s has %s", file, body)
			}
		}
	}
}

// An export from before a redaction is not what the log holds any more: the day stays until a person has deleted the file, and the next has nothing of it.
func TestExportFromBeforeARedaction(t *testing.T) {
	t.Parallel()
	b := setup(t, 25, 3, 15)
	b.folder = t.TempDir()
	newest := b.newest(t, 0)
	bodies := b.rows(t, `SELECT convert_from(body, 'UTF8') FROM events WHERE id = ANY($1)`, newest)
	b.ask(t, retention.Policy{Bodies: 1})
	r := b.runner()
	r.AtStep(func(name string) error {
		if name == "begin" || name == "export" || name == "verify" {
			return nil
		}
		return errCrash
	})
	if _, err := b.carry(t, r); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	b.redact(t, newest...)
	b.refuses(t, b.runner(), "delete the file, it is made again")
	files, err := filepath.Glob(filepath.Join(b.folder, "*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	must(t, os.Remove(files[0]))
	b.finishes(t, b.runner())
	b.lacks(t, bodies)
	b.remakes(t, 1000)
}

// The key of a redacted event outlives the age of keys: without it the same delivery would be a new event, and the mirror would show again what was redacted.
func TestKeysOfRedactedEventsStay(t *testing.T) {
	t.Parallel()
	b := setup(t, 24, 4, 15)
	id := b.newest(t, 0)[0]
	var key, body, object string
	must(t,
		b.db.Pool.QueryRow(t.Context(),
			`SELECT event_id, convert_from(body, 'UTF8'), object_id FROM events WHERE id = $1`, id).Scan(&key, &body,
			&object))
	b.redact(t, id)
	policy := retention.Policy{Bodies: 1, Keys: 1}
	order, err := retention.Now(t.Context(), b.operator, policy)
	must(t, err)
	preview, err := retention.Preview(t.Context(), b.operator, order)
	must(t, err)
	keys := b.rows(t, `SELECT id::text FROM event_keys ORDER BY id`)
	b.do(t, policy)
	left := b.rows(t, `SELECT id::text FROM event_keys ORDER BY id`)
	if left[0] != fmt.Sprint(id) || len(left) != 1+len(b.rows(t, `SELECT id::text FROM events`)) {
		t.Errorf("of event %d and those that are still stored the keys were to stay: %d of %d did, the first of %s", id, len(left), len(keys), left[0])
	}
	if gone := int64(len(keys) - len(left)); preview.Forget[retention.CountKeys] != gone {
		t.Errorf("%v were to go, and %d keys went", preview.Forget, gone)
	}
	d := events.Delivery{Source: b.source, ReceivedAt: b.now, Origin: events.OriginWebhook, Headers: []byte(`{}`), Verification: []byte(`{}`), Body: []byte(body),
		Events: []provider.Event{{Key: key, Type: "thing", ObjectType: "thing", ObjectID: object, Fingerprint: provider.BodyFingerprint([]byte(body))}}}
	receipts, err := events.Append(t.Context(), b.db.Pool, []events.Delivery{d})
	if err != nil || !receipts[0][0].Duplicate || receipts[0][0].ID != id {
		t.Fatalf("the same delivery again: %+v, %v", receipts, err)
	}
}

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
			b.finishes(t, b.runner())
			if left := b.rows(t, `SELECT id::text FROM events WHERE id = $1`, request); len(left) != 0 {
				t.Error("the day is still there")
			}
			if n, _, err := redaction.Unanswered(t.Context(), b.operator, 0, 1<<62); err != nil || n != 0 {
				t.Errorf("%d are unanswered, %v", n, err)
			}
		})
	}
}
