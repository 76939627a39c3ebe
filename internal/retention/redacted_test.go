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

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
)

// redact executes a redaction of events.
func (b *testBundle) redact(t *testing.T, ids ...int64) {
	t.Helper()
	must(t, errOf(runs.Create(t.Context(), b.operator, runs.Request{Job: redaction.Job,
		Params: redaction.Params{Events: ids}, Actor: "me", Reason: "asked for"})))
	h := leaseRun(t, b.pool, "redacts", time.Minute, redaction.Job)
	if status, err := (&redaction.Runner{Pool: b.pool, Applier: b.proc}).Execute(t.Context(), h,
		slog.New(slog.DiscardHandler)); err != nil || status != runs.Running {
		t.Fatal(status, err)
	}
	must(t, h.End(t.Context(), runs.Done, ""))
}

// Events may be redacted before their day is reduced, during that, and after it is prepared:
// neither the retained objects nor the export contain them, and a rebuild gives the mirror.
func TestRetention_redactedMeanwhile_staysRedacted(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"", "begin", "reduce", "reduced", "prepared", "detach", "drop"} {
		t.Run(step, func(t *testing.T) {
			t.Parallel()
			b := setup(t, 23, 4, 15)
			newest := b.newestOf(t, 0)
			bodies := b.rows(t, `SELECT convert_from(body, 'UTF8') FROM events WHERE id = ANY($1)`, newest)
			if step == "" {
				b.redact(t, newest...)
				b.folder = t.TempDir()
			}
			b.requestRun(t, retention.Policy{Bodies: 1})
			r, redacted := b.runner(), false
			r.OnStep(func(name string) error {
				if name == step && !redacted {
					redacted = true
					b.redact(t, newest...)
				}
				return nil
			})
			b.executeToEnd(t, r)
			b.checkRebuild(t, 1000)
			for _, object := range b.rows(t, `SELECT object_id FROM objects WHERE last_event_id = ANY($1)
				AND (state IS NOT NULL OR tied_states <> '[]')`, newest) {
				t.Errorf("%s shows redacted data", object)
			}
			if step == "" {
				b.checkNotExported(t, bodies)
			}
		})
	}
}

// newestOf returns events of a day that objects show, if no other event has the same version.
func (b *testBundle) newestOf(t *testing.T, day int) (ids []int64) {
	t.Helper()
	rows, err := b.db.Pool.Query(t.Context(), `SELECT o.last_event_id FROM objects o WHERE o.last_event_id = ANY($1)
		AND o.state IS NOT NULL
		AND (SELECT count(*) FROM outcomes c WHERE c.object_id = o.object_id AND c.run = 0
			AND c.version = version_json(o.version_final, o.version_at, o.version_seen, o.version_rank)) = 1
		ORDER BY 1 LIMIT 5`, b.days[day])
	must(t, err)
	ids, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	if err != nil || len(ids) == 0 {
		t.Fatal("no object shows an event of the day", err)
	}
	return ids
}

// checkNotExported fails if an exported file contains one of the bodies.
func (b *testBundle) checkNotExported(t *testing.T, bodies []string) {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(b.folder, "*"))
	if err != nil || len(files) == 0 {
		t.Fatal("nothing is exported", err)
	}
	for _, file := range files {
		text := readExport(t, file)
		for _, body := range bodies {
			if strings.Contains(text, jsonString(t, body)) {
				t.Errorf("%s contains %s", file, body)
			}
		}
	}
}

// An export from before a redaction differs from the log: the day stays until an operator has
// deleted the file. The next export does not contain the redacted data.
func TestRetention_exportBeforeRedaction_keepsTheDay(t *testing.T) {
	t.Parallel()
	b := setup(t, 25, 3, 15)
	b.folder = t.TempDir()
	newest := b.newestOf(t, 0)
	bodies := b.rows(t, `SELECT convert_from(body, 'UTF8') FROM events WHERE id = ANY($1)`, newest)
	b.requestRun(t, retention.Policy{Bodies: 1})
	r := b.runner()
	r.OnStep(func(name string) error {
		if name == "begin" || name == "export" || name == "verify" {
			return nil
		}
		return errCrash
	})
	if _, err := b.executeOpenRun(t, r); !errors.Is(err, errCrash) {
		t.Fatal(err)
	}
	b.redact(t, newest...)
	b.executeAndFail(t, b.runner(), "delete the file, and the next run writes it again")
	files, err := filepath.Glob(filepath.Join(b.folder, "*"))
	if err != nil || len(files) != 1 {
		t.Fatal(files, err)
	}
	must(t, os.Remove(files[0]))
	b.executeToEnd(t, b.runner())
	b.checkNotExported(t, bodies)
	b.checkRebuild(t, 1000)
}

