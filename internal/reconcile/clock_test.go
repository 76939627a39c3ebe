package reconcile_test

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/postern-gateway/postern/internal/reconcile"
)

func TestClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		var c reconcile.Clock
		if now := time.Now(); !c.Now().Equal(now) || c.Longest() != 0 {
			t.Errorf("before any answer: %s, %s", c.Now(), c.Longest())
		}
		tell := func(elapsed, ahead time.Duration) {
			c.Told(time.Now(), elapsed, time.Now().Add(ahead), 0)
		}
		tell(3*time.Second, -time.Minute)
		if got := time.Until(c.Now()); got != -time.Minute {
			t.Errorf("ahead by %s", got)
		}
		c.Told(time.Now(), time.Second, time.Time{}, 0)
		if got := time.Until(c.Now()); got != -time.Minute || c.Longest() != 3*time.Second {
			t.Errorf("after an answer without Date: ahead by %s, longest %s", got, c.Longest())
		}
		// The longest is remembered for five minutes at least, and for ten at most.
		<-time.After(5 * time.Minute)
		tell(time.Second, 0)
		if c.Longest() != 3*time.Second {
			t.Errorf("longest %s", c.Longest())
		}
		<-time.After(5 * time.Minute)
		if c.Longest() != time.Second {
			t.Errorf("longest %s", c.Longest())
		}
		<-time.After(time.Hour)
		if c.Longest() != 0 {
			t.Errorf("longest %s", c.Longest())
		}
	})
}
