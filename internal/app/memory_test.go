package app_test

import (
	"context"
	"runtime/debug"
	"testing"

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
	if asked != 2 {
		t.Errorf("%d questions to the environment, want one for GOGC and one for GOMEMLIMIT", asked)
	}

	b := setup(t, nil)
	if limit := debug.SetMemoryLimit(-1); limit == int64(b.cfg.Ingest.QueueBytes)+app.Besides {
		t.Error("an app in a test set the collector of the test")
	}
}
