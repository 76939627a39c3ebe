package processor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
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

// queryTracer counts the statements of a pool, and the rows of their results.
type queryTracer struct {
	mu   sync.Mutex
	runs map[string]int
	rows map[string][]int64
}

type statementKey struct{}

func (s *queryTracer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	return context.WithValue(ctx, statementKey{}, q.SQL)
}

func (s *queryTracer) TraceQueryEnd(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryEndData) {
	s.mu.Lock()
	defer s.mu.Unlock()
	sql, _ := ctx.Value(statementKey{}).(string)
	s.runs[sql]++
	s.rows[sql] = append(s.rows[sql], q.CommandTag.RowsAffected())
}

// count returns how often statements that contain a text ran, and the number of rows of each run.
func (s *queryTracer) count(text string) (runs int, rows []int64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for sql, n := range s.runs {
		if strings.Contains(sql, text) {
			runs, rows = runs+n, append(rows, s.rows[sql]...)
		}
	}
	return runs, rows
}

// Texts that identify statements which the tests count.
const (
	readsObjects = "octet_length(o.state::text)"
	findsUnsent  = "WHERE sent_at IS NULL AND (created_at"
	findsLast    = "ORDER BY sequence DESC"
	probes       = "'probe'"
)

// traceQueries makes the world's processors use a traced pool.
func (w *world) traceQueries(t *testing.T) *queryTracer {
	t.Helper()
	s := &queryTracer{runs: map[string]int{}, rows: map[string][]int64{}}
	cfg := w.Pool.Config()
	cfg.ConnConfig.Tracer = s
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	must(t, err)
	t.Cleanup(pool.Close)
	w.Pool = pool
	return s
}

// eventWithText is an event of a new object whose state contains the text without escapes.
func eventWithText(name, text string) sim.Event {
	body := fmt.Sprintf(`{"id":"evt_%s","type":"thing.updated","object_id":"obj_%s","unit":1,"rank":1,"time":%d,`+
		`"object":{"id":"obj_%s","text":"%s"}}`,
		name, name, sim.Start, name, text)
	return sim.Event{Object: "obj_" + name, ReceivedAt: time.UnixMicro(sim.Start).UTC(), Body: []byte(body)}
}

// applyWithoutSending applies events like a process that ends before it publishes the changes.
func (w *world) applyWithoutSending(t *testing.T, evs []sim.Event) {
	t.Helper()
	must(t, w.processor(t, nil, nil).Apply(t.Context(), events.LiveRun, w.append(t, evs...)))
}

// changeCount returns the number of messages that the stream of changes has ever accepted.
func (w *world) changeCount(t *testing.T) uint64 {
	t.Helper()
	s, err := w.jetStream(t).Stream(t.Context(), stream.ChangesStream)
	must(t, err)
	return s.CachedInfo().State.LastSeq
}

// awaitResends waits until n more resends have begun.
func awaitResends(t *testing.T, s *queryTracer, n int) {
	t.Helper()
	before, _ := s.count(findsUnsent)
	testkit.Eventually(t, maxWait, func() error {
		if now, _ := s.count(findsUnsent); now < before+n {
			return fmt.Errorf("%d of %d resends", now-before, n)
		}
		return nil
	})
}

// A state is sent completely if its bytes fit, whatever length HTML escaping would give it, both at
// once and by a resend.
func TestSender_largeStates_areSentCompletely(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	signs, letters := strings.Repeat("<", 250<<10), strings.Repeat("€", 250<<10/3)
	w.applyWithoutSending(t, []sim.Event{eventWithText("resent_signs", signs),
		eventWithText("resent_letters", letters)})
	f := w.newFollower(t)
	w.start(t, processorOptions{})
	w.publish(t, w.append(t, eventWithText("sent_signs", signs), eventWithText("sent_letters", letters))...)
	w.awaitOutcomes(t, 4)
	f.awaitMirror(t, w)
	w.awaitAllSent(t)
}

// A state that is too large for the server is omitted and marked as such. It does not stop other
// changes, and everything is sent once.
func TestSender_stateTooLargeForServer_isOmitted(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		kib   int
		store func(t *testing.T, w *world, evs []sim.Event)
	}{
		"resent": {128, func(t *testing.T, w *world, evs []sim.Event) { w.applyWithoutSending(t, evs) }},
		"sent":   {48, func(t *testing.T, w *world, evs []sim.Event) { w.publish(t, w.append(t, evs...)...) }},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorldWithMaxPayload(t, int32(tc.kib)<<10)
			s := w.traceQueries(t)
			large, close := eventWithText("large", strings.Repeat("x", (tc.kib+10)<<10)),
				eventWithText("close", strings.Repeat("x", (tc.kib-1)<<10))
			evs := append(w.newObjects(20), large, close)
			tc.store(t, w, evs)
			w.start(t, processorOptions{})
			w.awaitOutcomes(t, len(evs))
			w.awaitAllSent(t)
			awaitResends(t, s, 2)
			if n := w.changeCount(t); n != uint64(len(evs)) {
				t.Errorf("%d changes were sent of %d objects", n, len(evs))
			}
			equal(t, "omitted states", []string{close.Object, large.Object}, w.omittedObjects(t))
		})
	}
}

