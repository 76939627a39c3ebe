package app

import (
	"context"
	"math"
	"runtime"
	"runtime/debug"
	"runtime/metrics"
	"time"

	"github.com/postern-gateway/postern/internal/config"
)

const (
	// garbageBytes is how much garbage may accumulate before a collection. A daemon uses about 10
	// MiB. With Go's default setting, a busy gateway spent a third of its CPU time on collections.
	garbageBytes = 40 << 20
	// The limits of GOGC, which expresses the same as a percentage of the memory in use.
	minGCPercent, maxGCPercent = 25, 400
	// extraMemory is the part of the memory limit above ingest.queue_bytes. Publications and
	// prefetched events use it. Near the limit, Go collects as often as necessary.
	extraMemory = 384 << 20
)

// tuneMemory sets the memory limit unless GOMEMLIMIT is set, and how often Go collects garbage
// unless GOGC is set. It does so once in a process, and only if OwnProcess created the context.
// mayReturn reports whether this app may return memory to the system. Each app of the process may,
// because one app can replace another.
func tuneMemory(ctx context.Context, cfg *config.Config, env func(string) string) (mayReturn bool) {
	p, ok := ctx.Value(processKey{}).(*processState)
	if !ok {
		return false
	}
	mayReturn = env("GOGC") == ""
	if p.gcTuned.Swap(true) {
		return mayReturn
	}
	if env("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(cfg.Ingest.QueueBytes) + extraMemory)
	}
	if mayReturn {
		t := &gcTuner{percent: maxGCPercent}
		debug.SetGCPercent(t.percent)
		t.adjustAfterGC()
	}
	return mayReturn
}

const (
	// idleCheckInterval is the time between two checks whether the process is idle, that is, has
	// allocated less than idleAllocBytes since the last check.
	idleCheckInterval = 2 * time.Second
	idleAllocBytes    = 1 << 20
	// minReturnBytes is the minimum of unused memory to return, and returnInterval the minimum time
	// between two returns, because each needs a collection.
	minReturnBytes = 16 << 20
	returnInterval = time.Minute
)

// returnMemory returns memory to the system when the process is idle, until ctx ends. Go alone does
// not: it collects the garbage of the last burst only after as many new bytes are allocated.
func returnMemory(ctx context.Context) error {
	tick := time.NewTicker(idleCheckInterval)
	defer tick.Stop()
	var detector idleDetector
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			if allocated, idle := readMemory(); detector.isDue(allocated, idle, now) {
				debug.FreeOSMemory()
			}
		}
	}
}

// readMemory returns how many bytes the process has allocated in total, and how many are unused:
// free, or allocated since the last collection, which is mostly garbage.
func readMemory() (allocated, idle uint64) {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/memory/classes/heap/free:bytes"},
		{Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples)
	free, objects, live := samples[1].Value.Uint64(), samples[2].Value.Uint64(), samples[3].Value.Uint64()
	return samples[0].Value.Uint64(), free + objects - min(objects, live)
}

// idleDetector decides when memory is returned.
type idleDetector struct {
	allocated  uint64
	returnedAt time.Time
}

// isDue reports whether to return memory now, given the total of allocated bytes and the unused
// bytes.
func (q *idleDetector) isDue(allocated, idle uint64, now time.Time) bool {
	since := allocated - q.allocated
	q.allocated = allocated
	if since >= idleAllocBytes || idle < minReturnBytes || now.Sub(q.returnedAt) < returnInterval {
		return false
	}
	q.returnedAt = now
	return true
}

// gcTuner sets GOGC after each collection, based on the memory in use.
type gcTuner struct{ percent int }

// adjustAfterGC calls adjust after the next collection, through the finalizer of an unreachable
// object.
func (t *gcTuner) adjustAfterGC() {
	runtime.SetFinalizer(new(gcSentinel), func(*gcSentinel) {
		t.adjust()
		t.adjustAfterGC()
	})
}

// gcSentinel is large enough that Go does not combine several of them in one block.
type gcSentinel [16]uintptr

func (t *gcTuner) adjust() {
	samples := []metrics.Sample{{Name: "/gc/heap/live:bytes"}, {Name: "/gc/scan/stack:bytes"}}
	metrics.Read(samples)
	percent := gcPercentFor(samples[0].Value.Uint64() + samples[1].Value.Uint64())
	// SetGCPercent stops all goroutines for a moment, so small changes are ignored.
	if math.Abs(float64(percent-t.percent)) > 0.1*float64(t.percent) {
		t.percent = percent
		debug.SetGCPercent(percent)
	}
}

// gcPercentFor returns GOGC for a number of bytes in use.
func gcPercentFor(inUse uint64) int {
	return int(min(maxGCPercent, max(minGCPercent, garbageBytes*100/max(inUse, 1))))
}
