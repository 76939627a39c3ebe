package app_test

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
)

// Senders that take too long for headers or body are cut off by the configured times; others are served meanwhile.
func TestSlowSendersAreCutOff(t *testing.T) {
	t.Parallel()
	b := configured(t, func(c *config.Config) {
		c.Ingest.HeaderTimeout, c.Ingest.ReadTimeout = 2*time.Second, 4*time.Second
	})
	b.app = b.start(t, app.Options{Gateway: true})
	for name, tc := range map[string]struct {
		sent   string
		status int // 0: hung up without an answer
	}{
		"nothing":      {"", 0},
		"half a head":  {"POST /webhooks/stripe HTTP/1.1\r\nHost: postern\r\nContent-", 0},
		"half a body":  {"POST /webhooks/stripe HTTP/1.1\r\nHost: postern\r\nContent-Length: 100\r\n\r\n{\"id\"", http.StatusRequestTimeout},
		"half a chunk": {"POST /webhooks/stripe HTTP/1.1\r\nHost: postern\r\nTransfer-Encoding: chunked\r\n\r\n50\r\n{\"id\"", http.StatusRequestTimeout},
		"a huge head":  {"POST /webhooks/stripe HTTP/1.1\r\nHost: postern\r\nX: " + strings.Repeat("x", 100_000) + "\r\n\r\n", http.StatusRequestHeaderFieldsTooLarge},
	} {
		conn, err := net.Dial("tcp", b.app.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = conn.Close() })
		if err := conn.SetDeadline(time.Now().Add(20 * time.Second)); err != nil {
			t.Fatal(err)
		}
		if _, err := io.WriteString(conn, tc.sent); err != nil {
			t.Fatal(err)
		}
		status := 0
		res, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err == nil {
			status = res.StatusCode
			_, err = io.Copy(io.Discard, res.Body)
		} else if strings.Contains(err.Error(), "timeout") {
			t.Errorf("%s: the sender is not cut off", name)
		}
		// Of half a head net/http may say that it is a bad request.
		if status != tc.status && !(tc.status == 0 && status == http.StatusBadRequest) {
			t.Errorf("%s: status %d, want %d (%v)", name, status, tc.status, err)
		}
	}
	b.mustPost(t, "stripe", b.sign(t, "stripe", "invoice.paid", 1, time.Now()))
}