// A state whose numbers expand beyond what PostgreSQL can write as text does not stop other
// objects. Events cannot produce this state: theirs expand to fifty times their bytes, which takes
// a body of 20 MB.
func TestResend_stateExpandsBeyondText_isOmitted(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	large := eventWithText("large", "x")
	evs := append(w.newObjects(20), large)
	w.applyWithoutSending(t, evs)
	w.DB.Exec(t, `UPDATE objects SET state = (SELECT jsonb_build_object('n', jsonb_agg(('1e' || 6000)::numeric))
		FROM generate_series(1, 180000))
		WHERE object_id = $1`, large.Object)
	w.start(t, processorOptions{})
	w.awaitAllSent(t)
	equal(t, "omitted states", []string{large.Object}, w.omittedObjects(t))
	if n := w.changeCount(t); n != uint64(len(evs)) {
		t.Errorf("%d changes were sent of %d objects", n, len(evs))
	}
}

// omittedObjects returns the objects whose changes have an omitted state, in order.
func (w *world) omittedObjects(t *testing.T) (ids []string) {
	t.Helper()
	s, err := w.jetStream(t).Stream(t.Context(), stream.ChangesStream)
	must(t, err)
	for n := s.CachedInfo().State.FirstSeq; n <= s.CachedInfo().State.LastSeq; n++ {
		msg, err := s.GetMsg(t.Context(), n)
		must(t, err)
		var c struct {
			feedObject
			StateOmitted bool `json:"state_omitted"`
		}
		must(t, json.Unmarshal(msg.Data, &c))
		if c.StateOmitted != (c.State == nil) {
			t.Errorf("change of %s: state omitted %v, state %.80v", c.ID, c.StateOmitted, c.State)
		}
		if c.StateOmitted {
			ids = append(ids, c.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

// An object that several unsent rows name is read and sent once.
func TestResend_severalRowsNameObject_sendsItOnce(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	s := w.traceQueries(t)
	w.applyWithoutSending(t, []sim.Event{eventWithText("busy", "x")})
	w.DB.Exec(t, `INSERT INTO outbox (sources, accounts, types, ids, created_at)
		SELECT sources, accounts, types, ids, created_at FROM outbox, generate_series(1, 63)`)
	w.start(t, processorOptions{})
	w.awaitAllSent(t)
	if _, rows := s.count(readsObjects); len(rows) != 1 || rows[0] != 1 {
		t.Errorf("reads of the object gave %v rows, want a single read of one row", rows)
	}
	if n := w.changeCount(t); n != 1 {
		t.Errorf("%d changes of one object were sent", n)
	}
}

// However many objects the rows name, only a limited number is read at a time.
func TestResend_manyObjects_readsInBounds(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	s := w.traceQueries(t)
	const objects, most = 450, 100
	w.applyWithoutSending(t, w.newObjects(objects))
	f := w.newFollower(t)
	w.start(t, processorOptions{})
	f.awaitMirror(t, w)
	w.awaitAllSent(t)
	_, rows := s.count(readsObjects)
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

// After a reconnect the check finds the resent changes where they were sent: nothing is sent again.
func TestResend_reconnect_sendsNothingAgain(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	s := w.traceQueries(t)
	for i := range 5 {
		w.applyWithoutSending(t, renameObjects(i, w.newObjects(30)))
	}
	f := w.newFollower(t)
	w.start(t, processorOptions{})
	f.awaitMirror(t, w)
	w.awaitAllSent(t)
	before, _ := s.count(findsLast)
	sent := w.changeCount(t)
	w.nats.Restart(t)
	testkit.Eventually(t, maxWait, func() error {
		if n, _ := s.count(findsLast); n == before {
			return errors.New("the stream was not checked for loss")
		}
		return nil
	})
	awaitResends(t, s, 2)
	if n := w.changeCount(t); n != sent {
		t.Errorf("%d changes were sent again", n-sent)
	}
}

func TestAnnounce_allObjects_insertsEachOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	p := b.processor(t, nil, nil)
	var batch []stream.Event
	for i := range 450 {
		batch = append(batch, applied.ThingEvent(i, fmt.Sprint("n", i)))
	}
	must(t, p.Apply(t.Context(), events.LiveRun, batch))
	b.DB.Exec(t, `TRUNCATE outbox`)
	operator := b.DB.Role(t, "operator")
	for source, want := range map[int32]int{0: 450, b.Source: 450, b.Source + 1: 0} {
		if n, err := processor.Announce(t.Context(), operator, source, "thing"); err != nil || n != want {
			t.Errorf("source %d: announced %d, %v, want %d", source, n, err, want)
		}
	}
	if n, err := processor.Announce(t.Context(), operator, 0, "other"); err != nil || n != 0 {
		t.Errorf("announced %d of another type, %v", n, err)
	}
	var rows, names int
	b.Scan(t, `SELECT count(DISTINCT id), count(*) FROM outbox, unnest(ids) id WHERE sent_at IS NULL`, &rows, &names)
	if rows != 450 || names != 900 {
		t.Errorf("%d objects named %d times, want 450 twice", rows, names)
	}
	// Old enough for the next resend, and too young for an alarm about unsent changes.
	var due bool
	b.Scan(t, `SELECT bool_and(clock_now() - created_at BETWEEN '30 seconds' AND '15 minutes') FROM outbox`, &due)
	if !due {
		t.Error("announced changes have an age that delays them or raises an alarm")
	}
	// A process forwards a row only if it has all of its sources.
	b.DB.Exec(t, `TRUNCATE outbox; INSERT INTO objects SELECT (jsonb_populate_record(o, jsonb_build_object('source',
		o.source + 1))).* FROM objects o LIMIT 1`)
	if n, err := processor.Announce(t.Context(), operator, 0, "thing"); err != nil || n != 451 {
		t.Errorf("announced %d of two sources, %v", n, err)
	}
	b.Scan(t, `SELECT count(*) FROM outbox WHERE sources[1] <> sources[cardinality(sources)]`, &rows)
	if rows != 0 {
		t.Errorf("%d rows have two sources", rows)
	}
}
