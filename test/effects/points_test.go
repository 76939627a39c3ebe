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

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/testkit/sink"
)

// parallelCrashes is how many processes run and crash in parallel.
const parallelCrashes = 6

// crashEvery is the distance between two points at which processes crash. Short runs take every
// second point.
func crashEvery() int {
	if testing.Short() {
		return 2
	}
	return 1
}

// A process crashes at every point between leasing an effect and finishing it. The next process
// finishes the effect. Each step is done once, or is unknown if only an operator can resolve it. A
// message that was not sent at a crash has no predecessor that was not sent, so these points are
// all there are.
func TestRunner_crashAtEveryPoint_stepsDoneOnce(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		honours bool
		steps   []kind
		points  int
	}{{true, []kind{keyed}, 30}, {false, []kind{checked, once}, 54}} {
		t.Run(fmt.Sprint(c.steps), func(t *testing.T) {
			t.Parallel()
			w := &world{t: t, log: applied.New(t), dest: newTestDestination(t), timeout: "2s", margin: time.Second}
			w.dest.HonoursKeys = c.honours
			for n := range c.points / crashEvery() {
				u := &rule{name: fmt.Sprint("rule_", n), when: conditions[0], key: keys[0], approval: "none"}
				for i, k := range c.steps {
					u.steps = append(u.steps, step{name: fmt.Sprint("step_", i), to: fmt.Sprint("to_", n), kind: k})
				}
				w.rules = append(w.rules, u)
				w.destinations = append(w.destinations, fmt.Sprint("to_", n))
			}
			w.model = newModel(w.rules)
			w.planEffects()
			w.crashEach()
			early := len(w.log.DB.QueryStrings(t, `SELECT effect::text FROM effects WHERE state = 'done'`))
			w.startAll([]*crasher{neverCrashes()})
			w.waitUntilIdle()
			w.checkLedger()
			unknown := len(w.log.DB.QueryStrings(t, `SELECT effect::text FROM effects WHERE state = 'needs_review'`))
			if (unknown > 0) == c.honours {
				t.Errorf("%d effects need review: %v", unknown,
					w.log.DB.QueryStrings(t, `SELECT reason FROM effects WHERE state = 'needs_review'`))
			}
			w.review()
			w.checkCalls()
			t.Logf("%d processes crashed, %d of them after all was done, and %d left an unknown outcome",
				len(w.rules), early, unknown)
			if early == 0 {
				t.Error("no process finished its effect: there are more points")
			}
		})
	}
}

// planEffects plans one effect of each rule.
func (w *world) planEffects() {
	w.t.Helper()
	known, _ := w.configured(1, w.dest.url)
	w.model.read(w.t, 0, true, 1, []byte(`{"object_id": "obj", "time": 1, "object": {"id": "obj"}}`))
	w.planObject(known)
}

// planObject plans the effects of rules for one object.
func (w *world) planObject(known *effects.Rules) {
	w.t.Helper()
	err := postgres.InTx(w.t.Context(), w.log.Pool, "plan", time.Minute, func(ctx context.Context, tx pgx.Tx) error {
		_, err := effects.Plan(ctx, tx, 0,
			known.Evaluate(&effects.Transition{Source: applied.SourceName, Number: w.log.Source,
				Type: "thing", ID: "obj", New: []byte(`{"id": "obj"}`), Event: effects.Event{ID: 1}}))
		return err
	})
	must(w.t, err)
}

// crashEach starts a process for each rule. It executes the effect of its destination until it
// crashes, each process at a later point than the one before. A process that finishes crashes when
// it polls for more.
func (w *world) crashEach() {
	w.t.Helper()
	slots := make(chan struct{}, parallelCrashes)
	var dying sync.WaitGroup
	for n, u := range w.rules {
		slots <- struct{}{}
		m := newCrasher((n+1)*crashEvery(), false)
		m.ready = true
		dying.Go(func() {
			defer func() { <-slots }()
			(&world{t: w.t, log: w.log, dest: w.dest, rules: []*rule{u}, destinations: w.destinations[n : n+1],
				ownEffectsOnly: true, timeout: w.timeout, margin: w.margin}).run(w.t.Context(), fmt.Sprint("mortal", n),
				m)
		})
	}
	dying.Wait()
}

