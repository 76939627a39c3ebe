package site_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/site"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// testBundle is a cluster with a client of each server that knows no other one.
type testBundle struct {
	trio    *site.Trio
	clients [3]jetstream.JetStream
}

func setup(t *testing.T) *testBundle {
	t.Helper()
	bin := t.TempDir()
	if err := site.Build(t.Context(), bin, []string{"internal/testkit/site/natsd"}); err != nil {
		t.Fatal(err)
	}
	b := &testBundle{}
	var err error
	b.trio, err = site.StartTrio(bin, t.TempDir())
	t.Cleanup(b.trio.Close)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b.clients {
		nc, err := nats.Connect("nats://"+b.trio.Links[i].Addr, nats.MaxReconnects(-1), nats.ReconnectWait(100*time.Millisecond), nats.RetryOnFailedConnect(true))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		if b.clients[i], err = jetstream.New(nc); err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Subscribe(at(i), func(m *nats.Msg) { _ = m.Respond(nil) }); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, time.Minute, func() error {
		_, err := b.clients[0].CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "stream", Subjects: []string{"subject"}, Replicas: 3})
		return err
	})
	return b
}

// at is where a server's client answers.
func at(server int) string { return fmt.Sprintf("at.%d", server) }

// reach asks a server's client by way of another server, within a second.
func (b *testBundle) reach(ctx context.Context, from, to int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := b.clients[from].Conn().RequestWithContext(ctx, at(to), nil)
	return err
}

// publish publishes once, within a second.
func (b *testBundle) publish(ctx context.Context, by int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := b.clients[by].Publish(ctx, "subject", nil, jetstream.WithRetryAttempts(0))
	return err
}

// While one server of three is cut off from the others, they take what is published, and it does not, though a client reaches it. When it is back it has all.
func TestPartition(t *testing.T) {
	t.Parallel()
	b := setup(t)
	taken := uint64(0)
	for alone, silent := range []bool{true, false} {
		b.trio.Partition(alone, silent)
		for i := range b.clients {
			if i != alone {
				testkit.Eventually(t, time.Minute, func() error { return b.publish(t.Context(), i) })
				taken++
			}
		}
		if err := b.publish(t.Context(), alone); err == nil {
			t.Errorf("server %d takes what is published while it is cut off (silent %t)", alone+1, silent)
		}
		b.trio.Rejoin()
		testkit.Eventually(t, time.Minute, func() error { return b.publish(t.Context(), alone) })
		taken++
	}
	testkit.Eventually(t, time.Minute, func() error { return current(t.Context(), b.clients[0], taken) })
}

// A server hears from another where a third is found, and has no way there but the link.
func TestServersHaveNoOtherWay(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.trio.Partition(0, false)
	if err := b.reach(t.Context(), 2, 0); err == nil {
		t.Fatal("a server that is cut off is reached")
	}
	b.trio.Routes[0][1].Restore()
	b.trio.Routes[1][0].Restore()
	testkit.Eventually(t, time.Minute, func() error { return b.reach(t.Context(), 1, 0) })
	testkit.Eventually(t, time.Minute, func() error { return b.reach(t.Context(), 1, 2) })
	for range 3 { // time for a connection that must not be
		if err := b.reach(t.Context(), 2, 0); err == nil {
			t.Fatal("a server is reached, and the links to it are cut")
		}
	}
	b.trio.Rejoin()
	testkit.Eventually(t, time.Minute, func() error { return b.reach(t.Context(), 2, 0) })
}

// current says why a server lacks something of the stream.
func current(ctx context.Context, js jetstream.JetStream, taken uint64) error {
	stream, err := js.Stream(ctx, "stream")
	if err != nil {
		return err
	}
	info := stream.CachedInfo()
	if info.State.Msgs < taken {
		return fmt.Errorf("%d messages, want %d", info.State.Msgs, taken)
	}
	for _, r := range info.Cluster.Replicas {
		if !r.Current || r.Offline {
			return fmt.Errorf("%s is not current", r.Name)
		}
	}
	return nil
}
