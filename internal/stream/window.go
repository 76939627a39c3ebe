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

	mu   sync.Mutex
	next uint64
	// sent is a ring: the message n is at n modulo its length.
	sent [maxInFlight]flight
	open int
	// room holds a token when a place became free.
	room chan struct{}
}

// flight is a place in the ring; at is zero where it is free.
type flight struct {
	n  uint64
	at time.Time
}

// newWindow opens a window. counts is told of every message once; it may be called from several goroutines.
func newWindow(nc *nats.Conn, counts func(acknowledged, failed int)) (*window, error) {
	w := &window{nc: nc, inbox: nc.NewInbox() + ".", counts: counts, room: make(chan struct{}, 1)}
	var err error
	if w.sub, err = nc.Subscribe(w.inbox+"*", w.answered); err != nil {
		return nil, err
	}
	// As many answers as there can be messages, and no bound by bytes: they are tiny.
	return w, w.sub.SetPendingLimits(-1, -1)
}

func (w *window) close() { _ = w.sub.Unsubscribe() } // it may be gone with the connection

// errNoRoom says that the next place is still taken.
var errNoRoom = errors.New("too many messages unanswered")

// publish sends a message, unless the place it would take is still taken.
func (w *window) publish(m *nats.Msg) error {
	w.mu.Lock()
	n := w.next
	place := &w.sent[n%maxInFlight]
	if !place.at.IsZero() {
		w.mu.Unlock()
		return errNoRoom
	}
	*place = flight{n: n, at: time.Now()}
	w.next++
	w.open++
	w.mu.Unlock()
	reply := make([]byte, 0, 64)
	m.Reply = string(strconv.AppendUint(append(reply, w.inbox...), n, 10))
	if err := w.nc.PublishMsg(m); err != nil {
		if w.free(n) {
			w.counts(0, 1)
		}
		return err
	}
	return nil
}

// answered takes the answer to a message. One that came too late changes nothing: its place is free, or another's.
func (w *window) answered(m *nats.Msg) {
	n, err := strconv.ParseUint(m.Subject[len(w.inbox):], 10, 64)
	if err != nil || !w.free(n) {
		return
	}
	// A refusal has an error in its body; a server that has no such stream answers with a status and no body.
	if len(m.Data) == 0 || bytes.Contains(m.Data, []byte(`"error"`)) {
		w.counts(0, 1)
		return
	}
	w.counts(1, 0)
}

// free gives a message's place back; false where it is not the message's any more.
func (w *window) free(n uint64) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	place := &w.sent[n%maxInFlight]
	if place.n != n || place.at.IsZero() {
		return false
	}
	w.release(place)
	return true
}

func (w *window) release(place *flight) {
	place.at = time.Time{}
	w.open--
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
		if place := &w.sent[i]; !place.at.IsZero() && now.Sub(place.at) >= publishTimeout {
			w.release(place)
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
	return w.open
}

// wait returns when nothing is unanswered or ctx ends.
func (w *window) wait(ctx context.Context) {
	for w.unanswered() > 0 {
		select {
		case <-w.room:
		case <-ctx.Done():
			return
		}
	}
}
