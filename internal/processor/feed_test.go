package processor_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"reflect"
	"testing"
	"time"

	"github.com/nats-io/nats.go/jetstream"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// told is what a consumer of the feed knows of an object, and what the mirror says of it.
type told struct {
	Type      string `json:"object_type"`
	ID        string `json:"object_id"`
	Revision  int64  `json:"revision"`
	Deleted   bool   `json:"deleted"`
	Ambiguous bool   `json:"ambiguous"`
	State     any    `json:"state"`
}

// follower is a consumer of postern.changes.> that keeps the highest revision of each object.
type follower struct {
	js    jetstream.JetStream
	known map[string]told
	next  uint64
}

func (w *world) follow(t *testing.T) *follower {
	return &follower{js: w.jetStream(t), known: map[string]told{}}
}

// read takes all that the stream of changes holds and was not read before. One follower reads one stream only.
func (f *follower) read(t *testing.T) error {
	s, err := f.js.Stream(t.Context(), stream.ChangesStream)
	if err != nil {
		return err
	}
	state := s.CachedInfo().State
	for f.next = max(f.next, state.FirstSeq); f.next <= state.LastSeq && state.Msgs > 0; f.next++ {
		msg, err := s.GetMsg(t.Context(), f.next)
		if err != nil {
			return err
		}
		var c told
		if err := json.Unmarshal(msg.Data, &c); err != nil {
			return err
		}
		if c.Revision > f.known[c.ID].Revision {
			f.known[c.ID] = c
		}
	}
	return nil
}

// mirror is the table of objects in the feed's terms.
func (w *world) mirror(t *testing.T) map[string]told {
	t.Helper()
	rows, err := w.db.Pool.Query(t.Context(), `SELECT object_type, object_id, revision, deleted, ambiguous, coalesce(state, 'null') FROM objects WHERE revision > 0`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	objs := map[string]told{}
	for rows.Next() {
		var o told
		if err := rows.Scan(&o.Type, &o.ID, &o.Revision, &o.Deleted, &o.Ambiguous, &o.State); err != nil {
			t.Fatal(err)
		}
		objs[o.ID] = o
	}
	if err := rows.Err(); err != nil {
		t.Fatal(err)
	}
	return objs
}

// ends waits until the follower knows the mirror, whole.
func (f *follower) ends(t *testing.T, w *world) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if err := f.read(t); err != nil {
			return err
		}
		want := w.mirror(t)
		for id, o := range want {
			if !reflect.DeepEqual(o, f.known[id]) {
				return fmt.Errorf("of %d objects %d are known; %s is\n%+v in the mirror and\n%+v in the feed", len(want), len(f.known), id, o, f.known[id])
			}
		}
		if len(f.known) != len(want) || len(want) == 0 {
			return fmt.Errorf("%d objects in the mirror, %d in the feed", len(want), len(f.known))
		}
		return nil
	})
}

// shuffled are the events of a history of some kind in any order.
func shuffled(seed uint64, o sim.Options, objects int) []sim.Event {
	r := rand.New(rand.NewPCG(seed, 5))
	o.Objects = objects
	evs := sim.Generate(r, o).Events
	r.Shuffle(len(evs), func(i, j int) { evs[i], evs[j] = evs[j], evs[i] })
	return evs
}

// Whatever the history and however many processors: the feed ends with the mirror.
func TestFeedEndsWithTheMirror(t *testing.T) {
	t.Parallel()
	for name, options := range kinds {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, nil)
			f := w.follow(t)
			for i := range 3 {
				w.start(t, setting{id: fmt.Sprint("/", i), tune: func(s *processor.Settings) { s.Batch = 7 }})
			}
			evs := w.append(t, shuffled(1, options, 30)...)
			w.publish(t, append(evs, evs[:len(evs)/2]...)...)
			w.outcomes(t, len(evs))
			f.ends(t, w)
		})
	}
}

// A process that ends between commit and publish leaves its changes to the sweep of another.
func TestFeedSurvivesACrashBeforePublishing(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	crashed := w.processor(t, sim.Provider{}, nil) // it has no connection, so it never publishes
	if err := crashed.Apply(t.Context(), events.LiveRun, w.append(t, shuffled(2, kinds["own version"], 30)...)); err != nil {
		t.Fatal(err)
	}
	f := w.follow(t)
	w.start(t, setting{})
	f.ends(t, w)
	var unsent int
	testkit.Eventually(t, patience, func() error {
		if w.scan(t, `SELECT count(*) FROM outbox WHERE sent_at IS NULL`, &unsent); unsent > 0 {
			return fmt.Errorf("%d batches are unsent", unsent)
		}
		return nil
	})
}

