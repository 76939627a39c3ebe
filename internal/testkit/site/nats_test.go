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

// fixture is a cluster with one client for each server.
type fixture struct {
	cluster *site.NATSCluster
	clients [3]jetstream.JetStream
}

func setup(t *testing.T) *fixture {
	t.Helper()
	bin, err := testkit.Programs("internal/testkit/site/natsd")
	if err != nil {
		t.Fatal(err)
	}
	b := &fixture{}
	b.cluster, err = site.StartNATS(bin, t.TempDir())
	t.Cleanup(b.cluster.Close)
	if err != nil {
		t.Fatal(err)
	}
	for i := range b.clients {
		nc, err := nats.Connect("nats://"+b.cluster.ClientLinks[i].Addr, nats.MaxReconnects(-1),
			nats.ReconnectWait(100*time.Millisecond), nats.RetryOnFailedConnect(true))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(nc.Close)
		if b.clients[i], err = jetstream.New(nc); err != nil {
			t.Fatal(err)
		}
		if _, err := nc.Subscribe(subjectOf(i), func(m *nats.Msg) { _ = m.Respond(nil) }); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, time.Minute, func() error {
		_, err := b.clients[0].CreateOrUpdateStream(t.Context(), jetstream.StreamConfig{Name: "stream",
			Subjects: []string{"subject"}, Replicas: 3})
		return err
	})
	return b
}

// subjectOf returns the subject at which the client of a server responds.
func subjectOf(server int) string { return fmt.Sprintf("at.%d", server) }

// requestThrough sends a request through one server to the client of another, with a timeout of a
// second.
func (b *fixture) requestThrough(ctx context.Context, from, to int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := b.clients[from].Conn().RequestWithContext(ctx, subjectOf(to), nil)
	return err
}

// publish publishes one message, with a timeout of a second.
func (b *fixture) publish(ctx context.Context, by int) error {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	_, err := b.clients[by].Publish(ctx, "subject", nil, jetstream.WithRetryAttempts(0))
	return err
}

// While one of three servers is cut off, the other two accept messages. The isolated server accepts
// none, though a client reaches it. After the partition it has all messages.
func TestNATSCluster_partition_majorityAcceptsAndMinorityDoesNot(t *testing.T) {
	t.Parallel()
	b := setup(t)
	accepted := uint64(0)
	for isolated, silent := range []bool{true, false} {
		b.cluster.Partition(isolated, silent)
		for i := range b.clients {
			if i != isolated {
				testkit.Eventually(t, time.Minute, func() error { return b.publish(t.Context(), i) })
				accepted++
			}
		}
		if err := b.publish(t.Context(), isolated); err == nil {
			t.Errorf("server %d accepts a message while it is cut off (silent %t)", isolated+1, silent)
		}
		b.cluster.Rejoin()
		testkit.Eventually(t, time.Minute, func() error { return b.publish(t.Context(), isolated) })
		accepted++
	}
	testkit.Eventually(t, time.Minute, func() error { return checkReplicas(t.Context(), b.clients[0], accepted) })
}

// A server learns the addresses of the others, but reaches them through the routes only.
func TestNATSCluster_cutRoutes_serversDoNotReachEachOther(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.cluster.Partition(0, false)
	if err := b.requestThrough(t.Context(), 2, 0); err == nil {
		t.Fatal("a server that is cut off is reachable")
	}
	b.cluster.Routes[0][1].Restore()
	b.cluster.Routes[1][0].Restore()
	testkit.Eventually(t, time.Minute, func() error { return b.requestThrough(t.Context(), 1, 0) })
	testkit.Eventually(t, time.Minute, func() error { return b.requestThrough(t.Context(), 1, 2) })
	for range 3 { // time for a connection past the routes
		if err := b.requestThrough(t.Context(), 2, 0); err == nil {
			t.Fatal("a server is reachable, and its routes are cut")
		}
	}
	b.cluster.Rejoin()
	testkit.Eventually(t, time.Minute, func() error { return b.requestThrough(t.Context(), 2, 0) })
}

// checkReplicas returns an error while a server lacks messages of the stream.
func checkReplicas(ctx context.Context, js jetstream.JetStream, accepted uint64) error {
	stream, err := js.Stream(ctx, "stream")
	if err != nil {
		return err
	}
	info := stream.CachedInfo()
	if info.State.Msgs < accepted {
		return fmt.Errorf("%d messages, want %d", info.State.Msgs, accepted)
	}
	for _, r := range info.Cluster.Replicas {
		if !r.Current || r.Offline {
			return fmt.Errorf("%s is not current", r.Name)
		}
	}
	return nil
}
