package app

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"

	"github.com/postern-gateway/postern/internal/config"
)

const (
	// garbage is how many bytes may be thrown away before Go collects them. A daemon has some ten MiB in use, and with Go's default,
	// as much again, a third of a busy gateway's processor time went into collecting.
	garbage = 40 << 20
	// The bounds of GOGC, which says the same as a percentage of what is in use.
	leastPercent, mostPercent = 25, 400
	// besides is what a process may need besides the bodies it holds, and what waits to be published or was fetched ahead: above
	// the sum of them Go collects as often as it must.
	besides = 384 << 20
)

// tuneMemory sets how often Go collects garbage, unless the environment does (GOGC, GOMEMLIMIT): once in a process, and only in one
// whose context OwnProcess made.
func tuneMemory(ctx context.Context, cfg *config.Config, env func(string) string) {
	p, ok := ctx.Value(processKey{}).(*process)
	if !ok || p.tuned.Swap(true) {
		return
	}
	if env("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(cfg.Ingest.QueueBytes) + besides)
	}
	if env("GOGC") == "" {
		t := &tuner{percent: mostPercent}
		debug.SetGCPercent(t.percent)
		t.again()
	}
}

// tuner sets GOGC anew after each collection, by what is in use then.
type tuner struct{ percent int }

// again has adjust called after the next collection, which finds that nobody has the token.
func (t *tuner) again() {
	runtime.SetFinalizer(new(token), func(*token) {
		t.adjust()
		t.again()
	})
}

// token is not so small that Go keeps several of its kind in one piece of memory.
type token [16]uintptr

func (t *tuner) adjust() {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}}
	metrics.Read(samples)
	percent := percentOf(samples[0].Value.Uint64() + samples[1].Value.Uint64())
	// Setting it stops the world for a moment, so not for nothing.
	if math.Abs(float64(percent-t.percent)) > 0.1*float64(t.percent) {
		t.percent = percent
		debug.SetGCPercent(percent)
	}
}

// percentOf is GOGC for so many bytes in use.
func percentOf(inUse uint64) int {
	return int(min(mostPercent, max(leastPercent, garbage*100/max(inUse, 1))))
}
