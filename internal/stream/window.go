package stream

import (
	"bytes"
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
)

// window publishes without waiting: at most maxInFlight messages are unanswered at once, and whatever is not answered in time has failed. It
// only counts, since what failed is the auditor's; a future and a timer for each message would cost more than the message. What is sent together
// is a run, of which the last message alone asks for an answer: a stream stores what one connection sends in its order.
type window struct {
	nc     *nats.Conn
	inbox  string
	sub    *nats.Subscription
	counts func(acknowledged, failed int)

	mu sync.Mutex
	// sent has a place for each run that may be unanswered, be they of one message each; free is a stack of those that nobody has, so that a run
	// which is never answered holds up no other. open is how many messages are unanswered.
	sent [maxInFlight]flight
	free []int
	open int
	// room holds a token when a place became free.
	room chan struct{}
}

// flight is a place. n is the number of the run that has it or, where it is free and at is zero, of the next one: the place plus a multiple
// of maxInFlight that grows with each use, so that an answer finds its place and a late one is not taken for a successor's. messages is how many
// the run has.
type flight struct {
	n        uint64
	at       time.Time
	messages int
}

// newWindow opens a window. counts is told of every message once; it may be called from several goroutines.
func newWindow(nc *nats.Conn, counts func(acknowledged, failed int)) (*window, error) {
	w := &window{nc: nc, inbox: nc.NewInbox() + ".", counts: counts, free: make([]int, maxInFlight), room: make(chan struct{}, 1)}
	for i := range w.sent {
		w.sent[i].n, w.free[i] = uint64(i), i
	}
	var err error
	if w.sub, err = nc.Subscribe(w.inbox+"*", w.answered); err != nil {
		return nil, err
	}
	// As many answers as there can be messages, and no bound by bytes: they are tiny.
	return w, w.sub.SetPendingLimits(-1, -1)
}

// close takes no more answers: what is unanswered has failed.
func (w *window) close() {
	_ = w.sub.Unsubscribe() // it may be gone with the connection
	w.expire(time.Now().Add(PublishTimeout))
}

// errNoRoom says that every place is taken.
var errNoRoom = errors.New("too many messages unanswered")

// publish sends a run, of longestRun messages at most, unless there is no room for it. One that does not go out has failed, and those after it go on
// without it; where it is the last, nothing is known of the others, and all have failed. One that went out and is missing alone (refused, or on its way
// when the connection was lost) is counted as its run is: the auditor knows better.
func (w *window) publish(run ...*nats.Msg) error {
	n, ok := w.take(len(run))
	if !ok {
		return errNoRoom
	}
	last, lost := len(run)-1, 0
	for _, m := range run[:last] {
		if err := w.nc.PublishMsg(m); err != nil {
			lost++
		}
	}
	w.asks(n, lost)
	reply := make([]byte, 0, 64)
	run[last].Reply = string(strconv.AppendUint(append(reply, w.inbox...), n, 10))
	if err := w.nc.PublishMsg(run[last]); err != nil {
		w.counts(0, w.settle(n))
		return err
	}
	return nil
}

// take gives a place for so many messages away, and the number of their run.
func (w *window) take(messages int) (n uint64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := len(w.free) - 1
	if w.open+messages > maxInFlight { // each place has one message at least, so that one is free
		return 0, false
	}
	place := &w.sent[w.free[last]]
	w.free = w.free[:last]
	w.open += messages
	place.at, place.messages = time.Now(), messages
	return place.n, true
}

// asks says that a run asks for its answer now, without so many messages that did not go out. The time for the answer begins here: writing the others may have taken long.
func (w *window) asks(n uint64, lost int) {
	w.mu.Lock()
	place := &w.sent[n%maxInFlight]
	place.at = time.Now()
	place.messages -= lost
	w.open -= lost
	w.mu.Unlock()
	if lost > 0 {
		w.counts(0, lost)
	}
}

// answered takes the answer to a run. One that came too late changes nothing: its place is free, or another's.
func (w *window) answered(m *nats.Msg) {
	n, err := strconv.ParseUint(m.Subject[len(w.inbox):], 10, 64)
	if err != nil {
		return
	}
	messages := w.settle(n)
	// A refusal has an error in its body; a server that has no such stream answers with a status and no body.
	if len(m.Data) == 0 || bytes.Contains(m.Data, []byte(`"error"`)) {
		w.counts(0, messages)
		return
	}
	w.counts(messages, 0)
}

// of is the place of a run, nil where it is not the run's any more.
func (w *window) of(n uint64) *flight {
	if place := &w.sent[n%maxInFlight]; place.n == n && !place.at.IsZero() {
		return place
	}
	return nil
}

// settle gives a run's place back, and says how many messages it has; none where it is not the run's any more.
func (w *window) settle(n uint64) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.of(n) == nil {
		return 0
	}
	return w.release(int(n % maxInFlight))
}

func (w *window) release(i int) (messages int) {
	place := &w.sent[i]
	messages = place.messages
	*place = flight{n: place.n + maxInFlight}
	w.open -= messages
	w.free = append(w.free, i)
	select {
	case w.room <- struct{}{}:
	default:
	}
	return messages
}

// expire gives up on what has not been answered in time.
func (w *window) expire(now time.Time) {
	w.mu.Lock()
	late := 0
	for i := range w.sent {
		if at := w.sent[i].at; !at.IsZero() && now.Sub(at) >= PublishTimeout {
			late += w.release(i)
		}
	}
	w.mu.Unlock()
	if late > 0 {
		w.counts(0, late)
	}
}

// unanswered is how many messages wait for an answer.
func (w *window) unanswered() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.open
}

// wait returns when nothing is unanswered or ctx ends.
func (w *window) wait(ctx context.Context, tick <-chan time.Time) {
	for w.unanswered() > 0 {
		select {
		case <-w.room:
		case now := <-tick:
			w.expire(now)
		case <-ctx.Done():
			return
		}
	}
}
