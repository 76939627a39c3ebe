package app_test

import (
	"context"
	"runtime/debug"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
)

// What may be garbage is bounded in bytes, not as a share of whatever is in use.
func TestPercentOf(t *testing.T) {
	t.Parallel()
	for inUse, want := range map[uint64]int{0: 400, 1: 400, 10 << 20: 400, 20 << 20: 200, 40 << 20: 100, 80 << 20: 50, 160 << 20: 25, 192 << 20: 25, 1 << 40: 25} {
		if got := app.PercentOf(inUse); got != want {
			t.Errorf("%d bytes in use: %d, want %d", inUse, got, want)
		}
	}
}

// Two apps in one process set the collector once, and one in a process that is not its own, like this, leaves it as it is.
func TestTheCollectorIsSetOnceByItsOwner(t *testing.T) {
	t.Parallel()
	var asked int
	env := func(string) string { asked++; return "set" } // and so nothing is set
	app.TuneMemory(t.Context(), config.Default(), env)
	if asked != 0 {
		t.Error("the collector of somebody else's process would be set")
	}
	owned, release := app.OwnProcess(t.Context())
	defer release()
	for range 2 {
		ctx, cancel := context.WithCancel(owned)
		app.TuneMemory(ctx, config.Default(), env)
		cancel()
	}
	if asked != 3 {
		t.Errorf("%d questions to the environment, want one for GOGC of each and one for GOMEMLIMIT", asked)
	}
	for gogc, want := range map[string]bool{"100": false, "": true} {
		if got := app.TuneMemory(owned, config.Default(), func(string) string { return gogc }); got != want {
			t.Errorf("with GOGC=%q memory is given back: %v, also of the second app of a process", gogc, got)
		}
	}

	b := setup(t, nil)
	if limit := debug.SetMemoryLimit(-1); limit == int64(b.cfg.Ingest.QueueBytes)+app.Besides {
		t.Error("an app in a test set the collector of the test")
	}
}

// Memory is given back once the process asks for next to none, where much of it lies idle, and not again before a minute is over.
func TestMemoryIsGivenBackInQuiet(t *testing.T) {
	t.Parallel()
	const mib = 1 << 20
	var q app.Quiet
	began, asked := time.Now(), uint64(0)
	for i, step := range []struct {
		after      time.Duration
		asks, idle uint64
		want       bool
	}{
		{0, 500 * mib, 40 * mib, false}, // a burst
		{2 * time.Second, 9 * mib, 40 * mib, false},
		{4 * time.Second, mib / 4, 40 * mib, true},
		{6 * time.Second, mib / 4, 40 * mib, false},
		{62 * time.Second, 0, 40 * mib, false},
		{64 * time.Second, 2 * mib, 40 * mib, false}, // busy again
		{66 * time.Second, 0, 15 * mib, false},       // not worth it
		{68 * time.Second, 0, 17 * mib, true},
	} {
		asked += step.asks
		if got := q.Due(asked, step.idle, began.Add(step.after)); got != step.want {
			t.Errorf("step %d: %v", i, got)
		}
	}
}

// What the decision is made of is what Go says: garbage and free pages lie idle until they are given back.
func TestReadMemory(t *testing.T) { // not beside others, which ask for memory too
	debug.FreeOSMemory()
	before, _ := app.ReadMemory()
	for range 100 {
		waste = make([]byte, 1<<20)
	}
	waste = nil
	asked, idle := app.ReadMemory()
	if asked-before < 100<<20 || idle < 2<<20 {
		t.Errorf("%d bytes asked for, %d idle", asked-before, idle)
	}
	debug.FreeOSMemory()
	if _, after := app.ReadMemory(); after >= idle {
		t.Errorf("%d bytes idle after giving back, %d before", after, idle)
	}
}

// waste keeps an allocation from being optimized away.
var waste []byte
