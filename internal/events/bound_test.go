package events_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
)

func isUnavailable(err error) bool { return errors.Is(err, events.ErrUnavailable) }

// A reader that freezes its bound misses none of what 16 writers append while one transaction is held open and the clock
// steps back and forth.
func TestFrozenBoundMissesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t)
	skew := `CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
		'SELECT clock_timestamp() - (random() * 120) * interval ''1 ms'' - (CASE WHEN extract(epoch FROM clock_timestamp())::int % 2 = 0 THEN 2 ELSE 0 END) * interval ''1 s'''`
	if _, err := b.db.Pool.Exec(t.Context(), skew); err != nil {
		t.Fatal(err)
	}
	b.append(t, b.delivery("x", "first"))
	ctx, stop := context.WithTimeout(t.Context(), 4*time.Second)
	defer stop()
	var wg sync.WaitGroup
	for w := range 16 {
		wg.Go(func() {
			for i := 0; ctx.Err() == nil; i++ {
				if _, err := events.Append(t.Context(), b.gateway, []events.Delivery{b.delivery("x", fmt.Sprint(w, "-", i))}); err != nil {
					t.Error(err)
					return
				}
			}
		})
	}
	wg.Go(func() { b.holdOpen(t, ctx) })
	read, at := map[int64]bool{}, int64(0)
	walk := func(ctx context.Context) {
		bound, err := events.FreezeBound(ctx, b.operator)
		if err != nil {
			t.Error(err)
			return
		}
		ids, err := events.After(t.Context(), b.gateway, at, bound, 1_000_000)
		if err != nil {
			t.Error(err)
		}
		for _, id := range ids {
			read[id] = true
		}
		at = bound
	}
	for ctx.Err() == nil {
		walk(t.Context())
	}
	wg.Wait()
	walk(t.Context())
	if n := b.count(t, "events"); n != len(read) || n < 100 {
		t.Errorf("read %d of %d events", len(read), n)
	}
}

// holdOpen appends in a transaction that commits late, again and again.
func (b *testBundle) holdOpen(t *testing.T, ctx context.Context) {
	pool := b.db.Pool
	for i := 0; ctx.Err() == nil; i++ {
		tx, err := pool.Begin(t.Context())
		if err != nil {
			t.Error(err)
			return
		}
		_, err = tx.Exec(t.Context(), `WITH m AS (SELECT (greatest(clock_ms(), (SELECT ms FROM log_floor) + 1) << 20) | (nextval('event_sequence') & 1048575) AS id),
			k AS (INSERT INTO event_keys SELECT $1, sha256($2::bytea), id, '\x00' FROM m)
			INSERT INTO events SELECT id, $1, 'held', 't', '', '', '', NULL, now(), 'webhook', '', '{}', '{}', '\x00', id, 0, '' FROM m`, b.source, []byte(fmt.Sprint("held", i)))
		if err != nil {
			t.Error(err)
		}
		select {
		case <-time.After(300 * time.Millisecond):
		case <-ctx.Done():
		}
		if err := tx.Commit(t.Context()); err != nil {
			t.Error(err)
		}
	}
}

func TestFreezeBoundGivesUpWithItsContext(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.append(t, b.delivery("x", "first"))
	tx, err := b.db.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err := tx.Exec(t.Context(), `LOCK TABLE events IN ROW EXCLUSIVE MODE`); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	if _, err := events.FreezeBound(ctx, b.operator); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v, want a wait that ends with its context", err)
	}
}

func TestRegisterSourcesRefusesAnotherProvider(t *testing.T) {
	t.Parallel()
	b := setup(t)
	if _, err := events.RegisterSources(t.Context(), b.gateway, map[string]string{"shop": "stripe"}); err == nil {
		t.Error("a source changed its provider")
	}
	known, err := events.RegisterSources(t.Context(), b.gateway, map[string]string{"shop": "shopify", "other": "stripe"})
	if err != nil || known.Number["shop"] != b.source || known.Name[known.Number["other"]] != "other" {
		t.Errorf("%+v, %v", known, err)
	}
}
