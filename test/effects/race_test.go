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
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// duel is a world of one effect of one step, and two processes that carry it out until the test ends.
func duel(t *testing.T, kind kind) (w *world, both []*mortal, said *lines) {
	t.Helper()
	said = &lines{}
	w = &world{t: t, log: applied.New(t), other: newOther(t), timeout: "60s", margin: time.Minute, lonely: true, logger: slog.New(slog.NewTextHandler(said, nil)), destinations: []string{"here"}}
	w.rules = []*rule{{name: "rule", when: conditions[0], key: keys[0], approval: "none", steps: []step{{"step", "here", kind}}}}
	w.model = newModel(w.rules)
	w.other.Honours = false
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

// Two processes that would take one effect at the same moment: one gets it, in the database, and the other gets nothing and waits for nobody.
func TestOneRunnerWins(t *testing.T) {
	t.Parallel()
	w, both, _ := duel(t, once)
	hold, err := w.log.DB.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if _, err := hold.Exec(t.Context(), `SELECT FROM effects FOR UPDATE`); err != nil { // as one who takes it has it
		t.Fatal(err)
	}
	w.fight(both)
	testkit.Eventually(t, *patience, func() error { // both have looked for effects, or wait to take it
		if w.log.DB.Rows(t, `SELECT count(*)::text FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'`)[0] == "2" {
			return nil
		}
		for _, m := range both {
			if n := m.points(); n < 100 {
				return fmt.Errorf("%d messages", n)
			}
		}
		return nil
	})
	if err := hold.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	w.settled()
	if diff := cmp.Diff([]string{"done 1"}, w.log.DB.Rows(t, `SELECT state || ' ' || claims FROM effects`)); diff != "" || len(w.other.Calls()) != 1 {
		t.Errorf("%d calls, %s", len(w.other.Calls()), diff)
	}
}

// An answer that comes to a process whose lease has run out ends nothing: the attempt of who has taken the effect since then does.
func TestWhoComesLateLoses(t *testing.T) {
	t.Parallel()
	w, both, said := duel(t, keyed)
	w.lonely = false
	arrived, first, second := make(chan struct{}, 10), make(chan struct{}), make(chan struct{})
	n := 0
	var mu sync.Mutex
	w.other.Next = func(r *http.Request) sink.Fault {
		mu.Lock()
		n++
		wait := map[int]chan struct{}{1: first, 2: second}[n]
		mu.Unlock()
		arrived <- struct{}{}
		select {
		case <-wait:
		case <-r.Context().Done():
		}
		return sink.Fine
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
		if !said.has("taken by others before their answers came") {
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
