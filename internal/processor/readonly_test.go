package processor_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// readOnly makes the database one that answers and takes no write, as after a failover that went wrong, or mends it. Sessions
// start anew, since each keeps what it began with.
func readOnly(t *testing.T, admin *pgxpool.Conn, on bool) {
	t.Helper()
	var name string
	if err := admin.QueryRow(t.Context(), `SELECT current_database()`).Scan(&name); err != nil {
		t.Fatal(err)
	}
	for _, sql := range []string{
		fmt.Sprintf(`ALTER DATABASE %s SET default_transaction_read_only = %t`, name, on),
		`SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()`,
	} {
		if _, err := admin.Exec(t.Context(), sql); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
	}
}

// While the database answers but takes no write, messages are not delivered again and again: none becomes suspicious, none
// loses an attempt, and afterwards they are applied in batches.
func TestDatabaseReadOnly(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	const total = 400
	evs := w.append(t, w.simple(total)...)
	admin, err := w.db.Pool.Acquire(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer admin.Release()
	s := w.traced(t)
	readOnly(t, admin, true)
	p := w.start(t, setting{tune: func(s *processor.Settings) { idle(s); s.Batch = 50 }})
	w.publish(t, evs...)
	consumer, err := w.jetStream(t).Consumer(t.Context(), stream.EventsStream, stream.ProcessorConsumer)
	if err != nil {
		t.Fatal(err)
	}
	delivered := uint64(0)
	testkit.Eventually(t, patience, func() error {
		info, err := consumer.Info(t.Context())
		if err != nil {
			return err
		}
		delivered = info.Delivered.Consumer
		// Five probes take 3 s and more, in which a message handed back comes again.
		if n, _ := s.of(probes); n < 5 && delivered <= 2*total {
			return fmt.Errorf("%d probes", n)
		}
		return nil
	})
	if delivered > 2*total {
		t.Errorf("%d messages were delivered %d times while nothing could be written", total, delivered)
	}
	if n := p.metric(t, "postern_messages_handed_back_total", ""); n == 0 || n > 2*total {
		t.Errorf("%v messages were handed back, want some and not many", n)
	}
	readOnly(t, admin, false)
	testkit.Eventually(t, patience, func() error {
		var n int
		if err := admin.QueryRow(t.Context(), `SELECT count(*) FROM outcomes WHERE status = 'applied' AND attempts = 1`).Scan(&n); err != nil || n < total {
			return fmt.Errorf("%d of %d applied at the first attempt: %v", n, total, err)
		}
		return nil
	})
	var transactions int
	if err := admin.QueryRow(t.Context(), `SELECT count(DISTINCT xmin::text) FROM outcomes`).Scan(&transactions); err != nil || transactions > total/4 {
		t.Errorf("%d events were applied in %d transactions: %v", total, transactions, err)
	}
}
