package processor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// statements counts what a pool was asked, and the rows it answered.
type statements struct {
	mu   sync.Mutex
	runs map[string]int
	rows map[string][]int64
}

type statementKey struct{}

func (s *statements) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, statementKey{}, q.SQL)
}

func (s *statements) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryEndData) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sql, _ := ctx.Value(statementKey{}).(string)
	s.runs[sql]++
	s.rows[sql] = append(s.rows[sql], q.CommandTag.RowsAffected())
}

// of tells how often a statement with the given words ran, and how many rows each run gave.
func (s *statements) of(words string) (runs int, rows []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for sql, n := range s.runs {
		if strings.Contains(sql, words) {
			runs, rows = runs+n, append(rows, s.rows[sql]...)
		}
	}
	return runs, rows
}

// Words of the statements that the tests count.
const (
	readsObjects = "octet_length(o.state::text)"
	findsUnsent  = "WHERE sent_at IS NULL AND (made_at"
	findsLast    = "ORDER BY sequence DESC"
	probes       = "'probe'"
)

// traced makes the world's processors use a pool that is watched.
func (w *world) traced(t *testing.T) *statements {
	t.Helper()
	s := &statements{runs: map[string]int{}, rows: map[string][]int64{}}
	cfg := w.pool.Config()
	cfg.ConnConfig.Tracer = s
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	must(t, err)
	t.Cleanup(pool.Close)
	w.pool = pool
	return s
}

// smallWorld has a server that takes messages up to a size only.
func smallWorld(t *testing.T, maxPayload int32) *world {
	t.Helper()
	b := setup(t)
	w := &world{testBundle: b, nats: testkit.JetStreamMaxPayload(t, maxPayload), limits: stream.DefaultLimits, gateway: b.db.Role(t, "gateway")}
	w.limits.MaxBytes = 256 << 20
	var err error
	w.conn, err = stream.Connect(stream.Options{URL: w.nats.URL, Name: t.Name(), Logger: slog.New(slog.DiscardHandler)})
	must(t, err)
	t.Cleanup(w.conn.Close)
	w.reconnectedEmpty(t)
	return w
}

// filled is an event of an object of its own whose state holds text as it is, without escapes.
func filled(name, text string) sim.Event {
	body := fmt.Sprintf(`{"id":"evt_%s","type":"thing.updated","object_id":"obj_%s","unit":1,"rank":1,"time":%d,"object":{"id":"obj_%s","text":"%s"}}`,
		name, name, sim.Start, name, text)
	return sim.Event{Object: "obj_" + name, ReceivedAt: time.UnixMicro(sim.Start).UTC(), Body: []byte(body)}
}

// unsent applies events as a process does that ends before it publishes.
func (w *world) unsent(t *testing.T, evs []sim.Event) {
	t.Helper()
	must(t, w.processor(t, sim.Provider{}, nil).Apply(t.Context(), events.LiveRun, w.append(t, evs...)))
}

// changes is how many messages the stream of changes ever took.
func (w *world) changes(t *testing.T) uint64 {
	t.Helper()
	s, err := w.jetStream(t).Stream(t.Context(), stream.ChangesStream)
	must(t, err)
	return s.CachedInfo().State.LastSeq
}

// sweeps waits until n more sweeps have begun.
func sweeps(t *testing.T, s *statements, n int) {
	t.Helper()
	before, _ := s.of(findsUnsent)
	testkit.Eventually(t, patience, func() error {
		if now, _ := s.of(findsUnsent); now < before+n {
			return fmt.Errorf("%d of %d sweeps", now-before, n)
		}
		return nil
	})
}

// A state travels whole as long as its bytes fit, whatever its letters would need in HTML: sent at once or swept.
func TestLargeStatesTravel(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	signs, letters := strings.Repeat("<", 250<<10), strings.Repeat("€", 250<<10/3)
	w.unsent(t, []sim.Event{filled("swept_signs", signs), filled("swept_letters", letters)})
	f := w.follow(t)
	w.start(t, setting{})
	w.publish(t, w.append(t, filled("sent_signs", signs), filled("sent_letters", letters))...)
	w.outcomes(t, 4)
	f.ends(t, w)
	w.allSent(t)
}

