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

// run is one chaos run: its surroundings, who sends, and what fails.
type run struct {
	site    *site.Site
	senders *senders
	watcher *watcher
	traffic *traffic
	journal string
	out     io.Writer
	// whole: every fault happens, however long that takes; else what is late on a slow machine is
	// left out.
	whole bool

	mu sync.Mutex
	// happened are the faults that there were, with their time.
	happened []happening
	// byItself counts how often a daemon had ended without being asked, and was started again as
	// its supervisor would.
	byItself map[string]int
	errs     []error
	// steps are what there was to do after the last fault, with how long it took.
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

// newRun prepares a run in a site that is up.
func newRun(s *site.Site, seed uint64, out io.Writer) (*run, error) {
	endpoints, err := doors(s.Config)
	if err != nil {
		return nil, err
	}
	r := &run{site: s, traffic: newTraffic(endpoints, seed), journal: filepath.Join(s.Dir, "journal"), out: out,
		byItself: map[string]int{}}
	j, err := openJournal(r.journal)
	if err != nil {
		return nil, err
	}
	r.senders = newSenders([]string{s.Gateways[0].URL, s.Gateways[1].URL}, j)
	return r, nil
}

// answerWithin is how long after the last fault a delivery may still be tried.
const answerWithin = 2 * time.Minute

// watch begins to look at the mirror, until the run is examined.
func (r *run) watch(ctx context.Context) (err error) {
	r.watcher, err = watch(ctx, r.site.Postgres.URL)
	return err
}

// carry sends for so long while things fail and somebody looks on, heals everything, and waits
// until all is answered.
func (r *run) carry(ctx context.Context, lasts time.Duration, clients int, faults [][]fault) error {
	if err := r.watch(ctx); err != nil {
		return err
	}
	sending, stop := context.WithCancel(ctx)
	defer stop()
	failing, calm := context.WithTimeout(ctx, lasts)
	defer calm()
	if r.whole {
		failing = ctx
	}
	trying, giveUp := context.WithCancel(ctx)
	defer giveUp()
	var group sync.WaitGroup
	group.Go(func() { r.fail(r.traffic.run(sending)) })
	group.Go(func() { r.senders.run(trying, clients, r.traffic.out) })
	began := time.Now()
	var lanes sync.WaitGroup
	for i := range faults {
		lanes.Go(func() { r.lane(failing, began, faults[i], i == 0) })
	}
	lanes.Wait()
	sleep(ctx, time.Until(began.Add(lasts)))
	stop()
	r.fail(r.supervise())
	healed := r.begin("heal all")
	if err := r.site.Recover(ctx); err != nil {
		return errors.Join(err, r.errors())
	}
	healed()
	answered := r.begin("answer what was under way")
	late := time.AfterFunc(answerWithin, giveUp)
	defer late.Stop()
	group.Wait()
	answered()
	if trying.Err() != nil {
		r.fail(fmt.Errorf("deliveries are not answered %s after everything was healed", answerWithin))
	}
	return errors.Join(r.errors(), r.senders.journal.close())
}

// lane lets things fail one after the other, until ctx ends. supervised: the daemons are this
// lane's.
func (r *run) lane(ctx context.Context, began time.Time, faults []fault, supervised bool) {
	for _, f := range faults {
		if !sleep(ctx, time.Until(began.Add(f.at))) {
			return
		}
		if supervised {
			r.fail(r.supervise())
		}
		from := time.Now()
		// A fault that has begun is ended, whatever else ends.
		begun := f.kind.begin(context.WithoutCancel(ctx), r.site, f.what)
		sleep(ctx, f.lasts)
		ended := f.kind.end(context.WithoutCancel(ctx), r.site, f.what)
		if err := errors.Join(begun, ended); err != nil {
			r.fail(fmt.Errorf("%s: %w", f.kind.name, err))
		}
		r.note(f.kind.name, span{from, time.Now()})
	}
}

// supervise starts daemons again that have ended by themselves, as systemd and Kubernetes do: a
// processor does not start without PostgreSQL. A gateway does, and never ends by itself.
func (r *run) supervise() error {
	var errs []error
	for i, d := range r.site.Daemons() {
		if !d.Running() {
			if i < len(r.site.Gateways) {
				errs = append(errs, d.ExitReport())
			}
			r.mu.Lock()
			r.byItself[d.Name]++
			r.mu.Unlock()
			errs = append(errs, d.Start())
		}
	}
	return errors.Join(errs...)
}

// begin begins a step, which ends when what it returns is called.
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

// ended is a copy of byItself.
func (r *run) ended() map[string]int {
	r.mu.Lock()
	defer r.mu.Unlock()
	return maps.Clone(r.byItself)
}

// sleep waits; false: ctx has ended.
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
