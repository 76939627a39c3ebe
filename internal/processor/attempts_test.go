package processor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// countingProvider calls a function of the test before it reads an event, and counts the calls.
type countingProvider struct {
	sim.Provider
	before func(e *provider.StoredEvent) error
	tries  int
}

func (r *countingProvider) Observe(src *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	r.tries++
	if r.before != nil {
		if err := r.before(e); err != nil {
			return provider.Observation{}, err
		}
	}
	return r.Provider.Observe(src, e)
}

var errTemporary = errors.New("not today")

func failTemporarily(*provider.StoredEvent) error { return errTemporary }

// threeAttempts gives an event three attempts. Each must be made due.
func threeAttempts(s *processor.Settings) { s.BackOff = []time.Duration{time.Hour, time.Hour} }

// makeDue makes every failure due.
func (b *testBundle) makeDue(t *testing.T) {
	t.Helper()
	b.db.Exec(t, `UPDATE outcomes SET due = now() - interval '1 s' WHERE status = 'failed'`)
}

// applySingle applies one event as a single event; the attempt may fail.
func (b *testBundle) applySingle(t *testing.T, p provider.Provider, e stream.Event) {
	t.Helper()
	must(t, b.processor(t, p, threeAttempts).ApplySingle(t.Context(), events.LiveRun, e))
}

// applyCancelled applies a single event whose transaction never begins: an infrastructure failure.
func (b *testBundle) applyCancelled(t *testing.T, e stream.Event) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := b.processor(t, &countingProvider{before: func(*provider.StoredEvent) error { cancel(); return nil }},
		threeAttempts)
	if err := p.ApplySingle(ctx, events.LiveRun, e); !errors.Is(err, events.ErrUnavailable) {
		t.Fatalf("an attempt whose transaction cannot begin: %v", err)
	}
}

// applyKilled applies a single event that ends the goroutine that reads it: nothing happens after
// the reservation.
func (b *testBundle) applyKilled(t *testing.T, e stream.Event) {
	p := b.processor(t, &countingProvider{before: func(*provider.StoredEvent) error { runtime.Goexit(); return nil }},
		threeAttempts)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.ApplySingle(t.Context(), events.LiveRun, e); err != nil {
			t.Errorf("the killed attempt ended: %v", err)
		}
	})
	wg.Wait()
}

// The last of three attempts may still succeed.
func TestApplySingle_lastAttempt_maySucceed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := thingEvent(0, "e")
	for range 2 {
		b.applySingle(t, &countingProvider{before: failTemporarily}, e)
		b.makeDue(t)
	}
	b.applySingle(t, sim.Provider{}, e)
	if status, reason, attempts := b.outcomeOf(t, e.ID); status != "applied" || attempts != 3 {
		t.Errorf("%s after %d attempts: %q", status, attempts, reason)
	}
}

// An infrastructure failure never counts an attempt, and the event is due at once.
func TestApplySingle_infrastructureFailure_returnsAttempt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := thingEvent(0, "e")
	for range 5 {
		b.applyCancelled(t, e)
		if status, _, attempts := b.outcomeOf(t, e.ID); status != "failed" || attempts != 0 {
			t.Fatalf("after an infrastructure failure: %s, %d attempts", status, attempts)
		}
	}
	b.applySingle(t, &countingProvider{before: failTemporarily}, e)
	b.makeDue(t)
	b.applyCancelled(t, e)
	if status, reason, attempts := b.outcomeOf(t, e.ID); status != "failed" || attempts != 1 ||
		!strings.HasSuffix(reason, "not today") {
		t.Errorf("infrastructure failure after one real attempt: %s, %d attempts: %q", status, attempts, reason)
	}
	b.applySingle(t, sim.Provider{}, e)
	if status, _, attempts := b.outcomeOf(t, e.ID); status != "applied" || attempts != 2 {
		t.Errorf("%s after %d attempts, want applied after 2", status, attempts)
	}
}

