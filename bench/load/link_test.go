package load

import (
	"io"
	"net"
	"testing"
)

// A server may respond and close before it has read the whole body. The response counts, the failed
// write is no error, and the next request uses a new connection.
func TestLinkPost_responseBeforeBodyEnds_counts(t *testing.T) {
	t.Parallel()
	server, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	go func() {
		for {
			c, err := server.Accept()
			if err != nil {
				return
			}
			_, _ = io.ReadFull(c, make([]byte, 1024))
			_, _ = io.WriteString(c, "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 2\r\n\r\nno")
			_ = c.Close()
		}
	}()
	l, err := dial(t.Context(), server.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { l.close() }()
	for range 3 {
		status, err := l.post(t.Context(), make([]byte, 32<<20)) // more than the kernel buffers
		if status != 503 || err != nil {
			t.Errorf("answered %d, %v", status, err)
		}
	}
}
