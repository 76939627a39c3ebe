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

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/prometheus/client_golang/prometheus"
)

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
	text, err := json.Marshal(childJob{Database: w.DB.URL, Stream: w.nats.URL, Source: w.Source, Poison: evs[17].Key,
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
	status, reason, attempts := w.OutcomeOf(t, evs[17].ID)
	if status != "dead" || attempts != 3 || !strings.Contains(reason, "given up after 3 attempts") {
		t.Errorf("the poison event is %s after %d attempts: %s", status, attempts, reason)
	}
	var applied int
	if w.Scan(t, `SELECT count(*) FROM outcomes WHERE status = 'applied'`, &applied); applied != len(evs)-1 {
		var others string
		w.Scan(t, `SELECT string_agg(event_id || ' ' || status || ' ' || attempts || ' ' || reason, E'\n') FROM outcomes
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
			w.Scan(t, `SELECT count(*) FROM outcomes WHERE status <> 'failed'`, &final)
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
