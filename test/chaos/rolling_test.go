package main

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
)

// Both gateways and both processors are restarted one after the other under load, behind one address that follows readiness, and not one delivery fails.
func TestRollingRestart(t *testing.T) {
	t.Parallel()
	r := setup(t, strings.Replace(sources, "drain_delay: 1s", "drain_delay: 8s", 1))
	if err := r.watch(t.Context()); err != nil {
		t.Fatal(err)
	}
	b := balance(t, r.site.Gateways)
	r.senders.urls = []string{"http://" + b.listener.Addr().String()}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	sending, stop := context.WithCancel(ctx)
	var group sync.WaitGroup
	group.Go(func() { r.fail(r.traffic.run(sending)) })
	group.Go(func() { r.senders.run(ctx, 8, r.traffic.out) })
	for _, d := range r.site.Daemons() { // the next goes once the address sends to the one before, as it must for anybody who restarts two by turns
		before := r.senders.acknowledged.Load()
		testkit.Eventually(t, time.Minute, func() error {
			if n := r.senders.acknowledged.Load() - before; n < 20 {
				return fmt.Errorf("%d more are acknowledged, want 20", n)
			}
			return nil
		})
		if err := d.Restart(); err != nil {
			t.Error(err)
		}
		if err := d.Ready(ctx); err != nil {
			t.Fatal(err)
		}
		b.sees(t, d)
	}
	stop()
	group.Wait()
	if err := r.senders.journal.close(); err != nil {
		t.Fatal(err)
	}
	if err := r.errors(); err != nil {
		t.Error(err)
	}
	if n := r.senders.retries.Load(); n > 0 {
		t.Errorf("%d of %d tries failed: %s", n, r.senders.deliveries.Load(), *r.senders.failure.Load())
	}
	r.holds(t)
}
