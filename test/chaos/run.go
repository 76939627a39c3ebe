package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/site"
)

// run is one chaos run: its site, its senders, its watcher and its faults.
type run struct {
	site    *site.Site
	senders *senders
	watcher *watcher
	traffic *traffic
	journal string
	out     io.Writer
	// allFaults injects every fault, however long that takes. Otherwise faults that are late on a
	// slow machine are omitted.
	allFaults bool

	mu sync.Mutex
	// happened are the injected faults with their times.
	happened []happening
	// unexpectedEnds counts, by daemon, how often it ended without being stopped. It is restarted
	// as by a supervisor.
	unexpectedEnds map[string]int
	errs           []error
	// steps are the steps after the last fault, with their durations.
	steps []step
}

type step struct {
	what string
	took time.Duration
}

type happening struct {
	kind string
	when span
}

// newRun prepares a run in a started site.
func newRun(s *site.Site, seed uint64, out io.Writer) (*run, error) {
	endpoints, err := endpoints(s.Config)
	if err != nil {
		return nil, err
	}
	r := &run{site: s, traffic: newTraffic(endpoints, seed), journal: filepath.Join(s.Dir, "journal"), out: out,
		unexpectedEnds: map[string]int{}}
	j, err := openJournal(r.journal)
	if err != nil {
		return nil, err
	}
	r.senders = newSenders([]string{s.Gateways[0].URL, s.Gateways[1].URL}, j)
	return r, nil
}

// answerWithin is how long after the last fault deliveries may be retried.
const answerWithin = 2 * time.Minute

// watch starts the watcher, which runs until the run is checked.
func (r *run) watch(ctx context.Context) (err error) {
	r.watcher, err = watch(ctx, r.site.Postgres.URL)
	return err
}

// execute sends deliveries, injects faults and watches the mirror. Then it repairs everything and
// waits until all deliveries are answered.
func (r *run) execute(ctx context.Context, lasts time.Duration, clients int, faults [][]fault) error {
	if err := r.watch(ctx); err != nil {
		return err
	}
	sending, stop := context.WithCancel(ctx)
	defer stop()
	failing, end := context.WithTimeout(ctx, lasts)
	defer end()
	if r.allFaults {
		failing = ctx
	}
	trying, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var group sync.WaitGroup
	group.Go(func() { r.fail(r.traffic.run(sending)) })
	group.Go(func() { r.senders.run(trying, clients, r.traffic.out) })
	began := time.Now()
	var faultGroups sync.WaitGroup
	for i := range faults {
		faultGroups.Go(func() { r.injectFaults(failing, began, faults[i], i == 0) })
	}
	faultGroups.Wait()
	sleep(ctx, time.Until(began.Add(lasts)))
	stop()
	r.fail(r.supervise())
	recovered := r.begin("recover")
	if err := r.site.Recover(ctx); err != nil {
		return errors.Join(err, r.errors())
	}
	recovered()
	handleResponse := r.begin("answer the open deliveries")
	late := time.AfterFunc(answerWithin, giveUp)
	defer late.Stop()
	group.Wait()
	handleResponse()
	if trying.Err() != nil {
		r.fail(fmt.Errorf("some deliveries are not answered %s after the site recovered", answerWithin))
	}
	return errors.Join(r.errors(), r.senders.journal.close())
}

// injectFaults injects the faults of one group, one after the other, until ctx ends. supervised
// means that the group has the faults of the daemons.
func (r *run) injectFaults(ctx context.Context, began time.Time, faults []fault, supervised bool) {
	for _, f := range faults {
		if !sleep(ctx, time.Until(began.Add(f.at))) {
			return
		}
		if supervised {
			r.fail(r.supervise())
		}
		from := time.Now()
		// A fault is always ended, even after ctx has ended.
		begun := f.kind.begin(context.WithoutCancel(ctx), r.site, f.pick)
		sleep(ctx, f.lasts)
		ended := f.kind.end(context.WithoutCancel(ctx), r.site, f.pick)
		if err := errors.Join(begun, ended); err != nil {
			r.fail(fmt.Errorf("%s: %w", f.kind.name, err))
		}
		r.note(f.kind.name, span{from, time.Now()})
	}
}

// supervise restarts daemons that have ended, as systemd and Kubernetes do. A processor does not
// start without PostgreSQL. A gateway does, so its end is an error.
func (r *run) supervise() error {
	var errs []error
	for i, d := range r.site.Daemons() {
		if !d.Running() {
			if i < len(r.site.Gateways) {
				errs = append(errs, d.ExitReport())
			}
			r.mu.Lock()
			r.unexpectedEnds[d.Name]++
			r.mu.Unlock()
			errs = append(errs, d.Start())
		}
	}
	return errors.Join(errs...)
}

// begin starts a step and returns the function that ends it.
func (r *run) begin(what string) (end func()) {
	began := time.Now()
	return func() { r.steps = append(r.steps, step{what, time.Since(began)}) }
}

func (r *run) note(kind string, when span) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.happened = append(r.happened, happening{kind, when})
}

func (r *run) fail(err error) {
	if err != nil {
		r.mu.Lock()
		defer r.mu.Unlock()
		r.errs = append(r.errs, err)
	}
}

func (r *run) errors() error {
	r.mu.Lock()
	defer r.mu.Unlock()
	return errors.Join(r.errs...)
}

// ended returns a copy of unexpectedEnds.
func (r *run) ended() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.unexpectedEnds)
}

// sleep waits for d. It returns false if ctx has ended.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
