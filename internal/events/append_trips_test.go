package events_test

import (
	"context"
	"net"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

// Where there is no standby an append of duplicates is one message to the database, as that of new events is: a flood of them costs no more.
func TestDuplicatesCostOneRoundTrip(t *testing.T) {
	t.Parallel()
	b := setup(t)
	sent := b.counted(t)
	b.append(t, b.delivery("before", "before")) // which prepares the statement
	for _, c := range []struct {
		what  string
		batch []events.Delivery
		want  int64
	}{
		{"new", []events.Delivery{b.delivery("one", "a", "b"), b.delivery("two", "c")}, 1},
		{"all there", []events.Delivery{b.delivery("one", "a", "b"), b.delivery("two", "c")}, 1},
		{"all there, and twice", []events.Delivery{b.delivery("one", "a"), b.delivery("one", "a"), b.delivery("two", "c")}, 1},
		{"some new", []events.Delivery{b.delivery("one", "a"), b.delivery("three", "d")}, 1},
	} {
		before := sent.Load()
		b.append(t, c.batch...)
		if n := sent.Load() - before; n != c.want {
			t.Errorf("%s: %d messages, want %d", c.what, n, c.want)
		}
	}
}

// counted makes the gateway's sessions anew, and counts what they send.
func (b *testBundle) counted(t *testing.T) *atomic.Int64 {
	t.Helper()
	var sent atomic.Int64
	cfg := b.gateway.Config()
	dial := cfg.ConnConfig.DialFunc
	cfg.ConnConfig.DialFunc = func(ctx context.Context, network, addr string) (net.Conn, error) {
		conn, err := dial(ctx, network, addr)
		return counting{conn, &sent}, err
	}
	cfg.ShouldPing = func(context.Context, pgxpool.ShouldPingParams) bool { return false }
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	b.gateway = pool
	return &sent
}

// counting counts the messages over a connection.
type counting struct {
	net.Conn
	sent *atomic.Int64
}

func (c counting) Write(p []byte) (int, error) {
	c.sent.Add(1)
	return c.Conn.Write(p)
}
