package processor_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"testing"

	"github.com/google/go-cmp/cmp/cmpopts"
	"github.com/nats-io/nats.go/jetstream"
	"github.com/prometheus/client_golang/prometheus"
	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// machine runs everything between a delivery and an outcome, with faults under rapid's control. The
// log, the objects, the outcomes, and the republisher with its stream are real. Messages to a
// processor are in a queue of the machine, because a real consumer redelivers only after a time,
// which shrinking cannot repeat.
type machine struct {
	*world
	t       *testing.T
	r       *rapid.T
	history *sim.History
	source  int32
	name    string
	// ids are the ids of the appended events by their position in the history: the model's set of
	// keys.
	ids        map[int]int64
	queue      []stream.Event
	inProgress []stream.Event // delivered to a processor and not acknowledged
	procs      []*processor.Processor
	pass       func(context.Context) error
	js         jetstream.JetStream
}

// withSources returns a processor's options for other sources, with a new metrics registry.
func withSources(o processor.Options, sources map[string]apply.Source) processor.Options {
	o.Sources, o.Metrics = sources, prometheus.NewRegistry()
	return o
}

// choices lets rapid generate a history, so that it can shrink it.
type choices struct{ r *rapid.T }

func (c choices) IntN(n int) int { return rapid.IntRange(0, n-1).Draw(c.r, "choice") }

// Deliver an event, publish or lose it, apply in any interleaving, crash before or after the
// commit, redeliver, wipe the stream: in the end every appended event has one outcome, and the
// objects equal the result of the pure rule.
func TestProcessor_randomFaults_eachEventHasOneOutcome(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	w.DB.Exec(t, crashSQL)
	js := w.jetStream(t)
	n := 0
	rapid.Check(t, func(r *rapid.T) {
		n++
		m := &machine{world: w, t: t, r: r, name: fmt.Sprint("sim", n), ids: map[int]int64{}, js: js}
		m.begin()
		actions := []func(){m.deliver, m.deliver, m.lose, m.take, m.apply, m.apply, m.crashInCommit, m.acknowledge,
			m.crash, m.redeliver, m.wipe, m.republish}
		for range rapid.IntRange(5, 25).Draw(r, "steps") {
			actions[rapid.IntRange(0, len(actions)-1).Draw(r, "action")]()
		}
		m.finish()
		m.check()
	})
}

// crashSQL lets a test fail every transaction that writes objects at its commit, as a dying server
// does.
const crashSQL = `
CREATE TABLE crashing (now boolean);
INSERT INTO crashing VALUES (false);
GRANT SELECT ON crashing TO PUBLIC;
CREATE FUNCTION crash() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF (SELECT c.now FROM crashing c) THEN RAISE EXCEPTION 'the server dies' USING ERRCODE = '57P01'; END IF;
  RETURN NULL;
END $$;
CREATE CONSTRAINT TRIGGER crash AFTER INSERT OR UPDATE ON objects DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE
	FUNCTION crash()`

func (m *machine) begin() {
	kind := rapid.SampledFrom([]string{"event time", "ids reused", "integers", "own version", "steps"}).Draw(m.r,
		"kind")
	o := applied.ProviderKinds[kind]
	o.Objects, o.Changes = 2, 4
	m.history = sim.Generate(choices{m.r}, o)
	known, err := events.RegisterSources(m.t.Context(), m.Pool, map[string]string{m.name: "sim"})
	m.must(err)
	m.source = known.Number[m.name]
	sources := map[string]apply.Source{m.name: {Number: m.source, Config: &provider.Source{Name: m.name},
		Provider: sim.Provider{}}}
	for range rapid.IntRange(1, 3).Draw(m.r, "processors") {
		p, err := processor.New(withSources(m.options(m.t, sim.Provider{}), sources))
		m.must(err)
		m.procs = append(m.procs, p)
	}
	o2 := withSources(m.options(m.t, sim.Provider{}), sources)
	o2.Conn, o2.Settings.RepublishMinAge = m.conn, 0
	republishing, err := processor.New(o2)
	m.must(err)
	m.pass = processor.RepublishPass(republishing)
}

func (m *machine) must(err error) {
	if err != nil {
		m.r.Fatal(err)
	}
}

// index draws a position in a list.
func (m *machine) index(n int) int { return rapid.IntRange(0, n-1).Draw(m.r, "which") }

// deliver appends an event, perhaps again, and publishes it if it is new.
func (m *machine) deliver() {
	if e, isNew := m.append(); isNew {
		m.queue = append(m.queue, e)
	}
}

// lose appends an event whose publish fails.
func (m *machine) lose() { m.append() }

func (m *machine) append() (stream.Event, bool) {
	i := m.index(len(m.history.Events))
	e := m.history.Events[i]
	d := m.Delivery(m.source, m.name+e.Key, e)
	receipts, err := events.Append(m.t.Context(), m.DB.Pool, []events.Delivery{d})
	m.must(err)
	r := receipts[0][0]
	if id, known := m.ids[i]; known != r.Duplicate || known && id != r.ID {
		m.r.Fatalf("event %d is %+v; appended before: %v, as %d", i, r, known, id)
	}
	m.ids[i] = r.ID
	return m.streamEvent(i), !r.Duplicate
}