// The key of a redacted event does not expire. Without it, a repeated delivery would be a new
// event, and the mirror would show the redacted data again.
func TestRetention_keysOfRedactedEvents_stay(t *testing.T) {
	t.Parallel()
	b := setup(t, 24, 4, 15)
	id := b.newestOf(t, 0)[0]
	var key, body, object string
	must(t, b.db.Pool.QueryRow(t.Context(),
		`SELECT event_id, convert_from(body, 'UTF8'), object_id FROM events WHERE id = $1`, id).Scan(&key, &body,
		&object))
	b.redact(t, id)
	policy := retention.Policy{Bodies: 1, Keys: 1}
	params, err := retention.NewParams(t.Context(), b.operator, policy)
	must(t, err)
	preview, err := retention.Preview(t.Context(), b.operator, params)
	must(t, err)
	keys := b.rows(t, `SELECT id::text FROM event_keys ORDER BY id`)
	b.runPolicy(t, policy)
	left := b.rows(t, `SELECT id::text FROM event_keys ORDER BY id`)
	if left[0] != fmt.Sprint(id) || len(left) != 1+len(b.rows(t, `SELECT id::text FROM events`)) {
		t.Errorf("only the keys of event %d and of stored events should remain: %d of %d did, the first of %s", id,
			len(left), len(keys), left[0])
	}
	if gone := int64(len(keys) - len(left)); preview.Expired[retention.CountKeys] != gone {
		t.Errorf("%v were to expire, and %d keys did", preview.Expired, gone)
	}
	d := events.Delivery{Source: b.source, ReceivedAt: b.now, Origin: events.OriginWebhook, Headers: []byte(`{}`),
		Verification: []byte(`{}`), Body: []byte(body), Events: []provider.Event{{Key: key, Type: "thing",
			ObjectType: "thing", ObjectID: object, Fingerprint: provider.BodyFingerprint([]byte(body))}}}
	receipts, err := events.Append(t.Context(), b.db.Pool, []events.Delivery{d})
	if err != nil || !receipts[0][0].Duplicate || receipts[0][0].ID != id {
		t.Fatalf("the same delivery again: %+v, %v", receipts, err)
	}
}

// A day with a sender's request without a response stays. It is dropped after a response, or when
// the request's data is redacted.
func TestRetention_unansweredRequest_keepsTheDay(t *testing.T) {
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
			b.requestRun(t, retention.Policy{Bodies: 1})
			b.executeAndFail(t, b.runner(),
				fmt.Sprintf("senders' requests without a response: 1, the first of them event %d", request))
			b.db.WantRows(t, 1, "events WHERE id = $1", request)
			if answered {
				b.exec(t, `INSERT INTO redactions (run, actor, reason, params, requested_by, events, objects, conflicts,
					rejections, began_at, updated_at, ended_at)
					VALUES (77, '', '', '{}', $1, 0, 0, 0, 0, now(), now(), now())`, request)
			} else {
				b.exec(t, `UPDATE runs SET status = 'failed', ended_at = now() WHERE ended_at IS NULL`)
				b.redact(t, request)
				b.requestRun(t, retention.Policy{Bodies: 1})
			}
			b.executeToEnd(t, b.runner())
			b.db.WantRows(t, 0, "events WHERE id = $1", request)
			if n, _, err := redaction.CountOpenRequests(t.Context(), b.operator, 0, 1<<62); err != nil || n != 0 {
				t.Errorf("%d have no response, %v", n, err)
			}
		})
	}
}
