package console

import (
	"sync"
	"time"

	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
)

// runRates remembers what the last pages of running runs have shown. Two reads give a rate.
type runRates struct {
	mu   sync.Mutex
	runs map[int64]*runReads
}

// runReads are the last two reads of a run that were at least minRateInterval apart.
type runReads struct {
	earlier, latest runRead
}

type runRead struct {
	processed int64
	// at is the clock of this process, changed the database's time of the run's last checkpoint.
	at, changed time.Time
}

const (
	// minRateInterval is the shortest time between two reads that give a rate, and maxRateInterval
	// the longest.
	minRateInterval = time.Second
	maxRateInterval = time.Minute
	// maxRateRuns limits the remembered runs.
	maxRateRuns = 200
)

// rate records a read of a run, and returns the events per second since an earlier read. Without
// one it returns the average since the start. ok is false where nothing is known, and for a run
// that makes no progress.
func (t *runRates) rate(run *runs.Run, now time.Time) (perSecond float64, ok bool) {
	if run.Status != runs.Running || !run.StalledSince.IsZero() || run.ConsecutiveFailures > 0 {
		return 0, false
	}
	read := runRead{run.Counts[replay.Processed], now, run.UpdatedAt.Time}
	t.mu.Lock()
	defer t.mu.Unlock()
	known := t.runs[run.ID]
	if known == nil || now.Sub(known.latest.at) > maxRateInterval || read.processed < known.latest.processed {
		if t.runs == nil || len(t.runs) >= maxRateRuns {
			t.runs = map[int64]*runReads{}
		}
		known = &runReads{earlier: runRead{0, run.StartedAt.Time, run.StartedAt.Time}, latest: read}
		t.runs[run.ID] = known
	}
	if read.at.Sub(known.latest.at) >= minRateInterval && read.changed.After(known.latest.changed) {
		known.earlier, known.latest = known.latest, read
	}
	elapsed := known.latest.changed.Sub(known.earlier.changed).Seconds()
	if elapsed <= 0 || known.earlier.changed.IsZero() {
		return 0, false
	}
	return float64(known.latest.processed-known.earlier.processed) / elapsed, true
}