// streamEvent returns an event of the history in the form of the stream.
func (m *machine) streamEvent(i int) stream.Event {
	ev := applied.Message(0, m.history.Events[i])
	ev.Source, ev.ID = m.name, m.ids[i]
	return ev
}

// take delivers some waiting messages, in any order, to processors.
func (m *machine) take() {
	for range rapid.IntRange(1, 6).Draw(m.r, "batch") {
		if len(m.queue) == 0 {
			return
		}
		i := m.index(len(m.queue))
		m.inProgress = append(m.inProgress, m.queue[i])
		m.queue = slices.Delete(m.queue, i, i+1)
	}
}

// apply lets one processor apply some of the messages in progress. The acknowledgement is a
// separate step.
func (m *machine) apply() {
	if batch := m.selection(); len(batch) > 0 {
		m.must(m.procs[m.index(len(m.procs))].Apply(m.t.Context(), events.LiveRun, batch))
	}
}

func (m *machine) selection() []stream.Event {
	if len(m.inProgress) == 0 {
		return nil
	}
	from := m.index(len(m.inProgress))
	return slices.Clone(m.inProgress[from : from+1+m.index(len(m.inProgress)-from)])
}

// crashInCommit makes the server die before an apply is committed.
func (m *machine) crashInCommit() {
	batch := m.selection()
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
	_, err := m.DB.Pool.Exec(m.t.Context(), sql)
	m.must(err)
}

// acknowledge removes messages that a processor would acknowledge: those whose events have an
// outcome.
func (m *machine) acknowledge() {
	done := m.outcomesOf()
	m.inProgress = slices.DeleteFunc(m.inProgress, func(e stream.Event) bool { return done[e.ID] == 1 })
}

// crash ends all processors: messages in progress are redelivered.
func (m *machine) crash() { m.queue, m.inProgress = append(m.queue, m.inProgress...), nil }

// redeliver delivers a message again while its first delivery is in progress.
func (m *machine) redeliver() {
	if len(m.inProgress) > 0 {
		m.queue = append(m.queue, m.inProgress[m.index(len(m.inProgress))])
	}
}

// wipe loses the stream; messages in progress stay.
func (m *machine) wipe() { m.queue = nil }

// republish makes a pass of the republisher, and moves its messages into the queue.
func (m *machine) republish() {
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
				m.queue = append(m.queue, m.streamEvent(i))
			}
		}
	}
	m.must(s.Purge(m.t.Context()))
}

// finish lets the republisher and a processor work until every event has an outcome.
func (m *machine) finish() {
	for range 50 {
		m.republish()
		m.crash()
		m.inProgress, m.queue = m.queue, nil
		if len(m.inProgress) > 0 {
			m.must(m.procs[0].Apply(m.t.Context(), events.LiveRun, m.inProgress))
		}
		if m.inProgress = nil; len(m.outcomesOf()) == len(m.ids) {
			return
		}
	}
	m.r.Fatalf("%d of %d events have an outcome, and no pass adds more", len(m.outcomesOf()), len(m.ids))
}

// outcomesOf counts the outcomes of each event of this history.
func (m *machine) outcomesOf() map[int64]int {
	n := map[int64]int{}
	rows, err := m.DB.Pool.Query(m.t.Context(), `SELECT event_id FROM outcomes WHERE source = $1 AND run = 0
		AND status <> 'failed'`, m.source)
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

// check compares outcomes and objects with the model: the pure rule applied to the set of appended
// keys.
func (m *machine) check() {
	for i, id := range m.ids {
		if n := m.outcomesOf()[id]; n != 1 {
			m.r.Fatalf("event %d has %d outcomes", i, n)
		}
	}
	want := map[string]versioning.Row{}
	for i := range m.ids {
		e := m.streamEvent(i)
		obs, err := (sim.Provider{}).Observe(nil, &e.StoredEvent)
		m.must(err)
		in, err := versioning.InputFromObservation(obs, e.ReceivedAt)
		m.must(err)
		row, ok := want[obs.ObjectID]
		if !ok {
			row = versioning.NewRow()
		}
		versioning.Apply(&row, in)
		want[obs.ObjectID] = row
	}
	l := *m.Log
	l.Source = m.source
	for id, row := range want {
		if diff := applied.RowDifference(row, l.Object(m.t, id).Row, cmpopts.EquateEmpty()); diff != "" {
			m.r.Fatalf("object %s (-pure rule +database):\n%s", id, diff)
		}
	}
	var revisions, changes, objects int
	m.must(m.DB.Pool.QueryRow(m.t.Context(), `SELECT (SELECT coalesce(sum(revision), 0) FROM objects WHERE source = $1),
		(SELECT count(*) FROM outbox o, unnest(o.sources) s WHERE s = $1), (SELECT count(*) FROM objects
			WHERE source = $1)`, m.source).Scan(&revisions, &changes, &objects))
	if revisions != changes || objects != len(want) {
		m.r.Fatalf("revisions grew %d times, but the outbox has %d changes; %d objects, want %d", revisions, changes,
			objects, len(want))
	}
}
