package processor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// machine is everything between a delivery and an outcome with its faults under rapid's control. The log, the objects, the
// outcomes and the auditor with the stream it asks are real. The messages on their way to a processor are kept in a queue of
// the machine's own, since a real consumer gives a message again only after a time, which no shrinking could repeat.
type machine struct {
	*world
	t       *testing.T
	r       *rapid.T
	history *sim.History
	source  int32
	name    string
	// ids of the appended events by their place in the history; the model's set of keys.
	ids   map[int]int64
	queue []stream.Event
	hand  []stream.Event // delivered to a processor and not acknowledged
	procs []*processor.Processor
	pass  func(context.Context) error
	js    jetstream.JetStream
}

// withSources is a processor's options for other sources, under a registry of their own.
func withSources(o processor.Options, sources map[string]processor.Source) processor.Options {
	o.Sources, o.Metrics = sources, prometheus.NewRegistry()
	return o
}

// choices lets rapid make a history, so that it can shrink it.
type choices struct{ r *rapid.T }

func (c choices) IntN(n int) int { return rapid.IntRange(0, n-1).Draw(c.r, "choice") }

// Deliver, publish or lose it, apply in any interleaving, crash before or after the commit, redeliver, wipe: in the end every
// appended event has one outcome and the objects are what the pure rule makes of the events.
func TestStateMachine(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.db.Exec(t, crashSQL)
	js := w.jetStream(t)
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		n++
		m := &machine{world: w, t: t, r: r, name: fmt.Sprint("sim", n), ids: map[int]int64{}, js: js}
		m.begin()
		actions := []func(){m.deliver, m.deliver, m.lose, m.take, m.apply, m.apply, m.crashInCommit, m.acknowledge, m.crash, m.redeliver, m.wipe, m.audit}
		for range rapid.IntRange(5, 25).Draw(r, "steps") {
			actions[rapid.IntRange(0, len(actions)-1).Draw(r, "action")]()
		}
		m.heal()
		m.check()
	})
}

// crashSQL lets a test end every transaction that writes objects at its commit, as a dying server would.
const crashSQL = `
CREATE TABLE crashing (now boolean);
INSERT INTO crashing VALUES (false);
GRANT SELECT ON crashing TO PUBLIC;
CREATE FUNCTION crash() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (SELECT c.now FROM crashing c) THEN RAISE EXCEPTION 'the server dies' USING ERRCODE = '57P01'; END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER crash AFTER INSERT OR UPDATE ON objects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION crash()`

func (m *machine) begin() {
	kind := rapid.SampledFrom([]string{"event time", "ids reused", "integers", "own version", "steps"}).Draw(m.r, "kind")
	o := kinds[kind]
	o.Objects, o.Changes = 2, 4
	m.history = sim.Generate(choices{m.r}, o)
	known, err := events.RegisterSources(m.t.Context(), m.pool, map[string]string{m.name: "sim"})
	m.must(err)
	m.source = known.Number[m.name]
	sources := map[string]processor.Source{m.name: {Number: m.source, Config: &provider.Source{Name: m.name}, Provider: sim.Provider{}}}
	for range rapid.IntRange(1, 3).Draw(m.r, "processors") {
		p := m.processor(m.t, sim.Provider{}, nil)
		p, err = processor.New(withSources(p.Options, sources))
		m.must(err)
		m.procs = append(m.procs, p)
	}
	o2 := withSources(m.procs[0].Options, sources)
	o2.Conn, o2.Settings.AuditAge = m.conn, 0
	auditing, err := processor.New(o2)
	m.must(err)
	m.pass = processor.AuditPass(auditing)
}

func (m *machine) must(err error) {
	if err != nil {
		m.r.Fatal(err)
	}
}

// one is any place of a list.
func (m *machine) one(n int) int { return rapid.IntRange(0, n-1).Draw(m.r, "which") }

// deliver appends an event, perhaps not for the first time, and publishes it where that is new.
func (m *machine) deliver() {
	if e, fresh := m.append(); fresh {
		m.queue = append(m.queue, e)
	}
}

// lose appends an event whose publishing fails.
func (m *machine) lose() { m.append() }

func (m *machine) append() (stream.Event, bool) {
	i := m.one(len(m.history.Events))
	e := m.history.Events[i]
	d := m.delivery(m.name+e.Key, e)
	d.Source = m.source
	receipts, err := events.Append(m.t.Context(), m.gateway, []events.Delivery{d})
	m.must(err)
	r := receipts[0][0]
	if id, known := m.ids[i]; known != r.Duplicate || known && id != r.ID {
		m.r.Fatalf("event %d is %+v; appended before: %v, as %d", i, r, known, id)
	}
	m.ids[i] = r.ID
	return m.carried(i), !r.Duplicate
}

// carried is an event of the history as the stream carries it.
func (m *machine) carried(i int) stream.Event {
	ev := message(0, m.history.Events[i])
	ev.Source, ev.ID = m.name, m.ids[i]
	return ev
}

// take hands some waiting messages, in any order, to processors.
func (m *machine) take() {
	for range rapid.IntRange(1, 6).Draw(m.r, "batch") {
		if len(m.queue) == 0 {
			return
		}
		i := m.one(len(m.queue))
		m.hand = append(m.hand, m.queue[i])
		m.queue = slices.Delete(m.queue, i, i+1)
	}
}