// A state that is too large for the server is left out, said so, and holds up no neighbour: everything is sent once.
func TestStateTooLargeForTheServerIsOmitted(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		kib   int
		store func(t *testing.T, w *world, evs []sim.Event)
	}{
		"swept": {128, func(t *testing.T, w *world, evs []sim.Event) { w.unsent(t, evs) }},
		"sent":  {48, func(t *testing.T, w *world, evs []sim.Event) { w.publish(t, w.append(t, evs...)...) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := smallWorld(t, int32(tc.kib)<<10)
			s := w.traced(t)
			large, close := filled("large", strings.Repeat("x", (tc.kib+10)<<10)), filled("close", strings.Repeat("x", (tc.kib-1)<<10))
			evs := append(w.simple(20), large, close)
			tc.store(t, w, evs)
			w.start(t, setting{})
			w.outcomes(t, len(evs))
			w.allSent(t)
			sweeps(t, s, 2)
			if n := w.changes(t); n != uint64(len(evs)) {
				t.Errorf("%d changes were sent of %d objects", n, len(evs))
			}
			if got, want := w.omitted(t), []string{large.Object, close.Object}; !slices.Equal(slices.Sorted(slices.Values(got)), slices.Sorted(slices.Values(want))) {
				t.Errorf("states left out: %v, want those of %v", got, want)
			}
		})
	}
}

// A state whose numbers expand beyond what PostgreSQL can write holds up no other object. Events cannot make this one;
// theirs expand to fifty times their bytes, which takes a body of 20 MB.
func TestSweep_stateExpandsBeyondText_isOmitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	large := filled("large", "x")
	evs := append(w.simple(20), large)
	w.unsent(t, evs)
	w.db.Exec(t, `UPDATE objects SET state = (SELECT jsonb_build_object('n', jsonb_agg(('1e' || 6000)::numeric)) FROM generate_series(1, 180000))
		WHERE object_id = $1`, large.Object)
	w.start(t, setting{})
	w.allSent(t)
	if got := w.omitted(t); !slices.Equal(got, []string{large.Object}) {
		t.Errorf("states left out: %v, want that of %s", got, large.Object)
	}
	if n := w.changes(t); n != uint64(len(evs)) {
		t.Errorf("%d changes were sent of %d objects", n, len(evs))
	}
}

// omitted are the objects whose changes say that the state was left out.
func (w *world) omitted(t *testing.T) (ids []string) {
	t.Helper()
	s, err := w.jetStream(t).Stream(t.Context(), stream.ChangesStream)
	must(t, err)
	for n := s.CachedInfo().State.FirstSeq; n <= s.CachedInfo().State.LastSeq; n++ {
		msg, err := s.GetMsg(t.Context(), n)
		must(t, err)
		var c struct {
			told
			StateOmitted bool `json:"state_omitted"`
		}
		must(t, json.Unmarshal(msg.Data, &c))
		if c.StateOmitted != (c.State == nil) {
			t.Errorf("change of %s: state left out %v, state %.80v", c.ID, c.StateOmitted, c.State)
		}
		if c.StateOmitted {
			ids = append(ids, c.ID)
		}
	}
	return ids
}

// An object that many unsent rows name is read and sent once.
func TestSweepSendsAnObjectOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	s := w.traced(t)
	w.unsent(t, []sim.Event{filled("busy", "x")})
	w.db.Exec(t, `INSERT INTO outbox (sources, accounts, types, ids, made_at)
		SELECT sources, accounts, types, ids, made_at FROM outbox, generate_series(1, 63)`)
	w.start(t, setting{})
	w.allSent(t)
	if _, rows := s.of(readsObjects); len(rows) != 1 || rows[0] != 1 {
		t.Errorf("reads of the object gave %v rows, want one of one", rows)
	}
	if n := w.changes(t); n != 1 {
		t.Errorf("%d changes of one object were sent", n)
	}
}

