package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/postgres"
)

// effectsTarget is the target of executeEffects: a processor that does nothing else.
const effectsTarget = "effects"

// testDestination is an HTTP server in this program. It responds immediately and records when each
// path was first or last called.
type testDestination struct {
	server *http.Server
	url    string

	mu         sync.Mutex
	receivedAt map[string]time.Time
}

func newTestDestination(ctx context.Context) (*testDestination, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	d := &testDestination{url: "http://" + l.Addr().String(), receivedAt: map[string]time.Time{}}
	d.server = &http.Server{Handler: http.HandlerFunc(d.respond), ReadHeaderTimeout: time.Minute}
	go func() { _ = d.server.Serve(l) }() // until it is closed
	return d, nil
}

func (d *testDestination) respond(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	at := time.Now()
	d.mu.Lock()
	d.receivedAt[r.URL.Path] = at
	d.mu.Unlock()
	_, _ = io.WriteString(w, `{"id": "1"}`) // fails if the caller has disconnected
}

// received returns how many different paths were called.
func (d *testDestination) received() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return len(d.receivedAt)
}

// newSilentDestination starts a server that accepts connections and never responds.
func newSilentDestination(ctx context.Context) (url string, end func() error, err error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return "", nil, err
	}
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				_, _ = io.Copy(io.Discard, conn) // until the caller disconnects
				_ = conn.Close()
			}()
		}
	}()
	return "http://" + l.Addr().String(), l.Close, nil
}

// effectRules returns a configuration with two rules about customers, each of one step. The steps
// of tell go to the destination live, those of price to the destination dead.
func effectRules(database, nats, live, dead string) string {
	return fmt.Sprintf(`database: {url: %q}
nats: {url: %q}
admin: {listen: "127.0.0.1:0"}
sources:
  shop: {provider: stripe, secrets: [{name: bench, value: %s}]}
destinations:
  live: {url: %q, allow: [127.0.0.1]}
  dead: {url: %q, allow: [127.0.0.1], timeout: 2s}
effects:
  tell:
    source: shop
    type: customer
    key: "tell:{{ event.id }}"
    steps:
      - name: tell
        to: live
        path: "/{{ event.id }}"
        json: {customer: "{{ object.id }}", balance: "{{ new.balance }}"}
        capture: {id: id}
  price:
    source: shop
    type: customer
    key: "price:{{ object.id }}:{{ event.id }}"
    supersede: true
    steps:
      - name: tell
        to: dead
        path: "/{{ event.id }}"
        json: {customer: "{{ object.id }}", balance: "{{ new.balance }}"}
`, database, nats, secret, live, dead)
}

// plannedSQL plans an effect for each number from $3 to $4, each about another object.
const plannedSQL = `
INSERT INTO postern.effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run,
	template_data,
	state, destination, due, planned_at, updated_at)
SELECT 'old:' || n, 1, $1, 1, '', 'customer', 'cus_old' || n, n, 0,
  jsonb_build_object('old', NULL, 'new', jsonb_build_object('id', 'cus_old' || n, 'object', 'customer', 'balance', n,
  	'note', repeat('x', 200)),
    'object', jsonb_build_object('source', 'shop', 'account', '', 'type', 'customer', 'id', 'cus_old' || n, 'deleted',
    	false),
    'event', jsonb_build_object('id', n::text, 'key', 'evt_' || n, 'type', 'customer.updated', 'origin', 'webhook',
    	'occurred_at', '', 'received_at', '')),
  'planned', $2, now.at, now.at, now.at
FROM generate_series($3::int, $4::int) AS n, (SELECT clock_timestamp() AS at) now`