// apply lets one processor apply some of what is in hand; the acknowledgement is a step of its own.
func (m *machine) apply() {
	if batch := m.some(); len(batch) > 0 {
		m.must(m.procs[m.one(len(m.procs))].Apply(m.t.Context(), events.LiveRun, batch))
	}
}

func (m *machine) some() []stream.Event {
	if len(m.hand) == 0 {
		return nil
	}
	from := m.one(len(m.hand))
	return slices.Clone(m.hand[from : from+1+m.one(len(m.hand)-from)])
}

// crashInCommit lets the server die before an apply is committed.
func (m *machine) crashInCommit() {
	batch := m.some()
	if len(batch) == 0 {
		return
	}
	m.exec(`UPDATE crashing SET now = true`)
	err := m.procs[0].Apply(m.t.Context(), events.LiveRun, batch)
	m.exec(`UPDATE crashing SET now = false`)
	if err != nil && !errors.Is(err, events.ErrUnavailable) {
		m.r.Fatalf("applying on a dying server: %v", err)
	}
}

func (m *machine) exec(sql string) {
	_, err := m.db.Pool.Exec(m.t.Context(), sql)
	m.must(err)
}

// acknowledge takes from hand what a processor would: only what has its outcome.
func (m *machine) acknowledge() {
	done := m.outcomesOf()
	m.hand = slices.DeleteFunc(m.hand, func(e stream.Event) bool { return done[e.ID] == 1 })
}

// crash ends all processors: what is in hand comes again.
func (m *machine) crash() { m.queue, m.hand = append(m.queue, m.hand...), nil }

// redeliver brings a message again while its first copy is in hand.
func (m *machine) redeliver() {
	if len(m.hand) > 0 {
		m.queue = append(m.queue, m.hand[m.one(len(m.hand))])
	}
}

// wipe loses the stream; what is in hand stays there.
func (m *machine) wipe() { m.queue = nil }

// audit lets the auditor make a pass, and moves what it published into the queue.
func (m *machine) audit() {
	m.must(m.pass(m.t.Context()))
	s, err := m.js.Stream(m.t.Context(), stream.EventsStream)
	m.must(err)
	state := s.CachedInfo().State
	for seq := state.FirstSeq; seq <= state.LastSeq && state.Msgs > 0; seq++ {
		msg, err := s.GetMsg(m.t.Context(), seq)
		m.must(err)
		id, err := strconv.ParseInt(msg.Header.Get("Postern-Id"), 10, 64)
		m.must(err)
		for i, known := range m.ids {
			if known == id {
				m.queue = append(m.queue, m.carried(i))
			}
		}
	}
	m.must(s.Purge(m.t.Context()))
}

// heal lets the auditor and a processor go on until every event has an outcome.
func (m *machine) heal() {
	for range 50 {
		m.audit()
		m.crash()
		m.hand, m.queue = m.queue, nil
		if len(m.hand) > 0 {
			m.must(m.procs[0].Apply(m.t.Context(), events.LiveRun, m.hand))
		}
		if m.hand = nil; len(m.outcomesOf()) == len(m.ids) {
			return
		}
	}
	m.r.Fatalf("%d of %d events have an outcome, and no pass brings the others", len(m.outcomesOf()), len(m.ids))
}

// outcomesOf counts the outcomes of each event of this history.
func (m *machine) outcomesOf() map[int64]int {
	n := map[int64]int{}
	rows, err := m.db.Pool.Query(m.t.Context(), `SELECT event_id FROM outcomes WHERE source = $1 AND run = 0 AND status <> 'failed'`, m.source)
	m.must(err)
	defer rows.Close()
	for rows.Next() {
		var id int64
		m.must(rows.Scan(&id))
		n[id]++
	}
	m.must(rows.Err())
	return n
}

// check compares outcomes and objects with the model: the pure rule over the set of appended keys.
func (m *machine) check() {
	for i, id := range m.ids {
		if n := m.outcomesOf()[id]; n != 1 {
			m.r.Fatalf("event %d has %d outcomes", i, n)
		}
	}
	want := map[string]versioning.Row{}
	for i := range m.ids {
		e := m.carried(i)
		obs, err := (sim.Provider{}).Observe(nil, &e.Stored)
		m.must(err)
		in, err := versioning.FromObservation(obs, e.ReceivedAt)
		m.must(err)
		row, ok := want[obs.ObjectID]
		if !ok {
			row = versioning.NewRow()
		}
		versioning.Apply(&row, in)
		want[obs.ObjectID] = row
	}
	b := *m.testBundle
	b.source = m.source
	for id, row := range want {
		if diff := cmp.Diff(row, b.object(m.t, id).Row, same, cmpopts.EquateEmpty()); diff != "" {
			m.r.Fatalf("object %s (-pure rule +database):\n%s", id, diff)
		}
	}
	var revisions, changes, objects int
	m.must(m.db.Pool.QueryRow(m.t.Context(), `SELECT (SELECT coalesce(sum(revision), 0) FROM objects WHERE source = $1),
		(SELECT count(*) FROM outbox o, unnest(o.sources) s WHERE s = $1), (SELECT count(*) FROM objects WHERE source = $1)`, m.source).Scan(&revisions, &changes, &objects))
	if revisions != changes || objects != len(want) {
		m.r.Fatalf("revisions grew %d times and left %d changes; %d objects, want %d", revisions, changes, objects, len(want))
	}
}