// However many objects the rows name, only so many are in memory at a time.
func TestSweepReadsInBounds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	s := w.traced(t)
	const objects, most = 450, 100
	w.unsent(t, w.simple(objects))
	f := w.follow(t)
	w.start(t, setting{})
	f.ends(t, w)
	w.allSent(t)
	_, rows := s.of(readsObjects)
	sum := int64(0)
	for _, n := range rows {
		if sum += n; n > most {
			t.Errorf("%d objects were read at once, more than %d", n, most)
		}
	}
	if sum != objects {
		t.Errorf("%d objects were read, want %d", sum, objects)
	}
}

// After a reconnect what a sweep sent is found where it was sent: nothing is sent again.
func TestSweptChangesAreFoundAfterAReconnect(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	s := w.traced(t)
	for i := range 5 {
		w.unsent(t, renamed(i, w.simple(30)))
	}
	f := w.follow(t)
	w.start(t, setting{})
	f.ends(t, w)
	w.allSent(t)
	before, _ := s.of(findsLast)
	sent := w.changes(t)
	w.nats.Restart(t)
	testkit.Eventually(t, patience, func() error {
		if n, _ := s.of(findsLast); n == before {
			return errors.New("nobody asks what the stream still has")
		}
		return nil
	})
	sweeps(t, s, 2)
	if n := w.changes(t); n != sent {
		t.Errorf("%d changes were sent again", n-sent)
	}
}

func TestAnnounceNamesEveryObjectOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, sim.Provider{}, nil)
	var batch []stream.Event
	for i := range 450 {
		batch = append(batch, thing(i, fmt.Sprint("n", i)))
	}
	must(t, p.Apply(t.Context(), events.LiveRun, batch))
	b.db.Exec(t, `TRUNCATE outbox`)
	operator := b.db.Role(t, "operator")
	for source, want := range map[int32]int{0: 450, b.source: 450, b.source + 1: 0} {
		if n, err := processor.Announce(t.Context(), operator, source, "thing"); err != nil || n != want {
			t.Errorf("source %d: announced %d, %v, want %d", source, n, err, want)
		}
	}
	if n, err := processor.Announce(t.Context(), operator, 0, "other"); err != nil || n != 0 {
		t.Errorf("announced %d of another type, %v", n, err)
	}
	var rows, names int
	b.scan(t, `SELECT count(DISTINCT id), count(*) FROM outbox, unnest(ids) id WHERE sent_at IS NULL`, &rows, &names)
	if rows != 450 || names != 900 {
		t.Errorf("%d objects named %d times, want 450 twice", rows, names)
	}
}

// An event waits for its outcome as long as it is in the log; one that retention has dropped waits for nothing.
func TestPending(t *testing.T) {
	t.Parallel()
	l := applied.New(t)
	p := l.Processor(t, nil)
	sample := sim.Provider{}.Samples()[0]
	ids := l.Append(t, l.Source, []sim.Event{{Object: "obj_1", Body: sample.Body}, {Object: "obj_1", Body: sample.Body}})
	pending := func(want int64, ids ...int64) {
		t.Helper()
		if n, err := p.Pending(t.Context(), ids); err != nil || n != want {
			t.Errorf("%d of %d wait (%v), want %d", n, len(ids), err, want)
		}
	}
	awaited := func(want int64, because string, ids ...int64) {
		t.Helper()
		if id, reason, err := p.Awaited(t.Context(), ids); err != nil || id != want || reason != because {
			t.Errorf("%d is awaited since %q (%v), want %d since %q", id, reason, err, want, because)
		}
	}
	pending(2, ids[0], ids[1], 7) // 7 is in no partition
	awaited(min(ids[0], ids[1]), "", ids...)
	must(t, errOf(p.Enter(t.Context(), ids[:1])))
	pending(1, ids...)
	awaited(ids[1], "", ids...)
	l.DB.Exec(t, `UPDATE outcomes SET status = 'failed', reason = 'down', due = clock_now()`)
	pending(2, ids...)
	awaited(ids[0], "down", ids...)
	pending(0, 7)
	awaited(0, "", 7)
}
