package replay_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// Who goes on with a run counts what those before it had decided and not counted, each event once however many of them ended there, whether it is
// tried alone or not. What had failed was not decided.
func TestDeduplicated(t *testing.T) {
	t.Parallel()
	b := setup(t, 17, 12)
	run := b.ask(t, replay.Order{})
	crash := func(n int, p provider.Provider) {
		h := b.takes(t, replay.Job)
		if h.Bound == 0 {
			bound, err := events.FreezeBound(t.Context(), b.pool)
			if err == nil {
				err = h.Freeze(t.Context(), bound)
			}
			if err != nil {
				t.Fatal(err)
			}
		}
		if _, err := b.processor(t, p).ApplyStored(t.Context(), processor.Target{Run: run}, b.ids[:n], false); err != nil {
			t.Fatal(err)
		}
	}
	crash(7, sim.Provider{})
	crash(9, sim.Provider{})
	crash(11, failing{})
	h := b.takesFor(t, replay.Job, time.Minute)
	if !h.Abandoned {
		t.Error("nobody seems to have ended in the middle")
	}
	carry := &replay.Runner{Pool: b.pool, Processor: b.processor(t, sim.Provider{}), Chunk: 5}
	if status, err := carry.Carry(t.Context(), h, slog.New(slog.DiscardHandler)); err != nil || status != runs.Running {
		t.Fatal(status, err)
	}
	r, err := runs.Show(t.Context(), b.operator, run)
	if err != nil || r.Counts[replay.Deduplicated] != 9 || r.Counts["failed"] != 2 {
		t.Errorf("%v, %v", r.Counts, err)
	}
	b.counted(t, r, len(b.ids))
}
