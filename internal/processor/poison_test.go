package processor_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

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
	if err != nil {
		t.Fatal(err)
	}
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
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
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
