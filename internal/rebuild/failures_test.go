package rebuild_test

import (
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// moody reads no event until it is mended.
type moody struct {
	sim.Provider
	mended *atomic.Bool
}

func (m moody) Observe(src *provider.Source, e *provider.Stored) (provider.Observation, error) {
	if !m.mended.Load() {
		return provider.Observation{}, errUnread
	}
	return m.Provider.Observe(src, e)
}

// What fails live and in the rebuild, and is then applied live, is in what is swapped, also where that comes just before the lock.
func TestWhatIsMendedLiveIsNotLost(t *testing.T) {
	t.Parallel()
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprint(late), func(t *testing.T) {
			t.Parallel()
			r := seeded(t, 31)
			b := setup(t)
			ids := b.append(t, r, b.source, sim.Generate(r, kinds["event time"]).Events)
			m := moody{mended: new(atomic.Bool)}
			p := b.processor(t, m)
			if _, err := p.ApplyStored(t.Context(), processor.Target{}, ids, false); err != nil {
				t.Fatal(err)
			}
			var once sync.Once
			var before []string
			mend := func() {
				m.mended.Store(true)
				b.exec(t, `UPDATE outcomes SET due = now() - interval '1 s' WHERE run = 0 AND status = 'failed'`)
				if _, err := p.ApplyStored(t.Context(), processor.Target{}, ids, false); err != nil {
					t.Error(err)
				}
				before = b.table(t, object, "objects")
			}
			rebuilds := &rebuild.Runner{Pool: b.pool, Processor: b.processor(t, m), Settings: quick()}
			rebuild.BeforeLock(rebuilds, func() {
				if late {
					once.Do(mend)
				}
			})
			b.carry(t, "one", rebuilds)
			run := b.ask(t, rebuild.Order{Source: b.source})
			b.until(t, run, staged)
			if !late {
				mend()
			}
			if err := rebuild.Swap(t.Context(), b.operator, run); err != nil {
				t.Fatal(err)
			}
			ended := b.until(t, run, done)
			if diff := cmp.Diff(before, b.table(t, object, "objects")); diff != "" || len(before) == 0 {
				t.Errorf("%v: %s", ended.Counts, diff)
			}
			if ended.Counts[rebuild.Processed] != int64(len(ids)) || ended.Counts[string(versioning.Failed)] != 0 {
				t.Errorf("%v", ended.Counts)
			}
		})
	}
}

