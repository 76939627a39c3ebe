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
	// garbage is how many bytes may be thrown away before Go collects them. A daemon has some ten MiB in use, and with Go's default,
	// as much again, a third of a busy gateway's processor time went into collecting.
	garbage = 40 << 20
	// The bounds of GOGC, which says the same as a percentage of what is in use.
	leastPercent, mostPercent = 25, 400
	// besides is what a process may need besides the verified bodies it holds, and what waits to be published or was fetched ahead: above
	// the sum of them Go collects as often as it must.
	besides = 384 << 20
)

// tuneMemory sets how often Go collects garbage, unless the environment does (GOGC, GOMEMLIMIT): once in a process, and only in one
// whose context OwnProcess made. gives says whether an app of such a process may have memory given back: each may, since one may end and another take its place.
func tuneMemory(ctx context.Context, cfg *config.Config, env func(string) string) (gives bool) {
	p, ok := ctx.Value(processKey{}).(*process)
	if !ok {
		return false
	}
	gives = env("GOGC") == ""
	if p.tuned.Swap(true) {
		return gives
	}
	if env("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(cfg.Ingest.QueueBytes) + besides)
	}
	if gives {
		t := &tuner{percent: mostPercent}
		debug.SetGCPercent(t.percent)
		t.again()
	}
	return gives
}

const (
	// quietEvery is how often to see whether the process is quiet: it has asked for less than a little memory since the last look.
	quietEvery = 2 * time.Second
	little     = 1 << 20
	// worth is how much memory must lie idle to be given back, and giveEvery how often at most, since that takes a collection.
	worth     = 16 << 20
	giveEvery = time.Minute
)

// giveBack returns memory to the system when the process has become quiet, until ctx ends. By itself Go keeps what the last burst took, and does not collect its garbage before as much has come again.
func giveBack(ctx context.Context) error {
	tick := time.NewTicker(quietEvery)
	defer tick.Stop()
	var q quiet
	for {
		select {
		case <-ctx.Done():
			return nil
		case now := <-tick.C:
			if asked, idle := readMemory(); q.due(asked, idle, now) {
				debug.FreeOSMemory()
			}
		}
	}
}

// readMemory is how many bytes the process has ever asked for, and how many lie idle: free, or come since the last collection, which is garbage for the most part.
func readMemory() (asked, idle uint64) {
	samples := []metrics.Sample{{Name: "/gc/heap/allocs:bytes"}, {Name: "/memory/classes/heap/free:bytes"}, {Name: "/memory/classes/heap/objects:bytes"}, {Name: "/gc/heap/live:bytes"}}
	metrics.Read(samples)
	free, objects, live := samples[1].Value.Uint64(), samples[2].Value.Uint64(), samples[3].Value.Uint64()
	return samples[0].Value.Uint64(), free + objects - min(objects, live)
}

// quiet decides when memory is given back.
type quiet struct {
	asked uint64
	given time.Time
}

// due says whether that is now, of a process that has asked for so many bytes up to now, and of which so many lie idle.
func (q *quiet) due(asked, idle uint64, now time.Time) bool {
	since := asked - q.asked
	q.asked = asked
	if since >= little || idle < worth || now.Sub(q.given) < giveEvery {
		return false
	}
	q.given = now
	return true
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
