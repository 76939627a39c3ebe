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
// only counts, since what failed is the auditor's; a future and a timer for each message would cost more than the message.
type window struct {
	nc     *nats.Conn
	inbox  string
	sub    *nats.Subscription
	counts func(acknowledged, failed int)

	mu sync.Mutex
	// sent has a place for each message that may be unanswered; free is a stack of those that nobody has, so that a message which is never
	// answered holds up no other.
	sent [maxInFlight]flight
	free []int
	// room holds a token when a place became free.
	room chan struct{}
}

// flight is a place. n is the number of the message that has it or, where it is free and at is zero, of the next one: the place plus a multiple
// of maxInFlight that grows with each use, so that an answer finds its place and a late one is not taken for a successor's.
type flight struct {
	n  uint64
	at time.Time
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

// publish sends a message, unless every place is taken.
func (w *window) publish(m *nats.Msg) error {
	n, ok := w.take()
	if !ok {
		return errNoRoom
	}
	reply := make([]byte, 0, 64)
	m.Reply = string(strconv.AppendUint(append(reply, w.inbox...), n, 10))
	if err := w.nc.PublishMsg(m); err != nil {
		if w.settle(n) {
			w.counts(0, 1)
		}
		return err
	}
	return nil
}

// take gives a place away, and the number of the message that has it.
func (w *window) take() (n uint64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := len(w.free) - 1
	if last < 0 {
		return 0, false
	}
	place := &w.sent[w.free[last]]
	w.free = w.free[:last]
	place.at = time.Now()
	return place.n, true
}

// answered takes the answer to a message. One that came too late changes nothing: its place is free, or another's.
func (w *window) answered(m *nats.Msg) {
	n, err := strconv.ParseUint(m.Subject[len(w.inbox):], 10, 64)
	if err != nil || !w.settle(n) {
		return
	}
	// A refusal has an error in its body; a server that has no such stream answers with a status and no body.
	if len(m.Data) == 0 || bytes.Contains(m.Data, []byte(`"error"`)) {
		w.counts(0, 1)
		return
	}
	w.counts(1, 0)
}

// settle gives a message's place back; false where it is not the message's any more.
func (w *window) settle(n uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	i := int(n % maxInFlight)
	if place := &w.sent[i]; place.n != n || place.at.IsZero() {
		return false
	}
	w.release(i)
	return true
}

func (w *window) release(i int) {
	place := &w.sent[i]
	place.n += maxInFlight
	place.at = time.Time{}
	w.free = append(w.free, i)
	select {
	case w.room <- struct{}{}:
	default:
	}
}

// expire gives up on what has not been answered in time.
func (w *window) expire(now time.Time) {
	w.mu.Lock()
	late := 0
	for i := range w.sent {
		if at := w.sent[i].at; !at.IsZero() && now.Sub(at) >= PublishTimeout {
			w.release(i)
			late++
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
	return maxInFlight - len(w.free)
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
