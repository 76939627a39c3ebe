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

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// reader is a provider that does as the test says before it reads an event, and counts the tries.
type reader struct {
	sim.Provider
	try   func(e *provider.Stored) error
	tries int
}

func (r *reader) Observe(src *provider.Source, e *provider.Stored) (provider.Observation, error) {
	r.tries++
	if r.try != nil {
		if err := r.try(e); err != nil {
			return provider.Observation{}, err
		}
	}
	return r.Provider.Observe(src, e)
}

var errNotToday = errors.New("not today")

func notToday(*provider.Stored) error { return errNotToday }

// twoWaits leave an event three attempts, each of which must be made due.
func twoWaits(s *processor.Settings) { s.BackOff = []time.Duration{time.Hour, time.Hour} }

// due makes every failure due.
func (b *testBundle) due(t *testing.T) {
	t.Helper()
	b.db.Exec(t, `UPDATE outcomes SET due = now() - interval '1 s' WHERE status = 'failed'`)
}

// alone tries an event alone, to be successful or not.
func (b *testBundle) alone(t *testing.T, p provider.Provider, e stream.Event) {
	t.Helper()
	must(t, b.processor(t, p, twoWaits).ApplyAlone(t.Context(), events.LiveRun, e))
}

// cancelled tries an event alone whose transaction never begins: trouble of our own.
func (b *testBundle) cancelled(t *testing.T, e stream.Event) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	p := b.processor(t, &reader{try: func(*provider.Stored) error { cancel(); return nil }}, twoWaits)
	if err := p.ApplyAlone(ctx, events.LiveRun, e); !errors.Is(err, events.ErrUnavailable) {
		t.Fatalf("a try whose transaction cannot begin says %v", err)
	}
}

// killed tries an event alone that ends whoever reads it: nothing after the reservation is done.
func (b *testBundle) killed(t *testing.T, e stream.Event) {
	p := b.processor(t, &reader{try: func(*provider.Stored) error { runtime.Goexit(); return nil }}, twoWaits)
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := p.ApplyAlone(t.Context(), events.LiveRun, e); err != nil {
			t.Errorf("the killed try ended: %v", err)
		}
	})
	wg.Wait()
}

// The last of three attempts may still be the one that succeeds.
func TestLastAttemptMaySucceed(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := thing(0, "e")
	for range 2 {
		b.alone(t, &reader{try: notToday}, e)
		b.due(t)
	}
	b.alone(t, sim.Provider{}, e)
	if status, reason, attempts := b.status(t, e.ID); status != "applied" || attempts != 3 {
		t.Errorf("%s after %d attempts: %q", status, attempts, reason)
	}
}

// Trouble of our own takes no attempt, however often, and the event is due at once.
func TestTroubleGivesTheAttemptBack(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := thing(0, "e")
	for range 5 {
		b.cancelled(t, e)
		if status, _, attempts := b.status(t, e.ID); status != "failed" || attempts != 0 {
			t.Fatalf("after trouble of our own: %s, %d attempts", status, attempts)
		}
	}
	b.alone(t, &reader{try: notToday}, e)
	b.due(t)
	b.cancelled(t, e)
	if status, reason, attempts := b.status(t, e.ID); status != "failed" || attempts != 1 || !strings.HasSuffix(reason, "not today") {
		t.Errorf("trouble after one real attempt: %s, %d attempts: %q", status, attempts, reason)
	}
	b.alone(t, sim.Provider{}, e)
	if status, _, attempts := b.status(t, e.ID); status != "applied" || attempts != 2 {
		t.Errorf("%s after %d attempts, want applied after 2", status, attempts)
	}
}

// A reservation says that it is one and keeps the reason of the attempt before, once, however many follow.
func TestReservationKeepsTheReason(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e := thing(0, "e")
	b.alone(t, &reader{try: notToday}, e)
	for range 2 {
		b.due(t)
		b.killed(t, e)
		_, reason, _ := b.status(t, e.ID)
		if !strings.HasPrefix(reason, "tried alone") || !strings.HasSuffix(reason, "; before that: not today") || strings.Count(reason, "tried alone") != 1 {
			t.Errorf("the reservation says %q", reason)
		}
	}
	b.due(t)
	r := &reader{}
	b.alone(t, r, e)
	status, reason, attempts := b.status(t, e.ID)
	if r.tries != 0 || status != "dead" || attempts != 3 || !strings.HasPrefix(reason, "given up after 3 attempts: tried alone") || !strings.HasSuffix(reason, "not today") {
		t.Errorf("%s after %d attempts and %d tries more: %q", status, attempts, r.tries, reason)
	}
}

func thing(n int, key string) stream.Event {
	h := sim.Generate(rand.New(rand.NewPCG(uint64(n), 3)), sim.Options{Objects: 1, Changes: 1, Contents: 2, Unit: 1, Gap: 10})
	e := message(n, h.Events[0])
	e.Key = key
	e.Body = []byte(strings.ReplaceAll(string(e.Body), "obj_1", "obj_"+key))
	return e
}

func (b *testBundle) status(t *testing.T, id int64) (status, reason string, attempts int) {
	t.Helper()
	err := b.db.Pool.QueryRow(t.Context(), `SELECT status, reason, attempts FROM outcomes WHERE event_id = $1 AND run = 0`, id).Scan(&status, &reason, &attempts)
	if err != nil {
		t.Fatalf("outcome of %d: %v", id, err)
	}
	return status, reason, attempts
}

