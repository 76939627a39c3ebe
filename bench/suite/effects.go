package suite

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Effects are carried out by a processor that has nothing else to do.
const Effects = "effects"

// other is another side in this program: it answers at once, and says when what it was told came.
type other struct {
	server *http.Server
	url    string

	mu   sync.Mutex
	came map[string]time.Time
}

func newOther(ctx context.Context) (*other, error) {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	o := &other{url: "http://" + l.Addr().String(), came: map[string]time.Time{}}
	o.server = &http.Server{Handler: http.HandlerFunc(o.answer), ReadHeaderTimeout: time.Minute}
	go func() { _ = o.server.Serve(l) }() // until it is closed
	return o, nil
}

func (o *other) answer(w http.ResponseWriter, r *http.Request) {
	if _, err := io.Copy(io.Discard, r.Body); err != nil {
		return
	}
	at := time.Now()
	o.mu.Lock()
	o.came[r.URL.Path] = at
	o.mu.Unlock()
	_, _ = io.WriteString(w, `{"id": "1"}`) // whoever has left needs none
}

// told is how many different things it was told.
func (o *other) told() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.came)
}

// silent is another side that takes connections and answers nothing.
func silent(ctx context.Context) (url string, end func() error, err error) {
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
				_, _ = io.Copy(io.Discard, conn) // until whoever waits gives up
				_ = conn.Close()
			}()
		}
	}()
	return "http://" + l.Addr().String(), l.Close, nil
}

// effectRules are two rules about customers, each of one step: one for each event, whose other side
// is live, and one whose other side is dead.
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
    steps: [{name: tell, to: live, path: "/{{ event.id }}", json: {customer: "{{ object.id }}", balance: "{{ new.balance }}"}, capture: {id: id}}]
  price:
    source: shop
    type: customer
    key: "price:{{ object.id }}:{{ event.id }}"
    supersede: true
    steps: [{name: tell, to: dead, path: "/{{ event.id }}", json: {customer: "{{ object.id }}", balance: "{{ new.balance }}"}}]
`, database, nats, secret, live, dead)
}

// plannedSQL plans effects as a processor does, of the numbers from $3 to $4, each about an object
// of its own.
const plannedSQL = `
INSERT INTO postern.effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run, facts,
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

// ledger makes a database with so many planned effects of a rule, whose next step goes to a
// destination. It gives the name even where it fails.
func (s *Suite) ledger(ctx context.Context, rule, destination string, planned int) (database string, err error) {
	if database, err = s.m.NewDatabaseQuietly(ctx); err != nil {
		return "", err
	}
	conn, err := s.m.Connect(ctx, database)
	if err != nil {
		return database, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	if _, err := conn.Exec(ctx, "SET synchronous_commit = off; INSERT INTO postern.sources (name, provider) VALUES "+
		"('shop', 'stripe')"); err != nil {
		return database, err
	}
	const each = 100_000
	for at := 1; at <= planned; at += each {
		if _, err := conn.Exec(ctx, plannedSQL, rule, destination, at, min(at+each-1, planned)); err != nil {
			return database, fmt.Errorf("plan effects: %w", err)
		}
		s.log.Info("plan effects by SQL", "done", at-1, "of", planned)
	}
	_, err = conn.Exec(ctx, "VACUUM ANALYZE")
	return database, err
}

// rules are those of a configuration.
func rulesOf(text string) (*config.Config, *effects.Rules, error) {
	cfg, err := config.Parse([]byte(text), os.Getenv)
	if err != nil {
		return nil, nil, err
	}
	return cfg, effects.NewRules(cfg.Rules()), nil
}

// processorPool is a pool as the processor has one for effects.
func (s *Suite) processorPool(ctx context.Context, database string) (*pgxpool.Pool, error) {
	return postgres.Connect(ctx, postgres.Options{URL: s.m.DatabaseURL(database), Role: "postern_processor",
		MaxConns: 4})
}

// EffectsCarriedOut measures how fast so many planned effects of one step are carried out: taken,
// entered, sent to another side in this program, and recorded.
func (s *Suite) EffectsCarriedOut(ctx context.Context, row string, rounds, planned int) (samples []Sample, err error) {
	for round := range rounds {
		sample, err := s.carriedOut(ctx, planned)
		if err != nil {
			return samples, fmt.Errorf("%s: %w", row, err)
		}
		sample.Row, sample.Target, sample.Round = row, Effects, round
		samples = append(samples, sample)
		s.log.Info(row, "round", round+1, "of", rounds, "rate", int(sample.Rate), "cpu",
			fmt.Sprintf("%.0f", sample.ServerCPU()), "wal", int(sample.WAL))
	}
	return samples, nil
}

func (s *Suite) carriedOut(ctx context.Context, planned int) (sample Sample, err error) {
	to, err := newOther(ctx)
	if err != nil {
		return sample, err
	}
	defer func() { err = errors.Join(err, to.server.Close()) }()
	database, err := s.ledger(ctx, "tell", "live", planned)
	if database != "" {
		defer func() { err = errors.Join(err, s.m.DropDatabase(context.WithoutCancel(ctx), database)) }()
	}
	if err = errors.Join(err, s.m.Settle(ctx)); err != nil {
		return sample, err
	}
	s.files++
	file := filepath.Join(s.m.Dir, fmt.Sprintf("postern-%d.yaml", s.files))
	if err := os.WriteFile(file, []byte(effectRules(s.m.DatabaseURL(database), s.m.NATS(), to.url, to.url)),
		0o600); err != nil {
		return sample, err
	}
	r := &running{database: database}
	if r.process, _, r.admin, err = s.m.Serve(ctx, "processor", s.trace(r), "--config", file); err != nil {
		return sample, err
	}
	defer func() { err = errors.Join(err, r.process.Stop()) }()
	return s.untilDone(ctx, r, to, planned)
}

// notDoneSQL is how many effects are not done.
const notDoneSQL = `SELECT count(*) FROM postern.effects WHERE state <> 'done'`

// untilDone measures from the first call on until the last effect is done.
func (s *Suite) untilDone(ctx context.Context, r *running, to *other, planned int) (sample Sample, err error) {
	conn, err := s.m.Connect(ctx, r.database)
	if err != nil {
		return sample, err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	for started := time.Now(); to.told() == 0; {
		if time.Since(started) > applyWithin {
			return sample, fmt.Errorf("no effect was carried out within %s, see %s", applyWithin, r.process.Log())
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
	first, began := to.told(), time.Now()
	for left := planned; left > 0; {
		if to.told() == planned { // so that counting costs little
			if err := conn.QueryRow(ctx, notDoneSQL).Scan(&left); err != nil {
				return sample, err
			}
		}
		if time.Since(began) > applyWithin {
			return sample, fmt.Errorf("%d of %d effects were carried out within %s, see %s", to.told(), planned,
				applyWithin, r.process.Log())
		}
		if err := errors.Join(r.process.Ended(), ctx.Err()); err != nil {
			return sample, err
		}
		time.Sleep(5 * time.Millisecond)
	}
	sample = Sample{Events: int64(planned - first), Seconds: time.Since(began).Seconds()}
	sample.Rate = float64(sample.Events) / sample.Seconds
	return sample, s.after(ctx, r, before, &sample)
}
