package suite

import (
	"context"
	"time"

	"github.com/postern-gateway/postern/bench/machine"
)

// watchEvery spaces the looks at a backlog.
const watchEvery = time.Second

// watch looks at the backlog of the stream of events now and then.
type watch struct {
	stop context.CancelFunc
	done chan struct{}
	lags []machine.Lag
	err  error
}

// watch begins to look; end ends it.
func (s *Suite) watch(ctx context.Context, row string) *watch {
	w := &watch{done: make(chan struct{})}
	ctx, w.stop = context.WithCancel(ctx)
	go func() {
		defer close(w.done)
		tick := time.NewTicker(watchEvery)
		defer tick.Stop()
		for w.look(ctx, s) {
			if n := len(w.lags); n%10 == 0 {
				s.log.Info(row, "seconds", n, "backlog", w.lags[n-1].Left, "stored", w.lags[n-1].Last)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
				w.look(context.WithoutCancel(ctx), s)
				return
			}
		}
	}()
	return w
}

// look keeps one reading; false: there will be no more.
func (w *watch) look(ctx context.Context, s *Suite) bool {
	lag, err := s.m.Lag(ctx, eventsStream, processorConsumer)
	if err != nil {
		if ctx.Err() == nil {
			w.err = err
		}
		return ctx.Err() != nil // stopped in the middle: the last look comes
	}
	w.lags = append(w.lags, lag)
	return true
}

// end takes a last look.
func (w *watch) end() error {
	w.stop()
	<-w.done
	return w.err
}

// tell puts the backlog into a sample: the most, that of each half, at the end, and how fast it
// grew in the second half, in events per second; and how fast events were applied.
func (w *watch) tell(sample *Sample) {
	if len(w.lags) < 2 {
		return
	}
	half := len(w.lags) / 2
	first, last := w.lags[0], w.lags[len(w.lags)-1]
	sample.more("backlog_max_first_half", most64(w.lags[:half]))
	sample.more("backlog_max", most64(w.lags))
	sample.more("backlog_end", float64(last.Left))
	sample.more("backlog_growth_per_s", slope(w.lags[half:]))
	sample.more("applied_per_s", float64(last.Done()-first.Done())/last.At.Sub(first.At).Seconds())
}

func most64(lags []machine.Lag) float64 {
	n := int64(0)
	for _, l := range lags {
		n = max(n, l.Left)
	}
	return float64(n)
}

// slope is that of the line which fits best.
func slope(lags []machine.Lag) float64 {
	var t, y, tt, ty float64
	n := float64(len(lags))
	for _, l := range lags {
		at, left := l.At.Sub(lags[0].At).Seconds(), float64(l.Left)
		t, y, tt, ty = t+at, y+left, tt+at*at, ty+at*left
	}
	if d := n*tt - t*t; d > 0 {
		return (n*ty - t*y) / d
	}
	return 0
}
