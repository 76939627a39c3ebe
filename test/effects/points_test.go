package effects_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit/applied"
)

// atATime is how many processes die at the same time.
const atATime = 6

// Wherever between taking an effect and its end a process dies, the one that follows brings it to its end: each step once, or in doubt where only a person can say. What dies before it sends something has
// sent all before that: so this is every point between two messages.
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
			w.other.Honours = c.honours
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
			early := len(w.log.DB.Rows(t, `SELECT effect::text FROM effects WHERE state = 'done'`))
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan struct{})
			go func() { defer close(done); w.run(ctx, "heir", immortal()) }()
			w.settled()
			w.sound()
			doubts := len(w.log.DB.Rows(t, `SELECT effect::text FROM effects WHERE state = 'review'`))
			if (doubts > 0) == c.honours {
				t.Errorf("%d effects wait for a person: %v", doubts, w.log.DB.Rows(t, `SELECT reason FROM effects WHERE state = 'review'`))
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
		_, err := effects.Plan(ctx, tx, 0, known.Intents(&effects.Transition{Source: applied.Name, Number: w.log.Source, Type: "thing", ID: "obj", New: []byte(`{"id": "obj"}`), Event: effects.Event{ID: 1}}))
		return err
	})
	if err != nil {
		w.t.Fatal(err)
	}
}

// die lets each process carry out the effect of its own destination until it dies, one point later than the one before it. One that comes to the end dies as it looks for more.
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
			(&world{t: w.t, log: w.log, other: w.other, rules: []*rule{u}, destinations: w.destinations[n : n+1], lonely: true, timeout: w.timeout, margin: w.margin}).run(w.t.Context(), fmt.Sprint("mortal", n), m)
		})
	}
	dying.Wait()
}