// Changes that the stream acknowledged and lost are sent again: after a wipe or a roll-back, again and again, and also where
// other changes are sent at the very moment of the reconnect.
func TestFeedSurvivesALossAfterAcknowledgement(t *testing.T) {
	t.Parallel()
	for name, lose := range map[string]func(t *testing.T, w *world, saved string){
		"wiped":       func(t *testing.T, w *world, _ string) { w.nats.Wipe(t) },
		"rolled back": func(t *testing.T, w *world, saved string) { w.nats.RollBack(t, saved) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := newWorld(t, func(l *stream.Limits) { l.AckWait = time.Second }) // acknowledgements are lost too
			for i := range 2 {
				w.start(t, setting{id: fmt.Sprint("/", i), tune: func(s *processor.Settings) { s.Batch = 5 }})
			}
			total := 0
			add := func(seed int) {
				evs := w.append(t, renamed(seed, shuffled(uint64(seed), kinds["event time"], 10))...)
				total += len(evs)
				w.conn.PublishEvents(t.Context(), evs) // what fails is the auditor's
			}
			add(1)
			w.follow(t).ends(t, w)
			saved := w.nats.Save(t)
			for round := 2; round <= 3; round++ {
				add(round)
				w.outcomes(t, total)
				w.allSent(t)
				lose(t, w, saved)
				add(10 * round)
				w.outcomes(t, total)
				w.follow(t).ends(t, w)
			}
		})
	}
}

// renamed gives a round's objects names of their own, so that no later change of the same object repairs a loss.
func renamed(round int, evs []sim.Event) []sim.Event {
	for i, e := range evs {
		evs[i].Body = replaceAll(e.Body, `"obj_`, fmt.Sprintf(`"round%d_`, round))
	}
	return evs
}

// allSent waits until every change was acknowledged.
func (w *world) allSent(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		var unsent int
		if w.scan(t, `SELECT count(*) FROM outbox WHERE sent_at IS NULL`, &unsent); unsent > 0 {
			return errors.New("changes are not acknowledged")
		}
		return nil
	})
}

// What another process sent after a loss does not hide the loss from one that asks later.
func TestLossIsSeenBehindLaterChanges(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	first := w.start(t, setting{id: "/first"})
	evs := w.append(t, w.simple(300)...)
	for _, e := range evs { // many batches, so that the stream is long
		w.publish(t, e)
	}
	w.outcomes(t, len(evs))
	w.allSent(t)
	first.stop(t)
	w.nats.Wipe(t)
	w.reconnectedEmpty(t)
	// Another process, which asked before the loss, sends one more.
	acks := w.conn.PublishChanges(t.Context(), []stream.Change{{Source: "sim", ObjectType: "thing", Batch: 1 << 40, Envelope: []byte(`{"object_id":"x"}`)}})
	if acks[0].Err != nil {
		t.Fatal(acks[0].Err)
	}
	_, err := w.db.Pool.Exec(t.Context(), `INSERT INTO outbox (batch, sources, accounts, types, ids, made_at, sent_at, sequence)
		OVERRIDING SYSTEM VALUE VALUES ($1, '{}', '{}', '{}', '{}', now(), now() + interval '1 s', $2)`, int64(1<<40), int64(acks[0].Sequence))
	if err != nil {
		t.Fatal(err)
	}
	w.start(t, setting{id: "/second", tune: func(s *processor.Settings) { s.AuditEvery = time.Hour }})
	f := w.follow(t)
	f.known["x"] = told{}
	testkit.Eventually(t, patience, func() error {
		if err := f.read(t); err != nil {
			return err
		}
		if known, want := len(f.known)-1, len(w.mirror(t)); known != want {
			return fmt.Errorf("%d of %d objects are in the feed", known, want)
		}
		return nil
	})
}

// reconnectedEmpty waits for a wiped server and makes the streams.
func (w *world) reconnectedEmpty(t *testing.T) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if !w.conn.Connected() {
			return errors.New("not connected")
		}
		return w.conn.Ensure(t.Context(), w.limits)
	})
}

// Changes made while the database's clock was ahead are sent when it has gone back, not when it has caught up.
func TestChangesOfAClockThatWentBackAreSent(t *testing.T) {
	t.Parallel()
	w := newWorld(t, nil)
	first := w.start(t, setting{id: "/first"})
	w.publish(t, w.append(t, w.simple(5)...)...)
	w.outcomes(t, 5)
	w.allSent(t)
	first.stop(t)
	w.db.Exec(t, `UPDATE outbox SET sent_at = NULL, sequence = NULL, made_at = now() + interval '1 day'`)
	w.start(t, setting{id: "/second"})
	w.allSent(t)
}
