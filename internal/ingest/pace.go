package ingest

import "time"

// pace foretells how long what joins the queue will wait, so that it is refused at once rather than after its deadline. Without that, a flood fills the queue with more
// than can be committed in time, and each commit is of deliveries whose senders were answered 503 just before.
type pace struct {
	// batch and bytes bound a commit.
	batch int
	bytes int64
	// most is the longest wait, and commit how long commits took of late.
	most, commit time.Duration
}

// took learns from a commit: sooner that they take longer than that they do not any more.
func (p *pace) took(d time.Duration) {
	if d > p.commit {
		p.commit += (d - p.commit) / 2
	} else {
		p.commit += (d - p.commit) / 8
	}
}

// late tells whether a delivery behind so many waits too long, where so many writers commit, and a commit is under way that has lasted some time already. What goes with the next commit of each writer
// never does: so there are always commits to learn from.
func (p *pace) late(deliveries int, bytes int64, lasting time.Duration, writers int) bool {
	batches := max(int64(deliveries/p.batch), bytes/p.bytes)
	rounds := batches / int64(max(writers, 1))
	return rounds > 0 && time.Duration(rounds+2)*max(p.commit, lasting) > p.most // the commit under way before it, and its own
}
