package app_test

import (
	"bufio"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
)

// dial opens a connection to the ingest address that ends with the test.
func (b *testBundle) dial(t *testing.T) net.Conn {
	t.Helper()
	conn, err := net.Dial("tcp", b.app.Addr())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	return conn
}

// halfSent has sent the head of a delivery and the beginning of its body, and the server waits for the rest.
func (b *testBundle) halfSent(t *testing.T) {
	t.Helper()
	conn := b.dial(t)
	// The server tells a sender that asks to go on when it begins to read.
	if _, err := io.WriteString(conn, "POST /webhooks/stripe HTTP/1.1\r\nHost: postern\r\nExpect: 100-continue\r\nContent-Length: 100\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	if line, err := bufio.NewReader(conn).ReadString('\n'); err != nil || !strings.Contains(line, "100 Continue") {
		t.Fatalf("the server does not wait for the body: %q, %v", line, err)
	}
	if _, err := io.WriteString(conn, `{"id": "evt_`); err != nil {
		t.Fatal(err)
	}
}

// Senders that never finish do not hold up a stop: what was acknowledged is stored, and published before the end.
func TestStopCutsOffHalfSentBodies(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	gateway, err := app.New(t.Context(), app.Options{Config: b.cfg, Logger: slog.New(slog.DiscardHandler), Gateway: true, Tune: patient})
	if err != nil {
		t.Fatal(err)
	}
	b.app = gateway
	gateway.Start()
	for range 3 {
		b.halfSent(t)
	}
	var ids []string
	for n := range 20 {
		ids = append(ids, b.mustPost(t, "stripe", b.sign(t, "stripe", "customer.updated", 1+n, time.Now())).ID)
	}
	stop(t, gateway) // which says what it left behind, and half-sent bodies would be
	// A processor whose auditor looks at nothing can only apply what was published.
	b.app = b.start(t, app.Options{Processor: true, Tune: func(tuning *app.Tuning) {
		tuning.Processor.AuditEvery, tuning.Processor.AuditAge = time.Hour, time.Hour
	}})
	b.allApplied(t, ids)
}

// health asks over a connection whether the gateway is alive, and reads the answer.
func health(conn net.Conn, answers *bufio.Reader) (status int, err error) {
	if _, err := io.WriteString(conn, "GET /healthz HTTP/1.1\r\nHost: postern\r\n\r\n"); err != nil {
		return 0, err
	}
	res, err := http.ReadResponse(answers, nil)
	if err != nil {
		return 0, err
	}
	defer res.Body.Close()
	_, err = io.Copy(io.Discard, res.Body)
	return res.StatusCode, err
}

// One connection more than may be open waits, and is served when another closes.
func TestConnectionsAreBounded(t *testing.T) {
	t.Parallel()
	b := configured(t, func(c *config.Config) { c.Ingest.MaxConnections = 2 })
	b.app = b.start(t, app.Options{Gateway: true})
	var open []net.Conn
	for range 2 {
		conn := b.dial(t)
		if status, err := health(conn, bufio.NewReader(conn)); status != http.StatusOK {
			t.Fatalf("status %d, %v", status, err)
		}
		open = append(open, conn)
	}
	waiting := b.dial(t)
	answers := bufio.NewReader(waiting)
	if err := waiting.SetDeadline(time.Now().Add(500 * time.Millisecond)); err != nil {
		t.Fatal(err)
	}
	if status, err := health(waiting, answers); !os.IsTimeout(err) {
		t.Errorf("one connection too many is served: %d, %v", status, err)
	}
	if err := waiting.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	if err := open[0].Close(); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(answers, nil)
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("the one that waited is not served: %v", err)
	}
	_ = res.Body.Close()
}