// duel returns a world with one effect of one step, two processes to execute it, and their logs.
func duel(t *testing.T, kind kind) (w *world, both []*crasher, said *lines) {
	t.Helper()
	said = &lines{}
	w = oneStep(t, kind)
	w.timeout, w.margin, w.ownEffectsOnly = "60s", time.Minute, true
	w.logger = slog.New(slog.NewTextHandler(said, nil))
	w.planEffects()
	return w, []*crasher{neverCrashes(), neverCrashes()}, said
}

// startAll starts the processes until the test ends.
func (w *world) startAll(both []*crasher) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(w.t.Context()))
	var running sync.WaitGroup
	for n, m := range both {
		running.Go(func() { w.run(ctx, fmt.Sprint("runner", n), m) })
	}
	w.t.Cleanup(func() { cancel(); running.Wait() })
}

// lines collects log lines.
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

// Two processes lease the same effect at the same moment. The database gives it to one. The other
// gets nothing and does not wait.
func TestRunner_concurrentLeases_oneWins(t *testing.T) {
	t.Parallel()
	w, both, _ := duel(t, once)
	// This is the lock of a process that leases an effect.
	hold := testkit.OpenTx(t, w.log.DB.Pool, `SELECT FROM effects FOR UPDATE`)
	w.startAll(both)
	testkit.Eventually(t, *patience, func() error { // both have polled for effects, or wait for the lock
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
	w.waitUntilIdle()
	if diff := cmp.Diff([]string{"done 1"}, w.log.DB.QueryStrings(t,
		`SELECT state || ' ' || lease_epoch FROM effects`)); diff != "" || len(w.dest.Calls()) != 1 {
		t.Errorf("%d calls, %s", len(w.dest.Calls()), diff)
	}
}

// A response that arrives after its lease has expired does not end the effect. The attempt of the
// process that leased it since does.
func TestRunner_responseAfterLeaseExpired_isIgnored(t *testing.T) {
	t.Parallel()
	w, both, said := duel(t, keyed)
	w.ownEffectsOnly = false
	arrived, first, second := make(chan struct{}, 10), make(chan struct{}), make(chan struct{})
	n := 0
	var mu sync.Mutex
	w.dest.NextFault = func(r *http.Request) sink.Fault {
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
	w.startAll(both)
	<-arrived
	w.log.DB.Exec(t, `UPDATE effects SET lease_until = clock_now() - interval '1 s'`)
	<-arrived
	close(first)
	testkit.Eventually(t, *patience, func() error {
		if e := w.ledger()[0]; e.is == "done" {
			t.Fatalf("the first response ended the second attempt: %+v", e)
		}
		if !said.has("other processes leased effects before their responses came") {
			return errors.New("the first response was not recorded")
		}
		return nil
	})
	close(second)
	w.waitUntilIdle()
	if e := w.ledger()[0]; e.state != "done" || e.captured != "rule/step_2" {
		t.Errorf("%+v", e)
	}
}

// notEarly is more than the time from planning an effect to a check that comes too early, and less
// than the sum of timeout and check.delay of a checked step.
const notEarly = 2 * time.Second

// executeLate makes the destination execute the first request of a step only after its caller has
// disconnected: before the response to a check of a checked step that comes late enough, and after
// the response to any other check. The first check fails, and so does a check while the destination
// executes the request.
func (w *world) executeLate() {
	var checks, sent atomic.Int64
	disconnected, due := make(chan struct{}), make(chan struct{})
	execute := sync.OnceFunc(func() { close(due) })
	wait := func(until <-chan struct{}) {
		select {
		case <-until:
		case <-w.t.Context().Done():
		}
	}
	began, kind := time.Now(), w.rules[0].steps[0].kind
	w.dest.NextFault = func(r *http.Request) sink.Fault {
		if r.Method == http.MethodPost {
			if sent.Add(1) == 1 {
				wait(r.Context().Done())
				close(disconnected)
				wait(due)
			}
			return sink.NoFault
		}
		wait(disconnected)
		early := kind != checked || time.Since(began) < notEarly
		if !early {
			execute()
		}
		switch {
		case checks.Add(1) == 1, !early && len(w.dest.Calls()) == 0:
			return sink.FailsBeforeActing
		case early:
			context.AfterFunc(r.Context(), execute)
		}
		return sink.NoFault
	}
}

// The destination executes a request only after the caller has disconnected. The step must still be
// done once: a check after that finds it, and a check before that must not lead to a repetition. A
// failed check proves neither.
func TestRunner_destinationExecutesLate_isNotRepeated(t *testing.T) {
	t.Parallel()
	for _, kind := range []kind{checked, checkedOnce} {
		t.Run(string(kind), func(t *testing.T) {
			t.Parallel()
			w := oneStep(t, kind)
			w.executeLate()
			w.planEffects()
			w.startAll([]*crasher{neverCrashes()})
			w.review()
			w.checkCalls()
		})
	}
}

// A request without a conclusive response proves nothing about the requests before and after it.
// The step is done once: by an earlier attempt, or by another system before the first one.
func TestRunner_inconclusiveResponses_stepDoneOnce(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind   kind
		faults []sink.Fault
		before bool
	}{
		"response lost, repetition rejected": {kind: keyed, faults: []sink.Fault{sink.ActsThenDrops,
			sink.RejectsContent}},
		"search fails, found after that": {kind: searched, faults: []sink.Fault{sink.FailsBeforeActing}, before: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			w := oneStep(t, c.kind)
			w.dest.HonoursKeys = true
			if c.before {
				w.dest.execute(t, "/rule/step", `{"of": "obj"}`)
			}
			var requests atomic.Int64
			w.dest.NextFault = func(*http.Request) sink.Fault {
				if n := int(requests.Add(1)); n <= len(c.faults) {
					return c.faults[n-1]
				}
				return sink.NoFault
			}
			w.planEffects()
			w.startAll([]*crasher{neverCrashes()})
			w.review()
			if e := w.ledger()[0]; e.state != "done" || e.is != "done" || len(w.dest.Calls()) != 1 {
				t.Errorf("done %d times, want once: %+v", len(w.dest.Calls()), e)
			}
			if n := int(requests.Load()); n <= len(c.faults) {
				t.Errorf("only %d requests", n)
			}
		})
	}
}

// oneStep returns a world with one rule of one step.
func oneStep(t *testing.T, kind kind) *world {
	t.Helper()
	w := &world{t: t, log: applied.New(t), dest: newTestDestination(t), destinations: []string{"here"}}
	w.rules = []*rule{{name: "rule", when: conditions[0], key: keys[0], approval: "none",
		steps: []step{{name: "step", to: "here", kind: kind}}}}
	w.model = newModel(w.rules)
	w.dest.HonoursKeys = false
	return w
}

// A processor crashes at every message of applying an event. Another processor applies the event
// again. The effect is planned once: with the change, or by the second processor.
func TestEffects_processorCrashesAtEveryPoint_plannedOnce(t *testing.T) {
	t.Parallel()
	w := oneStep(t, keyed)
	w.bodies = map[int64][]byte{}
	crashed, n := true, 0
	for crashed {
		n++
		id := fmt.Sprint("obj_", n)
		body := fmt.Appendf(nil, `{"object_id": %q, "time": 1, "object": {"id": %[1]q}}`, id)
		ids := w.log.Append(t, w.log.Source, []sim.Event{{Object: id, ReceivedAt: time.Now(), Body: body}})
		m := newCrasher(n, false)
		_, err := w.applier(m).ApplyStored(t.Context(), apply.Target{}, ids, false)
		select {
		case <-m.crashed:
		default:
			must(t, err)
			crashed = false
		}
		_, err = w.applier(neverCrashes()).ApplyStored(t.Context(), apply.Target{}, ids, false)
		must(t, err)
		w.model.read(t, 0, true, ids[0], body)
	}
	if n < 10 {
		t.Errorf("only %d processors crashed", n-1)
	}
	w.checkEffects()
}