// What a process died with while it tried it alone, before live events had reached it, is tried again too; what goes on failing ends the rebuild.
func TestWhatWasTriedAloneBeforeLiveIsNotLost(t *testing.T) {
	t.Parallel()
	for _, reads := range []provider.Provider{sim.Provider{}, failing{}} {
		t.Run(fmt.Sprintf("%T", reads), func(t *testing.T) {
			t.Parallel()
			r := seeded(t, 32)
			b := setup(t)
			ids := b.append(t, r, b.source, sim.Generate(r, kinds["own version"]).Events)
			run := b.ask(t, rebuild.Order{Source: b.source})
			if h, err := runs.Take(t.Context(), b.pool, "dead", time.Millisecond, rebuild.Job); err != nil || h == nil {
				t.Fatal(h, err)
			}
			b.exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, due, at, rule_version)
				SELECT e, $2, $3, 0, '', '', '', 'failed', 'tried alone; the attempt has not ended yet, or it ended the process', 1, now() + interval '1 hour', now(), 1
				FROM unnest($1::bigint[]) e`, ids[:10], run, b.source)
			b.start(t, "one", reads, quick())
			b.until(t, run, staged)
			b.live(t, r, ids)
			before := b.table(t, object, "objects")
			if err := rebuild.Swap(t.Context(), b.operator, run); err != nil {
				t.Fatal(err)
			}
			ended := b.until(t, run, func(r *runs.Run) bool { return r.Status.Final() })
			if _, fails := reads.(failing); fails != (ended.Status == runs.Failed && strings.Contains(ended.Detail, "was applied live and fails now")) {
				t.Errorf("%s: %s", ended.Status, ended.Detail)
			}
			if diff := cmp.Diff(before, b.table(t, object, "objects")); diff != "" {
				t.Errorf("%v: %s", ended.Counts, diff)
			}
		})
	}
}

// What is in the mirror and dead now is shown first: a swap that nobody has looked at refuses, and one that somebody asked for then goes on.
func TestDeadOfWhatWasAppliedLive(t *testing.T) {
	t.Parallel()
	r := seeded(t, 33)
	b := setup(t)
	ids := b.append(t, r, b.source, sim.Generate(r, kinds["event time"]).Events)
	b.live(t, r, ids)
	before := b.table(t, whole, "objects")
	b.start(t, "one", dead{}, quick())
	ended := b.until(t, b.ask(t, rebuild.Order{Source: b.source, Swap: true}), func(r *runs.Run) bool { return r.Status.Final() })
	if ended.Status != runs.Failed || !strings.Contains(ended.Detail, fmt.Sprintf("%d events that were applied live are dead now", len(ids))) {
		t.Errorf("%s: %s", ended.Status, ended.Detail)
	}
	if diff := cmp.Diff(before, b.table(t, whole, "objects")); diff != "" {
		t.Error(diff)
	}
	run := b.ask(t, rebuild.Order{Source: b.source})
	b.until(t, run, staged)
	page, err := rebuild.Compare(t.Context(), b.operator, run, "", 100)
	if err != nil || page.Dead == nil || page.Dead.Events != int64(len(ids)) || page.Dead.Reason != "for a test" {
		t.Errorf("%+v, %v", page, err)
	}
	if err := rebuild.Swap(t.Context(), b.operator, run); err != nil {
		t.Fatal(err)
	}
	if ended := b.until(t, run, done); ended.Counts[rebuild.Emptied] == 0 {
		t.Errorf("%v", ended.Counts)
	}
}

// A source that leaves the configuration while its rebuild is under way ends it, with the reason, instead of trying its events again without end.
func TestSourceThatLeavesTheConfiguration(t *testing.T) {
	t.Parallel()
	r := seeded(t, 34)
	b := setup(t)
	b.live(t, r, b.append(t, r, b.source, sim.Generate(r, kinds["event time"]).Events))
	p := b.processor(t, nil)
	rebuilds := &rebuild.Runner{Pool: b.pool, Processor: p, Settings: quick()}
	rebuild.Step(rebuilds, func(name string) error {
		if name == "copy" { // the order has been read
			p.Replace(map[string]processor.Source{})
		}
		return nil
	})
	b.carry(t, "one", rebuilds)
	ended := b.until(t, b.ask(t, rebuild.Order{Source: b.source}), func(r *runs.Run) bool { return r.Status.Final() })
	if ended.Status != runs.Failed || !strings.Contains(ended.Detail, "is not in the configuration") {
		t.Errorf("%s: %s", ended.Status, ended.Detail)
	}
}

// telling does something with each event, which then fails.
type telling struct {
	sim.Provider
	tell func()
}

func (l telling) Observe(*provider.Source, *provider.Stored) (provider.Observation, error) {
	l.tell()
	return provider.Observation{}, errUnread
}

// Between two tries of what fails a person is heard.
func TestPausedBetweenTries(t *testing.T) {
	t.Parallel()
	r := seeded(t, 35)
	b := setup(t)
	b.live(t, r, b.append(t, r, b.source, sim.Generate(r, kinds["event time"]).Events))
	run := b.ask(t, rebuild.Order{Source: b.source})
	settings := quick()
	settings.Again = time.Hour
	h, err := runs.Take(t.Context(), b.pool, "one", time.Minute, rebuild.Job)
	if err != nil || h == nil {
		t.Fatal(h, err)
	}
	var once sync.Once
	rebuilds := &rebuild.Runner{Pool: b.pool, Settings: settings, Processor: b.processor(t, telling{tell: func() {
		once.Do(func() {
			if err := runs.Change(t.Context(), b.operator, run, runs.Paused); err != nil {
				t.Error(err)
			}
		})
	}})}
	if status, err := rebuilds.Carry(t.Context(), h, slog.New(slog.DiscardHandler)); err != nil || status != runs.Paused {
		t.Errorf("%s, %v", status, err)
	}
}