// The reason of a reservation contains the reason of the previous attempt once, even after several
// reservations.
func TestApplySingle_reservation_keepsPreviousReason(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := thingEvent(0, "e")
	b.applySingle(t, &countingProvider{before: failTemporarily}, e)
	for range 2 {
		b.makeDue(t)
		b.applyKilled(t, e)
		_, reason, _ := b.outcomeOf(t, e.ID)
		if !strings.HasPrefix(reason, "tried alone") || !strings.HasSuffix(reason, "; before that: not today") ||
			strings.Count(reason, "tried alone") != 1 {
			t.Errorf("the reason of the reservation is %q", reason)
		}
	}
	b.makeDue(t)
	r := &countingProvider{}
	b.applySingle(t, r, e)
	status, reason, attempts := b.outcomeOf(t, e.ID)
	if r.tries != 0 || status != "dead" || attempts != 3 || !strings.HasPrefix(reason, "given up after 3 attempts: "+
		"tried alone") || !strings.HasSuffix(reason, "not today") {
		t.Errorf("%s after %d attempts and %d further reads: %q", status, attempts, r.tries, reason)
	}
}

func thingEvent(n int, key string) stream.Event {
	h := sim.Generate(rand.New(rand.NewPCG(uint64(n), 3)), sim.Options{Objects: 1, Changes: 1, Contents: 2, Unit: 1,
		Gap: 10})
	e := message(n, h.Events[0])
	e.Key = key
	e.Body = []byte(strings.ReplaceAll(string(e.Body), "obj_1", "obj_"+key))
	return e
}

func (b *testBundle) outcomeOf(t *testing.T, id int64) (status, reason string, attempts int) {
	t.Helper()
	err := b.db.Pool.QueryRow(t.Context(), `SELECT status, reason, attempts FROM outcomes WHERE event_id = $1
		AND run = 0`, id).Scan(&status, &reason, &attempts)
	if err != nil {
		t.Fatalf("outcome of %d: %v", id, err)
	}
	return status, reason, attempts
}

// An event that cannot be read or written fails alone; the others of its batch are applied.
func TestApply_unreadableEvent_failsAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	// The database rejects one object's row.
	b.db.Exec(t, `ALTER TABLE objects ADD CONSTRAINT refused CHECK (object_id <> 'obj_refused')`)
	p := b.processor(t, faultyProvider{}, nil)
	want := map[string]string{"good": "applied", "panics": "failed", "fails": "failed", "dead": "dead",
		"ignored": "ignored", "longid": "dead",
		"refused": "failed", "better": "applied", "best": "applied"}
	var batch []stream.Event
	for key := range want {
		batch = append(batch, thingEvent(len(batch), key))
	}
	must(t, p.Apply(t.Context(), events.LiveRun, batch))
	for _, e := range batch {
		if status, reason, _ := b.outcomeOf(t, e.ID); status != want[e.Key] || reason == "" && status != "applied" {
			t.Errorf("%s: %s because %q, want %s", e.Key, status, reason, want[e.Key])
		}
	}
}

// A failed event is not applied before it is due. Then it is retried, and becomes dead with its
// last attempt and that attempt's reason. A final outcome never changes.
func TestApplySingle_failsEachTime_becomesDead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e, r := thingEvent(0, "e"), &countingProvider{before: failTemporarily}
	for want := 1; want <= 3; want++ {
		for range 2 { // the second delivery arrives before the due time and counts no attempt
			b.applySingle(t, r, e)
		}
		status, reason, attempts := b.outcomeOf(t, e.ID)
		if dead := status == "dead"; attempts != want || dead != (want == 3) {
			t.Errorf("after attempt %d: %s, %d attempts (%s)", want, status, attempts, reason)
		}
		b.makeDue(t)
	}
	b.applySingle(t, sim.Provider{}, e) // the provider can read it by now
	status, reason, attempts := b.outcomeOf(t, e.ID)
	if r.tries != 3 || status != "dead" || attempts != 3 || reason != "given up after 3 attempts: not today" {
		t.Errorf("%s after %d reads, %d attempts: %q", status, r.tries, attempts, reason)
	}
}

// childVariable is the environment variable with the job of a test process that runs a processor.
const childVariable = "POSTERN_TEST_CHILD"

// childJob is the configuration of a child process.
type childJob struct {
	Database, Stream string
	Source           int32
	Poison           string
	Limits           stream.Limits
}

// exitByPoison is the exit status of a child that the poison event ended.
const exitByPoison = 3

// exitingProvider ends the process that reads one event.
type exitingProvider struct {
	sim.Provider
	poison string
}