// An event that cannot be read or written fails alone; its neighbours are applied.
func TestPoisonFailsAlone(t *testing.T) {
	t.Parallel()
	b := setup(t)
	// The database refuses one object's row.
	b.db.Exec(t, `ALTER TABLE objects ADD CONSTRAINT refused CHECK (object_id <> 'obj_refused')`)
	p := b.processor(t, moody{}, nil)
	want := map[string]string{"good": "applied", "panics": "failed", "fails": "failed", "dead": "dead", "ignored": "ignored", "longid": "dead",
		"refused": "failed", "better": "applied", "best": "applied"}
	var batch []stream.Event
	for key := range want {
		batch = append(batch, thing(len(batch), key))
	}
	must(t, p.Apply(t.Context(), events.LiveRun, batch))
	for _, e := range batch {
		if status, reason, _ := b.status(t, e.ID); status != want[e.Key] || reason == "" && status != "applied" {
			t.Errorf("%s: %s because %q, want %s", e.Key, status, reason, want[e.Key])
		}
	}
}

// A failed event is not touched before it is due, is tried again when it is, and dies with its last
// attempt, for the reason of that. Nothing final is ever changed.
func TestFailuresAreRetriedThenDead(t *testing.T) {
	t.Parallel()
	b := setup(t)
	e, r := thing(0, "e"), &reader{try: notToday}
	for want := 1; want <= 3; want++ {
		for range 2 { // the second copy arrives before the due time and burns no attempt
			b.alone(t, r, e)
		}
		status, reason, attempts := b.status(t, e.ID)
		if dead := status == "dead"; attempts != want || dead != (want == 3) {
			t.Errorf("after attempt %d: %s, %d attempts (%s)", want, status, attempts, reason)
		}
		b.due(t)
	}
	b.alone(t, sim.Provider{}, e) // mended meanwhile
	status, reason, attempts := b.status(t, e.ID)
	if r.tries != 3 || status != "dead" || attempts != 3 || reason != "given up after 3 attempts: not today" {
		t.Errorf("%s after %d tries, %d attempts: %q", status, r.tries, attempts, reason)
	}
}

// childVariable holds the job of a test process that is a processor of its own.
const childVariable = "POSTERN_TEST_CHILD"

// job is what a child works with.
type job struct {
	Database, Stream string
	Source           int32
	Poison           string
	Limits           stream.Limits
}

// died is the exit status of a child that the poison ended.
const died = 3

// deadly ends the process that reads one event.
type deadly struct {
	sim.Provider
	poison string
}

func (d deadly) Observe(src *provider.Source, e *provider.Stored) (provider.Observation, error) {
	if e.Key == d.poison {
		os.Exit(died)
	}
	return d.Provider.Observe(src, e)
}

// runChild is a processor until it is told to stop or the poison ends it.
func runChild(text string) int {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	if err := child(ctx, text); err != nil {
		fmt.Fprintln(os.Stderr, "child:", err)
		return 1
	}
	return 0
}

func child(ctx context.Context, text string) error {
	var j job
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
	quick(&s)
	s.BackOff, s.AuditAge, s.Lanes = s.BackOff[:2], 300*time.Millisecond, 8 // many lanes: whoever is tried alone beside the poison loses attempts
	p, err := processor.New(processor.Options{Pool: pool, Conn: conn, Limits: j.Limits, Settings: s, ID: fmt.Sprint("child/", os.Getpid()), Logger: log,
		Metrics: prometheus.NewRegistry(), Sources: map[string]processor.Source{
			"sim": {Number: j.Source, Config: &provider.Source{Name: "sim"}, Provider: deadly{poison: j.Poison}}}})
	if err != nil {
		return err
	}
	return p.Run(ctx)
}

// An event that ends the process which reads it, started again and again as an orchestrator does: its neighbours are applied,
// it runs out of attempts and is dead, and the process stays up.
func TestPoisonThatEndsTheProcess(t *testing.T) {
	t.Parallel()
	w := newWorld(t, func(l *stream.Limits) { l.AckWait = 400 * time.Millisecond })
	evs := w.append(t, w.simple(40)...)
	w.publish(t, evs...)
	text, err := json.Marshal(job{Database: w.db.URL, Stream: w.nats.URL, Source: w.source, Poison: evs[17].Key, Limits: w.limits})
	must(t, err)
	deaths := 0
	for w.childDies(t, string(text), len(evs)) {
		if deaths++; deaths > 20 {
			t.Fatal("the poison still ends the process")
		}
	}
	if deaths < 4 {
		t.Errorf("the poison ended %d processes; at least three batches and one try alone must have met it", deaths)
	}
	status, reason, attempts := w.status(t, evs[17].ID)
	if status != "dead" || attempts != 3 || !strings.Contains(reason, "given up after 3 attempts") {
		t.Errorf("the poison is %s after %d attempts: %s", status, attempts, reason)
	}
	var applied int
	if w.scan(t, `SELECT count(*) FROM outcomes WHERE status = 'applied'`, &applied); applied != len(evs)-1 {
		var others string
		w.scan(t, `SELECT string_agg(event_id || ' ' || status || ' ' || attempts || ' ' || reason, E'\n') FROM outcomes WHERE status <> 'applied'`, &others)
		t.Errorf("%d of %d neighbours were applied; not so:\n%s", applied, len(evs)-1, others)
	}
}

// childDies starts a child and waits until it dies of the poison (true), or stops it when all n events have a final outcome.
func (w *world) childDies(t *testing.T, text string, n int) bool {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"="+text)
	var output strings.Builder
	cmd.Stdout, cmd.Stderr = &output, &output
	must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	poll, deadline := time.NewTicker(50*time.Millisecond), time.After(patience)
	defer poll.Stop()
	stopping := false
	for {
		select {
		case err := <-ended:
			var status *exec.ExitError
			if errors.As(err, &status) && status.ExitCode() == died {
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
			t.Fatalf("child neither died nor finished within %s", patience)
		}
	}
}
