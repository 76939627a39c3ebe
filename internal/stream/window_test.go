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

// counted is what a window told.
type counted struct{ acknowledged, failed atomic.Int64 }

func (c *counted) add(acknowledged, failed int) {
	c.acknowledged.Add(int64(acknowledged))
	c.failed.Add(int64(failed))
}

// until polls until as many were counted.
func (c *counted) until(t *testing.T, acknowledged, failed int64) {
	t.Helper()
	testkit.Eventually(t, patience, func() error {
		if a, f := c.acknowledged.Load(), c.failed.Load(); a != acknowledged || f != failed {
			return fmt.Errorf("%d acknowledged and %d failed, want %d and %d", a, f, acknowledged, failed)
		}
		return nil
	})
}

func window(t *testing.T, proxied bool) (*stream.Window, *counted, *testkit.FaultProxy) {
	t.Helper()
	b, proxy := setup(t, 100_000, proxied)
	var c counted
	w, err := b.conn.OpenWindow(c.add)
	if err != nil {
		t.Fatal(err)
	}
	return w, &c, proxy
}

// A run is counted by its messages: those that did not go out failed, the others are as its one answer says.
func TestWindowCountsRuns(t *testing.T) {
	t.Parallel()
	w, c, _ := window(t, false)
	send := func(subjects ...string) {
		if _, err := w.Send(subjects...); err != nil {
			t.Fatal(err)
		}
	}
	const good = "postern.events.s.t"
	send(good, good, good)
	c.until(t, 3, 0)
	send(good, "", good) // the client sends nothing to no subject
	c.until(t, 5, 1)
	send("nobody.listens", "nobody.listens")
	c.until(t, 5, 3)
	if _, err := w.Send(good, ""); err == nil {
		t.Error("no error for a last message that did not go out")
	}
	c.until(t, 5, 5) // nobody says what became of the first
	if n := w.Unanswered(); n != 0 {
		t.Errorf("%d unanswered", n)
	}
}

// Where no answer comes the window fills, gives up in time, and takes no late answer for another message's.
func TestWindowGivesUp(t *testing.T) {
	t.Parallel()
	w, c, proxy := window(t, true)
	proxy.Stall()
	for range stream.InFlight {
		if err := w.Publish("postern.events.s.t"); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.Publish("postern.events.s.t"); !errors.Is(err, stream.ErrNoRoom) {
		t.Errorf("one too many: %v", err)
	}
	w.Expire(time.Now())
	if n := w.Unanswered(); n != stream.InFlight {
		t.Errorf("%d unanswered at once, want %d", n, stream.InFlight)
	}
	w.Expire(time.Now().Add(time.Minute))
	c.until(t, 0, stream.InFlight)
	proxy.Restore()
	// Published until one is answered; what is refused at once is counted too.
	sent := int64(0)
	testkit.Eventually(t, patience, func() error {
		sent++
		if err := w.Publish("postern.events.s.t"); err != nil {
			return err
		}
		w.Expire(time.Now().Add(-time.Hour)) // nothing is that old
		if c.acknowledged.Load() == 0 {
			return errors.New("nothing is acknowledged after the server is back")
		}
		return nil
	})
	w.Expire(time.Now().Add(time.Minute))
	testkit.Eventually(t, patience, func() error {
		// Whatever the old ones are answered now, nobody counts them twice.
		if a, f := c.acknowledged.Load(), c.failed.Load(); a+f != stream.InFlight+sent {
			return fmt.Errorf("%d acknowledged and %d failed, want %d in all", a, f, stream.InFlight+sent)
		}
		return nil
	})
}

// silent is a window of a connection on which what is published under "silent" is never answered.
func silent(t *testing.T) (*testBundle, *stream.Window, *counted) {
	t.Helper()
	b, _ := setup(t, 100_000, false)
	if err := b.conn.Swallow("silent"); err != nil {
		t.Fatal(err)
	}
	var c counted
	w, err := b.conn.OpenWindow(c.add)
	if err != nil {
		t.Fatal(err)
	}
	return b, w, &c
}

// Whatever is answered, in whatever order, twice, too late or never: each message is counted once, and what is neither counted nor unanswered
// does not exist.
func TestWindowAddsUp(t *testing.T) {
	t.Parallel()
	b, _, _ := silent(t)
	rapid.Check(t, func(r *rapid.T) {
		var c counted
		w, err := b.conn.OpenWindow(c.add)
		if err != nil {
			r.Fatal(err)
		}
		defer w.Close()
		m := windowModel{Window: w, open: map[string]int{}}
		r.Repeat(map[string]func(*rapid.T){
			"publish": m.publish,
			"answer":  m.answer,
			"expire":  func(*rapid.T) { w.Expire(time.Now().Add(time.Minute)); m.expired() },
			"young":   func(*rapid.T) { w.Expire(time.Now()) },
			"": func(r *rapid.T) {
				if a, f := c.acknowledged.Load(), c.failed.Load(); a != m.acknowledged || f != m.failed || w.Unanswered() != m.unanswered() {
					r.Fatalf("%d acknowledged, %d failed, %d unanswered; want %d, %d, %d", a, f, w.Unanswered(), m.acknowledged, m.failed, m.unanswered())
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
	replies              []string       // of every run that went out
	open                 map[string]int // the messages of those that are unanswered
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
	run := slices.Repeat([]string{"silent"}, rapid.SampledFrom([]int{1, 2, stream.LongestRun}).Draw(r, "run"))
	lost := rapid.IntRange(0, len(run)-1).Draw(r, "lost")
	for i := range lost {
		run[i] = "" // does not go out
	}
	for range rapid.SampledFrom([]int{1, 3, stream.InFlight}).Draw(r, "runs") {
		reply, err := m.Send(run...)
		full := m.unanswered()+len(run) > stream.InFlight
		if errors.Is(err, stream.ErrNoRoom) != full {
			r.Fatalf("%v for %d with %d unanswered", err, len(run), m.unanswered())
		}
		switch {
		case full:
			return
		case err != nil: // not sent, and so counted
			m.failed += int64(len(run))
		default:
			m.failed += int64(lost)
			m.open[reply] = len(run) - lost
		}
		m.messages += int64(len(run))
		m.replies = append(m.replies, reply)
	}
}

func (m *windowModel) answer(r *rapid.T) {
	for range rapid.IntRange(1, 20).Draw(r, "answers") {
		if len(m.replies) == 0 {
			return
		}
		reply, body := rapid.SampledFrom(m.replies).Draw(r, "reply"), rapid.SampledFrom([]string{"{}", `{"error":{}}`, ""}).Draw(r, "body")
		m.Answer(reply, body)
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
