package stream_test

import (
	"context"
	"errors"
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
	conn, _ := leaving(t, idle+","+proxy.URL)
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
	_, l := leaving(t, servers)
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
	_, l := leaving(t, servers+","+other.URL)
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

// leaving connects to servers, and keeps when one is left.
func leaving(t *testing.T, servers string) (*stream.Conn, *leavings) {
	t.Helper()
	l := &leavings{}
	conn, err := stream.Connect(stream.Options{URL: servers, Name: t.Name(), Logger: slog.New(l)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn, l
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

// informing starts a server that answers the question for the events' stream with such a cluster, in place of JetStream; asked has one for each answer.
func informing(t *testing.T, cluster string) (url string, asked <-chan struct{}) {
	t.Helper()
	url = withoutJetStream(t)
	conn, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	answered := make(chan struct{}, 1000)
	info := `{"type": "io.nats.jetstream.api.v1.stream_info_response", "config": {"name": "` + stream.EventsStream + `"}, "created": "2026-11-22T00:00:00Z", "state": {}, "cluster": ` + cluster + `}`
	if _, err := conn.Subscribe("$JS.API.STREAM.INFO."+stream.EventsStream, func(m *nats.Msg) {
		if err := m.Respond([]byte(info)); err != nil {
			t.Error(err)
		}
		answered <- struct{}{}
	}); err != nil {
		t.Fatal(err)
	}
	if err := conn.Flush(); err != nil {
		t.Fatal(err)
	}
	return url, answered
}

// await waits for so many questions.
func await(t *testing.T, asked <-chan struct{}, n int) {
	t.Helper()
	end := time.After(2 * patience)
	for range n {
		select {
		case <-asked:
		case <-end:
			t.Fatal("it is asked no more")
		}
	}
}

// A server that tells of the stream that it has no leader, as the one that led it and was cut off does, is left; one that knows the leader is not.
func TestServerWithoutALeaderIsLeft(t *testing.T) {
	t.Parallel()
	for name, cluster := range map[string]string{
		"no leader":  `{"name": "c", "replicas": [{"name": "b", "current": false, "active": 9000000000}, {"name": "c", "current": false, "active": 9000000000}]}`,
		"a leader":   `{"name": "c", "leader": "a", "replicas": [{"name": "b", "current": true, "active": 1000000}]}`,
		"no cluster": `null`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, asked := informing(t, cluster)
			proxy := testkit.Proxy(t, testkit.JetStream(t).URL)
			proxy.Cut() // the first connection is to the other
			conn, l := leaving(t, url+","+proxy.URL)
			await(t, asked, 2)
			proxy.Restore()
			if name == "no leader" {
				testkit.Eventually(t, patience, func() error {
					if len(l.all()) == 0 {
						return errors.New("it is not left")
					}
					return conn.Ensure(t.Context(), stream.DefaultLimits)
				})
				return
			}
			await(t, asked, 8) // a second apart: longer than silence is borne
			if n := len(l.all()); n > 0 {
				t.Errorf("it was left %d times", n)
			}
		})
	}
}
