package ingest

import "time"

// waitEstimator estimates how long a new delivery would wait in the queue, so that it can be
// rejected at once instead of after its deadline. Without it, a flood fills the queue with more
// than can be committed in time. Every commit would then store deliveries whose senders already got
// a 503.
type waitEstimator struct {
	// batchCount and batchBytes bound one commit.
	batchCount int
	batchBytes int64
	// maxWait is the longest permitted wait, commitTime a moving average of the duration of
	// commits.
	maxWait, commitTime time.Duration
}

// observe adds the duration of a commit. The average rises faster than it falls.
func (p *waitEstimator) observe(d time.Duration) {
	if d > p.commitTime {
		p.commitTime += (d - p.commitTime) / 2
	} else {
		p.commitTime += (d - p.commitTime) / 8
	}
}

// tooLong returns true if a delivery would wait longer than maxWait behind the given number and
// size of deliveries. commitAge is the age of the oldest commit in progress, writers the number of
// writers that have not stalled. A delivery that fits into the next commit of each writer never
// waits too long, so there are always commits to observe.
func (p *waitEstimator) tooLong(deliveries int, bytes int64, commitAge time.Duration, writers int) bool {
	batches := max(int64(deliveries/p.batchCount), bytes/p.batchBytes)
	rounds := batches / int64(max(writers, 1))
	// plus the commit in progress and the delivery's own
	return rounds > 0 && time.Duration(rounds+2)*max(p.commitTime, commitAge) > p.maxWait
}
