package reconcile

import "time"

const (
	// toleratedSkew is by how much the API's clock and the database's may differ before it is
	// logged.
	toleratedSkew = time.Second
	// maxSkew is by how much they may differ so that refetches are ordered by either clock. Beyond
	// it one of the two is wrong, and the API's clock is used.
	maxSkew = 5 * time.Second
)

// clockReading is a time of the database's clock, read at some moment between two times of this
// machine's clock.
type clockReading struct {
	database      time.Time
	before, after time.Time
}

// skew returns by how much a response's Date, which is cut to the second, is ahead of the
// database's clock, at least; negative: behind. The call was made from began to now.
func (at clockReading) skew(date, began, now time.Time) time.Duration {
	if ahead := date.Sub(at.database) - now.Sub(at.before); ahead > 0 {
		return ahead
	}
	return min(0, date.Add(time.Second).Sub(at.database)-began.Sub(at.after))
}

// widen measures a response's skew and widens its interval. Date less Elapsed is then no later than
// the start of the call by either clock, and the end of Date's second no earlier than its end. A
// refetch is therefore ordered correctly if one of the clocks is right; the servers of an API need
// not agree on the time. The database may have read its clock at any moment between before and
// after. Skew is therefore the smallest possible difference, and the widening covers the largest
// possible one, up to maxSkew in each direction. A long wait may widen both.
func (r *Response) widen(at clockReading, began, now time.Time) {
	if r.Date.IsZero() {
		return
	}
	r.Skew = at.skew(r.Date, began, now)
	if r.Skew.Abs() > maxSkew {
		return
	}
	ahead := r.Date.Sub(at.database) - now.Sub(at.after)
	behind := began.Sub(at.before) - r.Date.Add(time.Second).Sub(at.database)
	if behind > 0 {
		r.Widened = now.Sub(began) + min(behind, maxSkew)
		r.Date = r.Date.Add(r.Widened)
	}
	r.Widened += max(0, min(ahead, maxSkew))
	r.Elapsed += r.Widened
}

// reportSkew sets the metric and logs the skew once in a period.
func (c *Client) reportSkew(r *Response, skew time.Duration, first bool) {
	c.options.Metrics.skew.WithLabelValues(c.options.Source).Set(skew.Seconds())
	if first {
		c.options.Logger.Warn("the API's clock and the database's differ: check that the database's machine "+
			"synchronizes its time "+
			"(NTP); the order of refetches is uncertain if the difference exceeds the allowed one",
			"source", c.options.Source, "skew", r.Skew, "allowed", maxSkew)
	}
}

// recordSkew adds the skew to the run's counts.
func (w *execution) recordSkew() {
	if skew := w.source.Caller.Skew().Abs(); skew > toleratedSkew {
		w.lease.Counts[SkewSeconds] = int64((skew + time.Second - 1) / time.Second)
	}
}