// ledger creates a database with planned effects of a rule, whose next step goes to a destination.
// It returns the name even if it fails.
func (s *Suite) ledger(ctx context.Context, rule, destination string, planned int) (database string, err error) {
	return s.newFilled(ctx, func(conn *pgx.Conn) error {
		if _, err := conn.Exec(ctx, "SET synchronous_commit = off; INSERT INTO postern.sources (name, provider) "+
			"VALUES ('shop', 'stripe')"); err != nil {
			return err
		}
		const each = 100_000
		for at := 1; at <= planned; at += each {
			if _, err := conn.Exec(ctx, plannedSQL, rule, destination, at, min(at+each-1, planned)); err != nil {
				return fmt.Errorf("plan effects: %w", err)
			}
			s.log.Info("insert planned effects", "done", at-1, "of", planned)
		}
		_, err := conn.Exec(ctx, "VACUUM ANALYZE")
		return err
	})
}

// rulesOf returns the effect rules of a configuration.
func rulesOf(text string) (*config.Config, *effects.Rules, error) {
	cfg, err := config.Parse([]byte(text), os.Getenv)
	if err != nil {
		return nil, nil, err
	}
	return cfg, effects.NewRules(cfg.Rules()), nil
}

// processorPool returns a pool with the role and size that the processor uses for effects.
func (s *Suite) processorPool(ctx context.Context, database string) (*pgxpool.Pool, error) {
	return postgres.Connect(ctx, postgres.Options{URL: s.m.DatabaseURL(database), Role: "postern_processor",
		MaxConns: 4})
}

// executeEffects measures how fast planned effects of one step are executed: leased, started, sent
// to a destination in this program, and recorded.
func (s *Suite) executeEffects(ctx context.Context, row string, rounds, planned int) ([]Sample, error) {
	return s.inTurn(row, rounds, []string{effectsTarget},
		func(string) (Sample, error) { return s.executeOnce(ctx, planned) })
}

func (s *Suite) executeOnce(ctx context.Context, planned int) (sample Sample, err error) {
	destination, err := newTestDestination(ctx)
	if err != nil {
		return sample, err
	}
	defer func() { err = errors.Join(err, destination.server.Close()) }()
	database, err := s.ledger(ctx, "tell", "live", planned)
	defer s.drop(ctx, database, &err)
	if err = errors.Join(err, s.m.Reset(ctx)); err != nil {
		return sample, err
	}
	r := &running{database: database}
	if r.file, err = s.writeConfig(effectRules(s.m.DatabaseURL(database), s.m.NATS(), destination.url,
		destination.url)); err != nil {
		return sample, err
	}
	if r.process, err = s.m.Serve(ctx, "processor", s.trace(r), "--config", r.file); err != nil {
		return sample, err
	}
	defer func() { err = errors.Join(err, r.stop()) }()
	return s.untilDone(ctx, r, destination, planned)
}

// notDoneSQL counts the effects that are not done.
const notDoneSQL = `SELECT count(*) FROM postern.effects WHERE state <> 'done'`

// untilDone measures from the first call until the last effect is done.
func (s *Suite) untilDone(ctx context.Context, r *running, destination *testDestination, planned int) (sample Sample,
	err error) {
	for started := time.Now(); destination.received() == 0; {
		if time.Since(started) > applyWithin {
			return sample, fmt.Errorf("no effect was executed within %s, see %s", applyWithin, r.process.Log())
		}
		if err := errors.Join(r.process.Ended(), ctx.Err()); err != nil {
			return sample, err
		}
		time.Sleep(time.Millisecond)
	}
	before, err := s.before(ctx, r)
	if err != nil {
		return sample, err
	}
	first, began := destination.received(), time.Now()
	for left := 1.0; left > 0; {
		if destination.received() == planned { // count in SQL only at the end, because it costs time
			if left, err = s.number(ctx, r.database, notDoneSQL); err != nil {
				return sample, err
			}
		}
		if time.Since(began) > applyWithin {
			return sample, fmt.Errorf("%d of %d effects were executed within %s, see %s", destination.received(),
				planned, applyWithin, r.process.Log())
		}
		if err := errors.Join(r.process.Ended(), ctx.Err()); err != nil {
			return sample, err
		}
		time.Sleep(5 * time.Millisecond)
	}
	sample = rated(int64(planned-first), time.Since(began).Seconds())
	return sample, s.after(ctx, r, before, &sample)
}
