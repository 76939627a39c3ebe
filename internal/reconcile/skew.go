package reconcile

import "time"

const (
	// tolerated is by how much the API's clock and the database's may differ before somebody is told.
	tolerated = time.Second
	// mostSkew is by how much they may differ and looks be ordered by either: beyond it one of the two is wrong, and the API's is taken.
	mostSkew = 5 * time.Second
)

// reading is what the database's clock showed at some moment between two of this machine's.
type reading struct {
	database    time.Time
	asked, told time.Time
}

// skew is how far an answer's Date, which is cut to the second, is ahead of the database's clock, at least; negative: behind. Its call was made from began to now.
func (at reading) skew(date, began, now time.Time) time.Duration {
	if ahead := date.Sub(at.database) - now.Sub(at.asked); ahead > 0 {
		return ahead
	}
	return min(0, date.Add(time.Second).Sub(at.database)-began.Sub(at.told))
}

// widen measures an answer's skew, and lets Date less Elapsed lie no later than when the call began by either clock, and the end of Date's second no earlier than when it ended. So a look is
// ordered rightly if one of the clocks is right: the servers of an API need not agree on the time. The database may have read its clock as soon as it was asked, or long after, just before it told: so
// Skew is the least that is known, and what is made up for, either way, the most that can be, of what is to be made up for at all. A long wait may be both.
func (r *Response) widen(at reading, began, now time.Time) {
	if r.Date.IsZero() {
		return
	}
	r.Skew = at.skew(r.Date, began, now)
	if r.Skew.Abs() > mostSkew {
		return
	}
	ahead := r.Date.Sub(at.database) - now.Sub(at.told)
	behind := began.Sub(at.asked) - r.Date.Add(time.Second).Sub(at.database)
	if behind > 0 {
		r.Widened = now.Sub(began) + min(behind, mostSkew)
		r.Date = r.Date.Add(r.Widened)
	}
	r.Widened += max(0, min(ahead, mostSkew))
	r.Elapsed += r.Widened
}

// noted tells of how far the clocks have differed of late, once in a period.
func (c *Client) noted(r *Response, skew time.Duration, first bool) {
	c.o.Metrics.skew.WithLabelValues(c.o.Source).Set(skew.Seconds())
	if first {
		c.o.Logger.Warn("the API's clock and the database's differ: see that the database's machine keeps the time (NTP); the order of what was fetched is in doubt where they differ by more than looks allow for",
			"source", c.o.Source, "skew", r.Skew, "allowed", mostSkew)
	}
}

// skewed notes with the run's counts that the clocks differ.
func (w *work) skewed() {
	if skew := w.source.Caller.Skew().Abs(); skew > tolerated {
		w.hold.Counts[SkewSeconds] = int64((skew + time.Second - 1) / time.Second)
	}
}
