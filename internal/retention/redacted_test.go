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
	if _, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: redaction.Job, Asked: redaction.Order{Events: ids}, Who: "me", Reason: "asked for"}); err != nil {
		t.Fatal(err)
	}
	h, err := runs.Take(t.Context(), b.pool, "redacts", time.Minute, redaction.Job)
	if err != nil || h == nil {
		t.Fatal(h, err)
	}
	if status, err := (&redaction.Runner{Pool: b.pool, Processor: b.proc}).Carry(t.Context(), h, slog.New(slog.DiscardHandler)); err != nil || status != runs.Running {
		t.Fatal(status, err)
	}
	if err := h.End(t.Context(), runs.Done, ""); err != nil {
		t.Fatal(err)
	}
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
			if status, err := b.carry(t, r); err != nil || status != runs.Done {
				t.Fatal(status, err)
			}
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
	if err != nil {
		t.Fatal(err)
	}
	for rows.Next() {
		var id int64
		if err := rows.Scan(&id); err != nil {
			t.Fatal(err)
		}
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
	if _, err := b.carry(t, b.runner()); err == nil || !strings.Contains(err.Error(), "delete the file, it is made again") {
		t.Fatal(err)
	}
	files, err := filepath.Glob(filepath.Join(b.folder, "*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	if err := os.Remove(files[0]); err != nil {
		t.Fatal(err)
	}
	if status, err := b.carry(t, b.runner()); err != nil || status != runs.Done {
		t.Fatal(status, err)
	}
	b.lacks(t, bodies)
	b.remakes(t, 1000)
}

// The key of a redacted event outlives the age of keys: without it the same delivery would be a new event, and the mirror would show again what was redacted.
func TestKeysOfRedactedEventsStay(t *testing.T) {
	t.Parallel()
	b := setup(t, 24, 4, 15)
	id := b.newest(t, 0)[0]
	var key, body, object string
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT event_id, convert_from(body, 'UTF8'), object_id FROM events WHERE id = $1`, id).Scan(&key, &body, &object); err != nil {
		t.Fatal(err)
	}
	b.redact(t, id)
	policy := retention.Policy{Bodies: 1, Keys: 1}
	order, err := retention.Now(t.Context(), b.operator, policy)
	if err != nil {
		t.Fatal(err)
	}
	preview, err := retention.Preview(t.Context(), b.operator, order)
	if err != nil {
		t.Fatal(err)
	}
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
