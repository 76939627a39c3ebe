package ingest_test

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// A sender may close its half of the connection after the request; it still reads, so it gets its receipt.
func TestHalfClosedSenderGetsItsReceipt(t *testing.T) {
	t.Parallel()
	b := setupIdle(t, testkit.Database(t), nil)
	noticed := make(chan (<-chan struct{}), 1)
	handler := b.server.Handler()
	web := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		noticed <- r.Context().Done() // net/http ends it when the sender's half closes
		handler.ServeHTTP(w, r)
	}))
	t.Cleanup(web.Close)
	conn, err := net.Dial("tcp", web.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(30 * time.Second)); err != nil {
		t.Fatal(err)
	}
	d := b.invoice(t, 1)
	req := httptest.NewRequest(http.MethodPost, "/webhooks/stripe", bytes.NewReader(d.Body))
	req.Header = d.Header.Clone()
	if err := errors.Join(req.Write(conn), conn.(*net.TCPConn).CloseWrite()); err != nil {
		t.Fatal(err)
	}
	select {
	case <-<-noticed:
	case <-time.After(20 * time.Second):
		t.Fatal("the server does not see that the sender closed its half")
	}
	b.run(t) // only now is anything written
	res, err := http.ReadResponse(bufio.NewReader(conn), req)
	if err != nil {
		t.Fatalf("read answer: %v", err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	var r receipt
	if err := json.Unmarshal(body, &r); err != nil || res.StatusCode != http.StatusOK || r.ID == "" || r.Duplicate {
		t.Errorf("status %d: %s (%v)", res.StatusCode, body, err)
	}
}

// aborts is a provider whose code hangs up the way net/http offers it.
type aborts struct{ sim.Provider }

func (aborts) Name() string { return "aborts" }

func (aborts) Verify(*provider.Source, *provider.Delivery) (provider.Verification, error) {
	panic(http.ErrAbortHandler)
}

// An aborted handler is no fault: the connection is dropped without an answer, and that is all.
func TestAbortedHandlerDropsTheConnection(t *testing.T) {
	t.Parallel()
	b := setup(t, func(o *ingest.Options) {
		o.Endpoints["aborts"] = ingest.Endpoint{Provider: aborts{}, MaxBody: maxBody, Config: &provider.Source{Name: "aborts"}}
	})
	if a, err := b.try(t.Context(), "aborts", b.invoice(t, 1)); !errors.Is(err, io.EOF) {
		t.Errorf("answered %d %s, %v; want the connection dropped", a.status, a.body, err)
	}
	if n := b.counter(t, "postern_faults_total"); n != 0 {
		t.Errorf("%v faults counted", n)
	}
	b.post(t, "stripe", b.invoice(t, 1)).receipt(t)
}
