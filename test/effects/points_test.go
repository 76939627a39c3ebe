package effects_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// atATime is how many processes die at the same time.
const atATime = 6

// Wherever between taking an effect and its end a process dies, the one that follows brings it to
// its end: each step once, or in doubt where only a person can say. What dies before it sends
// something has sent all before that: so this is every point between two messages.
func TestEveryPointOfDeath(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		honours bool
		steps   []kind
		points  int
	}{{true, []kind{keyed}, 30}, {false, []kind{checked, once}, 54}} {
		t.Run(fmt.Sprint(c.steps), func(t *testing.T) {
			t.Parallel()
			w := &world{t: t, log: applied.New(t), other: newOther(t), timeout: "2s", margin: time.Second}
			w.other.HonoursKeys = c.honours
			for n := range c.points {
				u := &rule{name: fmt.Sprint("rule_", n), when: conditions[0], key: keys[0], approval: "none"}
				for i, k := range c.steps {
					u.steps = append(u.steps, step{fmt.Sprint("step_", i), fmt.Sprint("to_", n), k})
				}
				w.rules = append(w.rules, u)
				w.destinations = append(w.destinations, fmt.Sprint("to_", n))
			}
			w.model = newModel(w.rules)
			w.enter()
			w.die()
			early := len(w.log.DB.QueryStrings(t, `SELECT effect::text FROM effects WHERE state = 'done'`))
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); w.run(ctx, "heir", immortal()) }()
			w.settled()
			w.sound()
			doubts := len(w.log.DB.QueryStrings(t, `SELECT effect::text FROM effects WHERE state = 'review'`))
			if (doubts > 0) == c.honours {
				t.Errorf("%d effects wait for a person: %v", doubts,
					w.log.DB.QueryStrings(t, `SELECT reason FROM effects WHERE state = 'review'`))
			}
			w.attended()
			w.followed()
			cancel()
			<-done
			t.Logf("%d processes died, %d after all was done, and %d left an effect in doubt", c.points, early, doubts)
			if early == 0 {
				t.Error("no process has come to the end: there are further points")
			}
		})
	}
}

// enter plans one effect of each rule.
func (w *world) enter() {
	w.t.Helper()
	known, _ := w.configured(1, w.other.url)
	body := []byte(`{"object_id": "obj", "time": 1, "object": {"id": "obj"}}`)
	w.model.read(w.t, 0, true, 1, body)
	err := postgres.InTx(w.t.Context(), w.log.Pool, "plan", time.Minute, func(ctx context.Context, tx pgx.Tx) error {
		_, err := effects.Plan(ctx, tx, 0,
			known.Evaluate(&effects.Transition{Source: applied.SourceName, Number: w.log.Source,
				Type: "thing", ID: "obj", New: []byte(`{"id": "obj"}`), Event: effects.Event{ID: 1}}))
		return err
	})
	must(w.t, err)
}

// die lets each process carry out the effect of its own destination until it dies, one point later
// than the one before it. One that comes to the end dies as it looks for more.
func (w *world) die() {
	w.t.Helper()
	slots := make(chan struct{}, atATime)
	var dying sync.WaitGroup
	for n, u := range w.rules {
		slots <- struct{}{}
		m := newMortal(n+1, false)
		m.ready = true
		dying.Go(func() {
			defer func() { <-slots }()
			(&world{t: w.t, log: w.log, other: w.other, rules: []*rule{u}, destinations: w.destinations[n : n+1],
				lonely: true, timeout: w.timeout, margin: w.margin}).run(w.t.Context(), fmt.Sprint("mortal", n), m)
		})
	}
	dying.Wait()
}

// duel is a world of one effect of one step, and two processes that carry it out until the test
// ends.
func duel(t *testing.T, kind kind) (w *world, both []*mortal, said *lines) {
	t.Helper()
	said = &lines{}
	w = &world{t: t, log: applied.New(t), other: newOther(t), timeout: "60s", margin: time.Minute, lonely: true,
		logger: slog.New(slog.NewTextHandler(said, nil)), destinations: []string{"here"}}
	w.rules = []*rule{{name: "rule", when: conditions[0], key: keys[0], approval: "none",
		steps: []step{{"step", "here", kind}}}}
	w.model = newModel(w.rules)
	w.other.HonoursKeys = false
	w.enter()
	return w, []*mortal{immortal(), immortal()}, said
}

