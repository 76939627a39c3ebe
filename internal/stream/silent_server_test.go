package stream_test

import (
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"

	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

// The connection leaves a server that serves its clients but has no JetStream for another one with
// JetStream.
func TestConn_serverWithoutJetStream_isLeft(t *testing.T) {
	t.Parallel()
	idle := serverWithoutJetStream(t)
	proxy := testkit.Proxy(t, testkit.JetStream(t).URL)
	proxy.Cut()
	conn, _ := connectAndLogSwitches(t, idle+","+proxy.URL)
	eventually(t, "not connected", conn.Connected)
	proxy.Restore()
	testkit.Eventually(t, waitTime, func() error { return conn.Ensure(t.Context(), stream.DefaultLimits) })
}

// While no server has JetStream, the time between switches doubles, also if the others cannot be
// connected to.
func TestConn_noServerResponds_switchesLessOften(t *testing.T) {
	t.Parallel()
	first := serverWithoutJetStream(t)
	servers := first
	for range 4 { // each takes half a second
		hole := testkit.Proxy(t, first)
		hole.Stall()
		servers += "," + hole.URL
	}
	_, switches := connectAndLogSwitches(t, servers)
	testkit.Eventually(t, 2*waitTime, func() error {
		if n := len(switches()); n < 2 {
			return fmt.Errorf("%d switches", n)
		}
		return nil
	})
	if pause := switches()[1].Time.Sub(switches()[0].Time); pause < 10*time.Second {
		t.Errorf("switched again after %s", pause)
	}
}

// A server whose JetStream responds within the time that a publish may take is not left.
func TestConn_slowServer_isNotLeft(t *testing.T) {
	t.Parallel()
	servers := serverWithoutJetStream(t)
	jetstream, err := nats.Connect(servers)
	testkit.Must(t, err)
	t.Cleanup(jetstream.Close)
	requests := make(chan string, 100)
	testkit.Must(t, errOf(jetstream.Subscribe("$JS.API.STREAM.INFO."+stream.EventsStream,
		func(m *nats.Msg) { requests <- m.Reply })))
	testkit.Must(t, jetstream.Flush())
	other := testkit.Proxy(t, serverWithoutJetStream(t))
	other.Cut()
	_, switches := connectAndLogSwitches(t, servers+","+other.URL)
	for range 4 {
		reply := <-requests
		<-time.After(3 * time.Second)
		testkit.Must(t, jetstream.Publish(reply, []byte(`{"type": "io.nats.jetstream.api.v1.stream_info_response", `+
			`"error": {"code": 404, "err_code": 10059, "description": "stream not found"}}`)))
	}
	if n := len(switches()); n > 0 {
		t.Errorf("it was left %d times", n)
	}
}

// The patience doubles with each switch. Only responses for longer than the patience reset it, not
// a single one.
func TestSilenceDetector_patience_doublesAndResets(t *testing.T) {
	t.Parallel()
	now := time.Now()
	j := stream.NewSilenceDetector(now)
	leaves := func() (after int) {
		for {
			after++
			if now = now.Add(time.Second); j.TimedOut(now) {
				j.Switched(now)
				return after
			}
		}
	}
	respond := func(seconds int) {
		for range seconds + 1 {
			now = now.Add(time.Second)
			j.Responded(now)
		}
	}
	var got []int
	for range 3 {
		got = append(got, leaves())
	}
	respond(0)
	got = append(got, leaves())
	j.Reset(now)
	got = append(got, leaves(), leaves())
	respond(60)
	got = append(got, leaves())
	respond(40)
	j.TimedOut(now)
	respond(40)
	got = append(got, leaves())
	respond(61)
	got = append(got, leaves())
	testkit.Equal(t, "patience in seconds", []int{5, 10, 20, 40, 60, 60, 60, 60, 5}, got)
}

// connectAndLogSwitches connects to servers, and records when one is left.
func connectAndLogSwitches(t *testing.T, servers string) (conn *stream.Conn, switches func() []slog.Record) {
	t.Helper()
	l := &recordLog{level: slog.LevelDebug}
	conn, err := stream.Connect(stream.Options{URL: servers, Name: t.Name(), Logger: slog.New(l)})
	testkit.Must(t, err)
	t.Cleanup(conn.Close)
	return conn, func() []slog.Record { return l.containing("switching to another NATS server") }
}

// serverWithoutJetStream starts a server without JetStream.
func serverWithoutJetStream(t *testing.T) string {
	t.Helper()
	idle, err := server.NewServer(&server.Options{Host: "127.0.0.1", Port: server.RANDOM_PORT, NoSigs: true,
		NoLog: true})
	testkit.Must(t, err)
	idle.Start()
	t.Cleanup(func() {
		idle.Shutdown()
		idle.WaitForShutdown()
	})
	if !idle.ReadyForConnections(waitTime) {
		t.Fatal("the server does not start")
	}
	return idle.ClientURL()
}

// serverWithStreamInfo starts a server that responds to the request for the events stream with such
// a cluster, instead of JetStream. requests receives a value for each response.
func serverWithStreamInfo(t *testing.T, cluster string) (url string, requests <-chan struct{}) {
	t.Helper()
	url = serverWithoutJetStream(t)
	conn, err := nats.Connect(url)
	testkit.Must(t, err)
	t.Cleanup(conn.Close)
	answered := make(chan struct{}, 1000)
	info := `{"type": "io.nats.jetstream.api.v1.stream_info_response", "config": {"name": "` + stream.EventsStream +
		`"}, "created": "2026-11-22T00:00:00Z", "state": {}, "cluster": ` + cluster + `}`
	testkit.Must(t, errOf(conn.Subscribe("$JS.API.STREAM.INFO."+stream.EventsStream, func(m *nats.Msg) {
		if err := m.Respond([]byte(info)); err != nil {
			t.Error(err)
		}
		answered <- struct{}{}
	})))
	testkit.Must(t, conn.Flush())
	return url, answered
}

// awaitRequests waits for n requests.
func awaitRequests(t *testing.T, requests <-chan struct{}, n int) {
	t.Helper()
	end := time.After(2 * waitTime)
	for range n {
		select {
		case <-requests:
		case <-end:
			t.Fatal("no further request")
		}
	}
}

// A server that reports no leader for the stream, as a cut-off former leader does, is left. A
// server that knows the leader is not.
func TestConn_streamWithoutLeader_isLeft(t *testing.T) {
	t.Parallel()
	for name, cluster := range map[string]string{
		"no leader": `{"name": "c", "replicas": [{"name": "b", "current": false, "active": 9000000000}, ` +
			`{"name": "c", "current": false, "active": 9000000000}]}`,
		"a leader":   `{"name": "c", "leader": "a", "replicas": [{"name": "b", "current": true, "active": 1000000}]}`,
		"no cluster": `null`,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			url, requests := serverWithStreamInfo(t, cluster)
			proxy := testkit.Proxy(t, testkit.JetStream(t).URL)
			proxy.Cut() // the first connection is to the other server
			conn, switches := connectAndLogSwitches(t, url+","+proxy.URL)
			awaitRequests(t, requests, 2)
			proxy.Restore()
			if name == "no leader" {
				testkit.Eventually(t, waitTime, func() error {
					if len(switches()) == 0 {
						return errors.New("it is not left")
					}
					return conn.Ensure(t.Context(), stream.DefaultLimits)
				})
				return
			}
			awaitRequests(t, requests, 8) // a second apart: longer than a missing response is tolerated
			if n := len(switches()); n > 0 {
				t.Errorf("it was left %d times", n)
			}
		})
	}
}
