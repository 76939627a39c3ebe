package providerapi

import "time"

const (
	// ToleratedSkew is the greatest difference of the API's clock and the database's that is not
	// logged.
	ToleratedSkew = time.Second
	// maxSkew is the greatest difference at which refetches are ordered correctly by either clock.
	// Beyond it one of the clocks is wrong, and the API's clock is used.
	maxSkew = 5 * time.Second
)

// clockReading is a time of the database's clock, read at some moment between two times of this
// machine's clock.
type clockReading struct {
	database      time.Time
	before, after time.Time
}

// skew returns the least possible lead of a response's Date, which is cut to the second, over the
// database's clock; negative: it is behind. The call lasted from began to now.
func (at clockReading) skew(date, began, now time.Time) time.Duration {
	if ahead := date.Sub(at.database) - now.Sub(at.before); ahead > 0 {
		return ahead
	}
	return min(0, date.Add(time.Second).Sub(at.database)-began.Sub(at.after))
}

// widen measures a response's skew and widens its interval. By either clock, Date less Elapsed is
// then no later than the start of the call, and the end of Date's second no earlier than its end. A
// refetch is therefore ordered correctly if one of the clocks is right; the servers of an API need
// not agree on the time. The database may have read its clock at any moment between before and
// after. Skew is therefore the smallest possible difference. The widening covers the largest
// possible one, up to maxSkew in each direction; a long wait between before and after makes it
// larger.
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
			"synchronizes its time (NTP); the order of refetches is uncertain if the difference exceeds the allowed "+
			"one", "source", c.options.Source, "skew", r.Skew, "allowed", maxSkew)
	}
}