// fight has both processes begin.
func (w *world) fight(both []*mortal) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	var running sync.WaitGroup
	for n, m := range both {
		running.Go(func() { w.run(ctx, fmt.Sprint("runner", n), m) })
	}
	w.t.Cleanup(func() { cancel(); running.Wait() })
}

// lines are what was logged.
type lines struct {
	mu   sync.Mutex
	text bytes.Buffer
}

func (l *lines) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *lines) has(text string) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return strings.Contains(l.text.String(), text)
}

// Two processes that would take one effect at the same moment: one gets it, in the database, and
// the other gets nothing and waits for nobody.
func TestOneRunnerWins(t *testing.T) {
	t.Parallel()
	w, both, _ := duel(t, once)
	hold, err := w.log.DB.Pool.Begin(t.Context())
	must(t, err)
	if _, err := hold.Exec(t.Context(), `SELECT FROM effects FOR UPDATE`); err != nil { // as one who takes it has it
		t.Fatal(err)
	}
	w.fight(both)
	testkit.Eventually(t, *patience, func() error { // both have looked for effects, or wait to take it
		if w.log.DB.QueryStrings(t, `SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database()
			AND wait_event_type = 'Lock'`)[0] == "2" {
			return nil
		}
		for _, m := range both {
			if n := m.points(); n < 100 {
				return fmt.Errorf("%d messages", n)
			}
		}
		return nil
	})
	must(t, hold.Commit(t.Context()))
	w.settled()
	if diff := cmp.Diff([]string{"done 1"},
		w.log.DB.QueryStrings(t, `SELECT state || ' ' || claims FROM effects`)); diff != "" ||
		len(w.other.Calls()) != 1 {
		t.Errorf("%d calls, %s", len(w.other.Calls()), diff)
	}
}

// An answer that comes to a process whose lease has run out ends nothing: the attempt of who has
// taken the effect since then does.
func TestWhoComesLateLoses(t *testing.T) {
	t.Parallel()
	w, both, said := duel(t, keyed)
	w.lonely = false
	arrived, first, second := make(chan struct{}, 10), make(chan struct{}), make(chan struct{})
	n := 0
	var mu sync.Mutex
	w.other.NextFault = func(r *http.Request) sink.Fault {
		mu.Lock()
		n++
		wait := map[int]chan struct{}{1: first, 2: second}[n]
		mu.Unlock()
		arrived <- struct{}{}
		select {
		case <-wait:
		case <-r.Context().Done():
		}
		return sink.NoFault
	}
	w.fight(both)
	<-arrived
	w.log.DB.Exec(t, `UPDATE effects SET taken_until = clock_now() - interval '1 s'`)
	<-arrived
	close(first)
	testkit.Eventually(t, *patience, func() error {
		if e := w.ledger()[0]; e.is == "done" {
			t.Fatalf("the first answer has ended the second attempt: %+v", e)
		}
		if !said.has("other processes leased effects before their responses came") {
			return errors.New("the first answer was not recorded")
		}
		return nil
	})
	close(second)
	w.settled()
	if e := w.ledger()[0]; e.state != "done" || e.captured != "rule/step_2" {
		t.Errorf("%+v", e)
	}
}

// What the other side does only a while after the caller has left, and can be asked for, is done
// once: where it is asked when that is over it is known, and where it is asked before it is not
// sent again. A failure says neither.
func TestALateActIsNotRepeated(t *testing.T) {
	t.Parallel()
	for _, kind := range []kind{checked, asked} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			w := &world{t: t, log: applied.New(t), other: newOther(t), destinations: []string{"here"}}
			w.rules = []*rule{{name: "rule", when: conditions[0], key: keys[0], approval: "none",
				steps: []step{{"step", "here", kind}}}}
			w.model = newModel(w.rules)
			w.other.HonoursKeys = false
			var asks atomic.Int64
			w.other.NextFault = func(r *http.Request) sink.Fault {
				if r.Method == http.MethodPost {
					return sink.HangsThenActs
				}
				if asks.Add(1) == 1 {
					return sink.FailsBeforeActing
				}
				return sink.NoFault
			}
			w.enter()
			w.fight([]*mortal{immortal()})
			w.attended()
			w.followed()
		})
	}
}
