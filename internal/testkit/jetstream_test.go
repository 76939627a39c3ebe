package testkit_test

import (
	"fmt"
	"net"
	"runtime"
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

func TestServer_restartAndWipe_keepAndClearTheStore(t *testing.T) {
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

// No program that asks for any port gets the port of a stopped server. A program that tries this
// port only delays the start.
func TestServer_restart_usesTheSamePort(t *testing.T) {
	t.Parallel()
	srv := testkit.JetStream(t)
	url := srv.URL
	srv.Stop(t)
	var l net.Listener
	testkit.Eventually(t, 10*time.Second, func() (err error) { // a server of another test may try the port
		l, err = net.Listen("tcp", strings.TrimPrefix(url, "nats://"))
		return err
	})
	if port := l.Addr().(*net.TCPAddr).Port; port >= 32768 {
		t.Errorf("port %d is in the ephemeral range of the system", port)
	}
	release := time.AfterFunc(200*time.Millisecond, func() { _ = l.Close() })
	defer release.Stop()
	srv.Restart(t)
	if srv.URL != url {
		t.Errorf("URL moved from %s to %s", url, srv.URL)
	}
}

func TestServer_restoreStore_returnsToTheSavedMessages(t *testing.T) {
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
			saved = srv.SaveStore(t)
			continue
		}
		if got := messages(t, srv.URL); got != 2 {
			t.Fatalf("after the copy and one more message the stream has %d messages, want 2", got)
		}
		srv.RestoreStore(t, saved)
	}
	if n := messages(t, srv.URL); n != 1 {
		t.Fatalf("after the restore the stream has %d messages, want 1", n)
	}
}

func TestEventually_checkReturnsNil_stopsPolling(t *testing.T) {
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

// An error that changes gets more time than one that stays the same, but not without limit.
func TestEventually_errorChanges_getsMoreTime(t *testing.T) {
	t.Parallel()
	const timeout = 50 * time.Millisecond
	for name, tc := range map[string]struct {
		check   func(n int, passed time.Duration) error
		atLeast time.Duration
		fails   bool
	}{
		"moves": {func(n int, passed time.Duration) error { return unless(passed > 3*timeout, n) },
			3 * timeout, false},
		"changes forever": {func(n int, _ time.Duration) error { return unless(false, n) }, 9 * timeout, true},
		"never changes":   {func(int, time.Duration) error { return unless(false, 1) }, timeout, true},
	} {
		began, n := time.Now(), 0
		var failed bool
		done := make(chan struct{})
		go func() { // Fatalf ends the goroutine
			defer close(done)
			testkit.Eventually(&fakeT{TB: t, failed: &failed}, timeout, func() error {
				n++
				return tc.check(n, time.Since(began))
			})
		}()
		<-done
		if took := time.Since(began); failed != tc.fails || took < tc.atLeast {
			t.Errorf("%s: failed %t after %s", name, failed, took)
		}
	}
}

func unless(done bool, n int) error {
	if done {
		return nil
	}
	return fmt.Errorf("%d", n)
}

// fakeT records that a test has failed and ends its goroutine.
type fakeT struct {
	testing.TB
	failed *bool
}

func (f *fakeT) Helper() {}

func (f *fakeT) Fatalf(string, ...any) {
	*f.failed = true
	runtime.Goexit()
}
