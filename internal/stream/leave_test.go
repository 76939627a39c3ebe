package stream_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// A server that talks to its clients and has no JetStream to offer is left for one that has.
func TestServerWithoutJetStreamIsLeft(t *testing.T) {
	t.Parallel()
	idle := withoutJetStream(t)
	proxy := testkit.Proxy(t, testkit.JetStream(t).URL)
	proxy.Cut()
	conn, err := stream.Connect(stream.Options{URL: idle + "," + proxy.URL, Name: t.Name(), Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	testkit.Eventually(t, patience, func() error {
		if !conn.Connected() {
			return nats.ErrNoServers
		}
		return nil
	})
	proxy.Restore()
	testkit.Eventually(t, patience, func() error { return conn.Ensure(t.Context(), stream.DefaultLimits) })
}

// While none has JetStream the pause between leavings doubles, also where the others do not even let themselves be connected to.
func TestLeavingsBecomeRarer(t *testing.T) {
	t.Parallel()
	first := withoutJetStream(t)
	servers := first
	for range 4 { // each takes half a second
		hole := testkit.Proxy(t, first)
		hole.Stall()
		servers += "," + hole.URL
	}
	l := &leavings{}
	conn, err := stream.Connect(stream.Options{URL: servers, Name: t.Name(), Logger: slog.New(l)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	testkit.Eventually(t, 2*patience, func() error {
		if n := len(l.all()); n < 2 {
			return fmt.Errorf("%d leavings", n)
		}
		return nil
	})
	if at := l.all(); at[1].Sub(at[0]) < 10*time.Second {
		t.Errorf("left again after %s", at[1].Sub(at[0]))
	}
}

// A server whose JetStream answers within the time that a publish may take is not left.
func TestSlowServerIsNotLeft(t *testing.T) {
	t.Parallel()
	servers := withoutJetStream(t)
	jetstream, err := nats.Connect(servers)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(jetstream.Close)
	asked := make(chan string, 100)
	if _, err := jetstream.Subscribe("$JS.API.STREAM.INFO."+stream.EventsStream, func(m *nats.Msg) { asked <- m.Reply }); err != nil {
		t.Fatal(err)
	}
	if err := jetstream.Flush(); err != nil {
		t.Fatal(err)
	}
	other := testkit.Proxy(t, withoutJetStream(t))
	other.Cut()
	l := &leavings{}
	conn, err := stream.Connect(stream.Options{URL: servers + "," + other.URL, Name: t.Name(), Logger: slog.New(l)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	for range 4 {
		reply := <-asked
		<-time.After(3 * time.Second)
		if err := jetstream.Publish(reply, []byte(`{"type": "io.nats.jetstream.api.v1.stream_info_response", "error": {"code": 404, "err_code": 10059, "description": "stream not found"}}`)); err != nil {
			t.Fatal(err)
		}
	}
	if at := l.all(); len(at) > 0 {
		t.Errorf("it was left %d times", len(at))
	}
}

// The patience with silence doubles with each leaving, and is set back by answers for longer than it lasts, not by one.
func TestPatienceWithAServer(t *testing.T) {
	t.Parallel()
	now := time.Now()
	j := stream.NewJudge(now)
	leaves := func() (after int) {
		for {
			after++
			if now = now.Add(time.Second); j.Silent(now) {
				j.Left(now)
				return after
			}
		}
	}
	hears := func(seconds int) {
		for range seconds + 1 {
			now = now.Add(time.Second)
			j.Heard(now)
		}
	}
	var got []int
	for range 3 {
		got = append(got, leaves())
	}
	hears(0)
	got = append(got, leaves())
	j.Begin(now)
	got = append(got, leaves(), leaves())
	hears(60)
	got = append(got, leaves())
	hears(40)
	j.Silent(now)
	hears(40)
	got = append(got, leaves())
	hears(61)
	got = append(got, leaves())
	if diff := cmp.Diff([]int{5, 10, 20, 40, 60, 60, 60, 60, 5}, got); diff != "" {
		t.Error(diff)
	}
}

// withoutJetStream starts a server that has none.
func withoutJetStream(t *testing.T) string {
	t.Helper()
	idle, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true, NoLog: true})
	if err != nil {
		t.Fatal(err)
	}
	idle.Start()
	t.Cleanup(func() {
		idle.Shutdown()
		idle.WaitForShutdown()
	})
	if !idle.ReadyForConnections(patience) {
		t.Fatal("the server does not start")
	}
	return idle.ClientURL()
}

// leavings is a log that keeps when servers were left.
type leavings struct {
	slog.Handler
	mu sync.Mutex
	at []time.Time
}

func (l *leavings) Enabled(context.Context, slog.Level) bool { return true }

func (l *leavings) Handle(_ context.Context, r slog.Record) error {
	if strings.HasPrefix(r.Message, "leaving a NATS server") {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.at = append(l.at, r.Time)
	}
	return nil
}

func (l *leavings) all() []time.Time {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.at)
}
