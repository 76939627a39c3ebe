package stream_test

import (
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// windowCounts are the results that a window reported.
type windowCounts struct{ acknowledged, failed atomic.Int64 }

func (c *windowCounts) add(acknowledged, failed int) {
	c.acknowledged.Add(int64(acknowledged))
	c.failed.Add(int64(failed))
}

// waitFor polls until the counts are reached.
func (c *windowCounts) waitFor(t *testing.T, acknowledged, failed int64) {
	t.Helper()
	testkit.Eventually(t, waitTime, func() error {
		if a, f := c.acknowledged.Load(), c.failed.Load(); a != acknowledged || f != failed {
			return fmt.Errorf("%d acknowledged and %d failed, want %d and %d", a, f, acknowledged, failed)
		}
		return nil
	})
}

func window(t *testing.T, proxied bool) (*stream.Window, *windowCounts, *testkit.FaultProxy) {
	t.Helper()
	b, proxy := setup(t, 100_000, proxied)
	var c windowCounts
	w, err := b.conn.OpenWindow(c.add)
	testkit.Must(t, err)
	return w, &c, proxy
}

// A group counts its messages: those that could not be sent failed, the others have the result of
// the group's response.
func TestWindow_group_countsItsMessages(t *testing.T) {
	t.Parallel()
	w, c, _ := window(t, false)
	send := func(subjects ...string) { testkit.Must(t, errOf(w.Send(subjects...))) }
	const good = "postern.events.s.t"
	send(good, good, good)
	c.waitFor(t, 3, 0)
	send(good, "", good) // the client rejects an empty subject
	c.waitFor(t, 5, 1)
	send("nobody.listens", "nobody.listens")
	c.waitFor(t, 5, 3)
	if _, err := w.Send(good, ""); err == nil {
		t.Error("no error for a last message that could not be sent")
	}
	c.waitFor(t, 5, 5) // the result of the first is unknown
	if n := w.Unanswered(); n != 0 {
		t.Errorf("%d unanswered", n)
	}
}

// Without responses the window fills up, messages expire in time, and no late response counts for
// another message.
func TestWindow_noResponse_expires(t *testing.T) {
	t.Parallel()
	w, c, proxy := window(t, true)
	proxy.Stall()
	for range stream.InFlight {
		testkit.Must(t, w.Publish("postern.events.s.t"))
	}
	if err := w.Publish("postern.events.s.t"); !errors.Is(err, stream.ErrWindowFull) {
		t.Errorf("one message too many: %v", err)
	}
	w.Expire(time.Now())
	if n := w.Unanswered(); n != stream.InFlight {
		t.Errorf("%d without a response at once, want %d", n, stream.InFlight)
	}
	w.Expire(time.Now().Add(time.Minute))
	c.waitFor(t, 0, stream.InFlight)
	proxy.Restore()
	// Publish until a message gets a response; rejected ones count too.
	sent := int64(0)
	testkit.Eventually(t, waitTime, func() error {
		sent++
		if err := w.Publish("postern.events.s.t"); err != nil {
			return err
		}
		w.Expire(time.Now().Add(-time.Hour)) // no message is that old
		if c.acknowledged.Load() == 0 {
			return errors.New("nothing is acknowledged after the server works again")
		}
		return nil
	})
	w.Expire(time.Now().Add(time.Minute))
	testkit.Eventually(t, waitTime, func() error {
		// Late responses to old messages are not counted twice.
		if a, f := c.acknowledged.Load(), c.failed.Load(); a+f != stream.InFlight+sent {
			return fmt.Errorf("%d acknowledged and %d failed, want %d in all", a, f, stream.InFlight+sent)
		}
		return nil
	})
}

// With responses in any order, repeated, late or missing, each message is counted once, and all
// others are counted as without a response.
func TestWindow_anyResponses_countsEachMessageOnce(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 100_000, false)
	testkit.Must(t, b.conn.Swallow("silent")) // messages to this subject never get a response
	rapid.Check(t, func(r *rapid.T) {
		var c windowCounts
		w, err := b.conn.OpenWindow(c.add)
		testkit.Must(r, err)
		defer w.Close()
		m := windowModel{Window: w, open: map[string]int{}}
		r.Repeat(map[string]func(*rapid.T){
			"publish": m.publish,
			"respond": m.respond,
			"expire":  func(*rapid.T) { w.Expire(time.Now().Add(time.Minute)); m.expired() },
			"young":   func(*rapid.T) { w.Expire(time.Now()) },
			"": func(r *rapid.T) {
				if a, f := c.acknowledged.Load(), c.failed.Load(); a != m.acknowledged || f != m.failed ||
					w.Unanswered() != m.unanswered() {
					r.Fatalf("%d acknowledged, %d failed, %d unanswered; want %d, %d, %d", a, f, w.Unanswered(),
						m.acknowledged, m.failed, m.unanswered())
				}
			},
		})
		w.Close()
		if a, f := c.acknowledged.Load(), c.failed.Load(); a+f != m.messages {
			r.Fatalf("%d acknowledged and %d failed of %d", a, f, m.messages)
		}
	})
}

// windowModel is what a window should have counted.
type windowModel struct {
	*stream.Window
	replies              []string       // of every group that was sent
	open                 map[string]int // the messages of the groups without a response
	acknowledged, failed int64
	messages             int64
}

func (m *windowModel) unanswered() (n int) {
	for _, messages := range m.open {
		n += messages
	}
	return n
}

func (m *windowModel) publish(r *rapid.T) {
	group := slices.Repeat([]string{"silent"}, rapid.SampledFrom([]int{1, 2, stream.MaxGroupMessages}).Draw(r, "run"))
	lost := rapid.IntRange(0, len(group)-1).Draw(r, "lost")
	for i := range lost {
		group[i] = "" // cannot be sent
	}
	for range rapid.SampledFrom([]int{1, 3, stream.InFlight}).Draw(r, "runs") {
		reply, err := m.Send(group...)
		full := m.unanswered()+len(group) > stream.InFlight
		if errors.Is(err, stream.ErrWindowFull) != full {
			r.Fatalf("%v for %d with %d unanswered", err, len(group), m.unanswered())
		}
		switch {
		case full:
			return
		case err != nil: // not sent, and counted as such
			m.failed += int64(len(group))
		default:
			m.failed += int64(lost)
			m.open[reply] = len(group) - lost
		}
		m.messages += int64(len(group))
		m.replies = append(m.replies, reply)
	}
}

func (m *windowModel) respond(r *rapid.T) {
	for range rapid.IntRange(1, 20).Draw(r, "responses") {
		if len(m.replies) == 0 {
			return
		}
		reply, body := rapid.SampledFrom(m.replies).Draw(r, "reply"),
			rapid.SampledFrom([]string{"{}", `{"error":{}}`, ""}).Draw(r, "body")
		m.Respond(reply, body)
		switch {
		case body == "{}":
			m.acknowledged += int64(m.open[reply])
		default:
			m.failed += int64(m.open[reply])
		}
		delete(m.open, reply)
	}
}

func (m *windowModel) expired() {
	m.failed += int64(m.unanswered())
	clear(m.open)
}
