package stream_test

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/nats-io/nats.go"

	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

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
			l := &leavings{}
			conn, err := stream.Connect(stream.Options{URL: url + "," + proxy.URL, Name: t.Name(), Logger: slog.New(l)})
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(conn.Close)
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
