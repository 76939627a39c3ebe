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

// window publishes without waiting. At most maxInFlight messages are without a response; a message
// without a response in time has failed. The window only counts results, because the republisher
// publishes failed events again. A future and a timer per message would cost more than the message.
//
// Messages that are sent together form a group. Only the last message of a group requests a
// response: a stream stores the messages of one connection in their order.
type window struct {
	nc     *nats.Conn
	inbox  string
	sub    *nats.Subscription
	report func(acknowledged, failed int)

	mu sync.Mutex
	// slots has one slot for each group without a response. There are maxInFlight, because each
	// group may have only one message. free is a stack of unused slots, so a group that never gets
	// a response does not block others. openMessages is the number of messages without a response.
	slots        [maxInFlight]publishSlot
	free         []int
	openMessages int
	// slotFreed holds a token when a slot became free.
	slotFreed chan struct{}
}

// publishSlot is a slot for a group. number is the number of its group, or of the next group if the
// slot is free (sentAt is zero). It is the slot's index plus a multiple of maxInFlight that grows
// with each use. A response therefore finds its slot, and a late response does not match a later
// group. messages is the size of the group.
type publishSlot struct {
	number   uint64
	sentAt   time.Time
	messages int
}

// newWindow opens a window. It calls report once for every message, possibly from several
// goroutines.
func newWindow(nc *nats.Conn, report func(acknowledged, failed int)) (*window, error) {
	w := &window{nc: nc, inbox: nc.NewInbox() + ".", report: report, free: make([]int, maxInFlight),
		slotFreed: make(chan struct{}, 1)}
	for i := range w.slots {
		w.slots[i].number, w.free[i] = uint64(i), i
	}
	var err error
	if w.sub, err = nc.Subscribe(w.inbox+"*", w.onResponse); err != nil {
		return nil, err
	}
	// Responses are as many as messages and tiny, so their number and size need no bound.
	return w, w.sub.SetPendingLimits(-1, -1)
}

// close stops reading responses. It counts the messages without a response as failed.
func (w *window) close() {
	_ = w.sub.Unsubscribe() // fails if the connection is closed
	w.expire(time.Now().Add(PublishTimeout))
}

// errWindowFull means that too many messages wait for a response.
var errWindowFull = errors.New("too many messages without a response")

// publish sends a group of at most maxGroupMessages messages, if the window has capacity for it. A
// message that cannot be sent has failed; the others are still sent. If the last one cannot be
// sent, all have failed, because no response tells the result of the others. A single sent message
// may be missing in the stream: rejected, or lost with the connection. It is counted like its
// group, and the republisher finds it.
func (w *window) publish(group ...*nats.Msg) error {
	n, ok := w.reserveSlot(len(group))
	if !ok {
		return errWindowFull
	}
	last, lost := len(group)-1, 0
	for _, m := range group[:last] {
		if err := w.nc.PublishMsg(m); err != nil {
			lost++
		}
	}
	w.startTimeout(n, lost)
	reply := make([]byte, 0, 64)
	group[last].Reply = string(strconv.AppendUint(append(reply, w.inbox...), n, 10))
	if err := w.nc.PublishMsg(group[last]); err != nil {
		w.report(0, w.releaseGroup(n))
		return err
	}
	return nil
}

// reserveSlot reserves a slot for a group of the given size, and returns the group's number.
func (w *window) reserveSlot(messages int) (n uint64, ok bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	last := len(w.free) - 1
	if w.openMessages+messages > maxInFlight { // each group has at least one message, so a slot is free
		return 0, false
	}
	slot := &w.slots[w.free[last]]
	w.free = w.free[:last]
	w.openMessages += messages
	slot.sentAt, slot.messages = time.Now(), messages
	return slot.number, true
}

// startTimeout starts the timeout of a group, and subtracts the messages that could not be sent. It
// starts after the writes of the other messages, which may have taken long.
func (w *window) startTimeout(n uint64, lost int) {
	w.mu.Lock()
	slot := &w.slots[n%maxInFlight]
	slot.sentAt = time.Now()
	slot.messages -= lost
	w.openMessages -= lost
	w.mu.Unlock()
	if lost > 0 {
		w.report(0, lost)
	}
}

// onResponse handles the response to a group. A late response changes nothing: its slot is free or
// has another group.
func (w *window) onResponse(m *nats.Msg) {
	n, err := strconv.ParseUint(m.Subject[len(w.inbox):], 10, 64)
	if err != nil {
		return
	}
	messages := w.releaseGroup(n)
	// A rejection has an error in its body. If there is no such stream, the server responds with a
	// status and no body.
	if len(m.Data) == 0 || bytes.Contains(m.Data, []byte(`"error"`)) {
		w.report(0, messages)
		return
	}
	w.report(messages, 0)
}

// slotOf returns the slot of a group, nil if the group no longer has it.
func (w *window) slotOf(n uint64) *publishSlot {
	if slot := &w.slots[n%maxInFlight]; slot.number == n && !slot.sentAt.IsZero() {
		return slot
	}
	return nil
}

// releaseGroup frees the slot of a group, and returns the number of its messages; 0 if the group no
// longer has it.
func (w *window) releaseGroup(n uint64) int {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.slotOf(n) == nil {
		return 0
	}
	return w.freeSlot(int(n % maxInFlight))
}

func (w *window) freeSlot(i int) (messages int) {
	slot := &w.slots[i]
	messages = slot.messages
	*slot = publishSlot{number: slot.number + maxInFlight}
	w.openMessages -= messages
	w.free = append(w.free, i)
	select {
	case w.slotFreed <- struct{}{}:
	default:
	}
	return messages
}

// expire counts the messages without a response in time as failed.
func (w *window) expire(now time.Time) {
	w.mu.Lock()
	late := 0
	for i := range w.slots {
		if at := w.slots[i].sentAt; !at.IsZero() && now.Sub(at) >= PublishTimeout {
			late += w.freeSlot(i)
		}
	}
	w.mu.Unlock()
	if late > 0 {
		w.report(0, late)
	}
}

// unanswered returns how many messages wait for a response.
func (w *window) unanswered() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.openMessages
}

// awaitAll returns when no message waits for a response, or when ctx ends.
func (w *window) awaitAll(ctx context.Context, tick <-chan time.Time) {
	for w.unanswered() > 0 {
		select {
		case <-w.slotFreed:
		case now := <-tick:
			w.expire(now)
		case <-ctx.Done():
			return
		}
	}
}
