package processor_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// An event that gets a final outcome from elsewhere while it is being applied, as one does that is redacted, is not applied after all.
func TestRecordedMeanwhile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, sim.Provider{}, nil)
	event := func(id int64, body string) stream.Event {
		return stream.Event{Source: "sim", Stored: provider.Stored{ID: id, ReceivedAt: time.UnixMicro(sim.Start), Body: []byte(body)}}
	}
	if err := p.Apply(t.Context(), 0, []stream.Event{event(1, `{"object_id": "a", "object": {"n": 1}, "rank": 1, "unit": 1, "time": 1700000000000001}`)}); err != nil {
		t.Fatal(err)
	}
	held, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = held.Rollback(context.Background()) }()
	if _, err := held.Exec(t.Context(), `SELECT FROM objects FOR UPDATE`); err != nil {
		t.Fatal(err)
	}
	applied := make(chan error, 1)
	go func() {
		applied <- p.Apply(t.Context(), 0, []stream.Event{event(2, `{"object_id": "a", "object": {"n": 2}, "rank": 1, "unit": 1, "time": 1700000000000002}`)})
	}()
	testkit.Eventually(t, time.Minute, func() error { // its outcome is read, and its object cannot be written
		var waits int
		if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`).Scan(&waits); err != nil || waits > 0 {
			return err
		}
		return errors.New("nobody waits yet")
	})
	if _, err := b.db.Pool.Exec(t.Context(), `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, at, rule_version)
		VALUES (2, 0, 1, 0, '', '', '', 'ignored', 'the event was redacted', 0, now(), 1)`); err != nil {
		t.Fatal(err)
	}
	if err := held.Rollback(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := <-applied; err != nil {
		t.Fatal(err)
	}
	var state, status string
	b.scan(t, `SELECT state::text FROM objects`, &state)
	b.scan(t, `SELECT status FROM outcomes WHERE event_id = 2`, &status)
	if state != `{"n": 1}` || status != "ignored" {
		t.Errorf("the object is %s, and the event %s", state, status)
	}
}
