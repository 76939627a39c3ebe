package suite

import (
	"context"
	"time"

	"github.com/postern-gateway/postern/bench/load"
)

// watchEvery is the interval between two readings of the backlog.
const watchEvery = time.Second

// watch reads the backlog of the event stream once per interval.
type watch struct {
	stop context.CancelFunc
	done chan struct{}
	lags []load.Lag
	err  error
}

// watch starts reading. end stops it.
func (s *Suite) watch(ctx context.Context) *watch {
	w := &watch{done: make(chan struct{})}
	ctx, w.stop = context.WithCancel(ctx)
	go func() {
		defer close(w.done)
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for w.read(ctx, s) {
			if n := len(w.lags); n%10 == 0 {
				s.log.Info("backlog", "seconds", n, "pending", w.lags[n-1].Pending, "stored", w.lags[n-1].Last)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				w.read(context.WithoutCancel(ctx), s)
				return
			}
		}
	}()
	return w
}

// read records one reading. It returns false if the watch must end.
func (w *watch) read(ctx context.Context, s *Suite) bool {
	lag, err := s.m.Lag(ctx, eventsStream, processorConsumer)
	if err != nil {
		if ctx.Err() == nil {
			w.err = err
		}
		return ctx.Err() != nil // stopped during the request: the caller reads once more
	}
	w.lags = append(w.lags, lag)
	return true
}

// end takes a last reading and adds the figures to a sample.
func (w *watch) end(sample *Sample) error {
	w.stop()
	<-w.done
	w.addTo(sample)
	return w.err
}

// addTo adds figures to a sample: the largest backlog (also of the first half) and the last one in
// events, its growth in the second half, and the rate of applying, both in events per second.
func (w *watch) addTo(sample *Sample) {
	if len(w.lags) < 2 {
		return
	}
	half := len(w.lags) / 2
	first, last := w.lags[0], w.lags[len(w.lags)-1]
	sample.more("backlog_max_first_half", largest(w.lags[:half]))
	sample.more("backlog_max", largest(w.lags))
	sample.more("backlog_end", float64(last.Pending))
	sample.more("backlog_growth_per_s", slope(w.lags[half:]))
	sample.more("applied_per_s", float64(last.Done()-first.Done())/last.At.Sub(first.At).Seconds())
}

func largest(lags []load.Lag) float64 {
	n := int64(0)
	for _, l := range lags {
		n = max(n, l.Pending)
	}
	return float64(n)
}

// slope returns the slope of the best-fitting line, in events per second.
func slope(lags []load.Lag) float64 {
	var t, y, tt, ty float64
	n := float64(len(lags))
	for _, l := range lags {
		at, left := l.At.Sub(lags[0].At).Seconds(), float64(l.Pending)
		t, y, tt, ty = t+at, y+left, tt+at*at, ty+at*left
	}
	if d := n*tt - t*t; d > 0 {
		return (n*ty - t*y) / d
	}
	return 0
}
