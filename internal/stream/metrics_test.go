package stream_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
)

// gauge is a publisher's metric as it is now.
func (b *testBundle) gauge(t *testing.T, name string) float64 {
	t.Helper()
	families, err := b.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

// The lag is told in messages, seconds and as a share; while the stream does not answer nobody knows it, and nobody says a number.
func TestLagIsTold(t *testing.T) {
	t.Parallel()
	b, proxy := setup(t, 100, true)
	b.run(t)
	for n := range 10 {
		b.Offer(event(n))
	}
	const messages, seconds, share = "postern_stream_lag_messages", "postern_stream_lag_seconds", "postern_stream_lag_ratio"
	until := func(what string, ok func() bool) {
		t.Helper()
		testkit.Eventually(t, patience, func() error {
			if !ok() {
				return fmt.Errorf("%s: %v messages, %v s, share %v", what, b.gauge(t, messages), b.gauge(t, seconds), b.gauge(t, share))
			}
			return nil
		})
	}
	until("ten wait", func() bool {
		return b.gauge(t, messages) == 10 && b.gauge(t, seconds) > 0 && b.gauge(t, share) >= 0.1 && b.gauge(t, share) < 0.2
	})
	before := b.gauge(t, seconds)
	until("they grow older", func() bool { return b.gauge(t, seconds) > before })
	proxy.Stall()
	until("nobody knows", func() bool {
		return math.IsNaN(b.gauge(t, messages)) && math.IsNaN(b.gauge(t, seconds)) && math.IsNaN(b.gauge(t, share))
	})
	proxy.Restore()
	until("known again", func() bool { return b.gauge(t, messages) == 10 })
}

// What waits to be published is told in events and bytes.
func TestPublishQueueIsTold(t *testing.T) {
	t.Parallel()
	b, _ := setup(t, 100, false) // it does not run
	for n := range 7 {
		b.Offer(event(n))
	}
	if events, bytes := b.gauge(t, "postern_publish_queue_events"), b.gauge(t, "postern_publish_queue_bytes"); events != 7 || bytes != 14 {
		t.Errorf("%v events of %v bytes wait, want 7 of 14", events, bytes)
	}
}