func (d exitingProvider) Observe(src *provider.Source, e *provider.StoredEvent) (provider.Observation, error) {
	if e.Key == d.poison {
		os.Exit(exitByPoison)
	}
	return d.Provider.Observe(src, e)
}

// runChild runs a processor until the process is stopped or the poison event ends it.
func runChild(text string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := runChildProcessor(ctx, text); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		return 1
	}
	return 0
}

func runChildProcessor(ctx context.Context, text string) error {
	var j childJob
	if err := json.Unmarshal([]byte(text), &j); err != nil {
		return err
	}
	pool, err := postgres.Connect(ctx, postgres.Options{URL: j.Database, Role: "postern_processor", MaxConns: 4})
	if err != nil {
		return err
	}
	defer pool.Close()
	log := slog.New(slog.DiscardHandler)
	conn, err := stream.Connect(stream.Options{URL: j.Stream, Logger: log})
	if err != nil {
		return err
	}
	defer conn.Close()
	s := processor.DefaultSettings
	quickSettings(&s)
	// many workers: an event that is tried together with the poison event loses attempts
	s.BackOff, s.RepublishMinAge, s.Workers = s.BackOff[:2], 300*time.Millisecond, 8
	p, err := processor.New(processor.Options{ID: fmt.Sprint("child/", os.Getpid()), Settings: s,
		Options: apply.Options{Pool: pool, Conn: conn, Limits: j.Limits, Logger: log,
			Metrics: prometheus.NewRegistry(), Sources: map[string]apply.Source{
				"sim": {Number: j.Source, Config: &provider.Source{Name: "sim"},
					Provider: exitingProvider{poison: j.Poison}}}}})
	if err != nil {
		return err
	}
	return p.Run(ctx)
}

// An event ends each process that reads it, and the process is started again and again. The other
// events are applied, this one runs out of attempts and becomes dead, and then the process stays
// up.
func TestProcessor_eventEndsProcess_becomesDead(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(l *stream.Limits) { l.AckWait = 400 * time.Millisecond })
	evs := w.append(t, w.newObjects(40)...)
	w.publish(t, evs...)
	text, err := json.Marshal(childJob{Database: w.db.URL, Stream: w.nats.URL, Source: w.source, Poison: evs[17].Key,
		Limits: w.limits})
	must(t, err)
	deaths := 0
	for w.childDies(t, string(text), len(evs)) {
		if deaths++; deaths > 20 {
			t.Fatal("the poison event still ends the process")
		}
	}
	if deaths < 4 {
		t.Errorf("the poison event ended %d processes; at least three batches and one single attempt must have "+
			"contained it", deaths)
	}
	status, reason, attempts := w.outcomeOf(t, evs[17].ID)
	if status != "dead" || attempts != 3 || !strings.Contains(reason, "given up after 3 attempts") {
		t.Errorf("the poison event is %s after %d attempts: %s", status, attempts, reason)
	}
	var applied int
	if w.scan(t, `SELECT count(*) FROM outcomes WHERE status = 'applied'`, &applied); applied != len(evs)-1 {
		var others string
		w.scan(t, `SELECT string_agg(event_id || ' ' || status || ' ' || attempts || ' ' || reason, E'\n') FROM outcomes
			WHERE status <> 'applied'`, &others)
		t.Errorf("%d of %d other events were applied; the rest:\n%s", applied, len(evs)-1, others)
	}
}

// childDies starts a child and waits until the poison event ends it (true), or stops it when all n
// events have a final outcome.
func (w *world) childDies(t *testing.T, text string, n int) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+text)
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	poll, deadline := time.NewTicker(50*time.Millisecond), time.After(maxWait)
	defer poll.Stop()
	stopping := false
	for {
		select {
		case err := <-ended:
			var status *exec.ExitError
			if errors.As(err, &status) && status.ExitCode() == exitByPoison {
				return true
			}
			if err != nil || !stopping {
				t.Fatalf("child ended: %v\n%s", err, output.String())
			}
			return false
		case <-poll.C:
			var final int
			w.scan(t, `SELECT count(*) FROM outcomes WHERE status <> 'failed'`, &final)
			if lag, err := w.conn.Lag(t.Context(), false); err == nil && lag.Messages == 0 && final == n && !stopping {
				stopping = true
				if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
					t.Error(err)
				}
			}
		case <-deadline:
			t.Fatalf("the child neither died nor finished within %s", maxWait)
		}
	}
}
