package redaction_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/versioning"
)

// settling stores a look by which a person has an object settled, and applies it.
func (b *testBundle) settling(t *testing.T, object, address string) int64 {
	t.Helper()
	now := time.Now().UTC()
	l := provider.Look{Snapshot: provider.Snapshot{ObjectType: "thing", ObjectID: object, Body: fmt.Appendf(nil, `{"unit": 1, "object": {"customer": {"email": %q}}}`, address)},
		Date: now, Settles: &provider.Settlement{Before: now, Who: "me", Reason: "nobody meant it"}}
	body, err := l.Encode()
	if err != nil {
		t.Fatal(err)
	}
	receipts, err := events.Append(t.Context(), b.db.Role(t, "gateway"), []events.Delivery{{Source: b.source, ReceivedAt: now, Origin: events.OriginReconcile, Headers: []byte(`{}`), Verification: []byte(`{}`),
		Body: body, Events: []provider.Event{{Key: "settle " + object, Type: provider.LookType, ObjectType: "thing", ObjectID: object}}}})
	if err != nil {
		t.Fatal(err)
	}
	b.apply(t, 0, receipts[0][0].ID)
	return receipts[0][0].ID
}

// An object that a person had settled, and that has moved on since, stays as it is in a rebuild once the look is redacted: what had ended it does not count again.
func TestRedactedLooksHaveSettled(t *testing.T) {
	t.Parallel()
	for _, asked := range []string{"before", "while"} {
		t.Run(asked+" a rebuild", func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			at := time.Now().Add(-time.Minute).UnixMicro()
			b.apply(t, 0, b.store(t, "hers", fmt.Appendf(nil,
				`{"id": "d", "type": "thing.deleted", "object_id": "hers", "deleted": true, "final": true, "rank": 1, "unit": 1, "time": %d, "object": null}`, at), "unmeant")...)
			look := b.settling(t, "hers", email)
			b.apply(t, 0, b.store(t, "hers", fmt.Appendf(nil,
				`{"id": "u", "type": "thing.updated", "object_id": "hers", "rank": 1, "unit": 1, "time": %d, "object": {"customer": {"email": "new@else.org"}}}`, time.Now().Add(2*time.Second).UnixMicro()), "later")...)
			if asked == "while" {
				b.exec(t, `INSERT INTO runs (job, asked, who, reason, status, detail, counts, made_at, updated_at) VALUES ('rebuild', '{}', '', '', 'running', '', '{}', now(), now())`)
			}
			b.do(t, redaction.Order{Events: []int64{look}})
			const rows = `SELECT (to_jsonb(o) - '{revision,created_at,updated_at,look_after,last_event_id}'::text[])::text FROM `
			live := b.rows(t, rows+`objects o WHERE settled <> 0 AND state->'customer'->>'email' = 'new@else.org'`)
			if len(live) != 1 {
				t.Fatalf("live: %v", b.rows(t, rows+`objects o`))
			}
			if asked == "before" {
				b.exec(t, `INSERT INTO staged SELECT * FROM bases`)
			}
			if _, err := b.proc.ApplyStored(t.Context(), processor.Target{Run: 900, Into: versioning.Staged}, b.stored(t), false); err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(live, b.rows(t, rows+`staged o`)); diff != "" {
				t.Errorf("live, and made anew: %s", diff)
			}
			if left := b.holding(t, email); len(left) > 0 {
				t.Errorf("left in %v", left)
			}
		})
	}
}

// A redaction of one event keeps when the refetch began by which an operator overwrote the object: an old delete, whose time
// is not known, still has no effect.
func TestRedact_overwrittenObject_oldDeleteStaysWithoutEffect(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.settling(t, "hers", email)
	newer := b.store(t, "hers", fmt.Appendf(nil,
		`{"id": "u", "type": "thing.updated", "object_id": "hers", "rank": 1, "unit": 1, "time": %d, "object": {"customer": {"email": %q}}}`,
		time.Now().Add(2*time.Second).UnixMicro(), email), "newer")
	b.apply(t, 0, newer...)
	b.do(t, redaction.Order{Events: newer})
	old := b.store(t, "hers", []byte(`{"id": "d", "type": "thing.deleted", "object_id": "hers", "deleted": true, "final": true, "rank": 1, "object": null}`), "old")
	b.apply(t, 0, old...)
	got := b.rows(t, `SELECT o.status || ' ' || b.deleted || ' ' || (b.overwrite_seen > 0) FROM outcomes o JOIN objects b USING (object_id) WHERE o.event_id = $1`, old[0])
	if diff := cmp.Diff([]string{"ambiguous false true"}, got); diff != "" {
		t.Error(diff)
	}
}
