package stream_test

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

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

// Each message is counted once, whatever its answer, and more go out than fit at once.
func TestWindowCountsEachMessageOnce(t *testing.T) {
	t.Parallel()
	w, c, _ := window(t, false)
	const taken, refused = 3 * stream.InFlight, 7
	for n := range taken + refused {
		subject := "postern.events.s.t"
		if n < refused {
			subject = "nobody.listens"
		}
		testkit.Eventually(t, patience, func() error { return w.Publish(subject) })
	}
	c.until(t, taken, refused)
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
