package testkit_test

import (
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/postern-gateway/postern/internal/testkit"
)

func stream(t *testing.T, url string) jetstream.JetStream {
	t.Helper()
	nc, err := nats.Connect(url)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(nc.Close)
	js, err := jetstream.New(nc)
	if err != nil {
		t.Fatal(err)
	}
	return js
}

func messages(t *testing.T, url string) uint64 {
	t.Helper()
	s, err := stream(t, url).Stream(t.Context(), "S")
	if err != nil {
		t.Logf("stream S: %v", err)
		return 0
	}
	return s.CachedInfo().State.Msgs
}

func TestJetStreamKeepsItsStoreUntilWiped(t *testing.T) {
	t.Parallel()
	srv := testkit.JetStream(t)
	js := stream(t, srv.URL)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	if _, err := js.Publish(t.Context(), "s", []byte("hello")); err != nil {
		t.Fatal(err)
	}
	url := srv.URL
	srv.Restart(t)
	if srv.URL != url {
		t.Fatalf("URL moved from %s to %s", url, srv.URL)
	}
	if n := messages(t, url); n != 1 {
		t.Fatalf("after a restart the stream has %d messages, want 1", n)
	}
	srv.Wipe(t)
	if n := messages(t, url); n != 0 {
		t.Fatalf("after a wipe the stream has %d messages, want none", n)
	}
	srv.Stop(t)
	if nc, err := nats.Connect(url); err == nil {
		nc.Close()
		t.Fatal("a stopped server takes connections")
	}
}

// While a server is stopped its port goes to nobody who asks for any port, and one who tries it only delays the start.
func TestJetStreamGetsItsPortBack(t *testing.T) {
	t.Parallel()
	srv := testkit.JetStream(t)
	url := srv.URL
	srv.Stop(t)
	l, err := net.Listen("tcp", strings.TrimPrefix(url, "nats://"))
	if err != nil {
		t.Fatal(err)
	}
	if port := l.Addr().(*net.TCPAddr).Port; port >= 32768 {
		t.Errorf("port %d may be given to any connection", port)
	}
	release := time.AfterFunc(200*time.Millisecond, func() { _ = l.Close() })
	defer release.Stop()
	srv.Restart(t)
	if srv.URL != url {
		t.Errorf("URL moved from %s to %s", url, srv.URL)
	}
}

func TestJetStreamRollsBackToACopy(t *testing.T) {
	t.Parallel()
	srv := testkit.JetStream(t)
	js := stream(t, srv.URL)
	if _, err := js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "S", Subjects: []string{"s"}}); err != nil {
		t.Fatal(err)
	}
	for n, saved := uint64(1), ""; n <= 2; n++ {
		if _, err := stream(t, srv.URL).Publish(t.Context(), "s", nil); err != nil {
			t.Fatal(err)
		}
		if saved == "" {
			saved = srv.Save(t)
			continue
		}
		if got := messages(t, srv.URL); got != 2 {
			t.Fatalf("after saving and one more there are %d messages, want 2", got)
		}
		srv.RollBack(t, saved)
	}
	if n := messages(t, srv.URL); n != 1 {
		t.Fatalf("rolled back the stream has %d messages, want 1", n)
	}
}

func TestEventuallyPollsUntilNil(t *testing.T) {
	t.Parallel()
	n := 0
	testkit.Eventually(t, 5*time.Second, func() error {
		if n++; n < 4 {
			return fmt.Errorf("only %d", n)
		}
		return nil
	})
	if n != 4 {
		t.Fatalf("called %d times, want 4", n)
	}
}
