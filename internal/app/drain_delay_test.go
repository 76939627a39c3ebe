package app_test

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/testkit"
)

// A gateway that was asked to stop first says that it is not ready, and goes on taking deliveries, each on a connection that it then closes, until balancers had the time to notice.
func TestAGatewayDrainsBeforeItStops(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	b.cfg.Ingest.DrainDelay = 10 * time.Second
	gateway, err := app.New(t.Context(), app.Options{Config: b.cfg, Logger: slog.New(slog.DiscardHandler), Gateway: true, Tune: patient})
	if err != nil {
		t.Fatal(err)
	}
	b.app = gateway
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- gateway.Run(ctx) }()
	idle := b.dial(t)
	answers := bufio.NewReader(idle)
	testkit.Eventually(t, 30*time.Second, func() error { return b.readyz(http.StatusOK) })
	if status, err := health(idle, answers); status != http.StatusOK {
		t.Fatalf("status %d, %v", status, err)
	}
	asked := time.Now()
	stop()
	testkit.Eventually(t, 30*time.Second, func() error { return b.readyz(http.StatusServiceUnavailable) })
	if b.mustPost(t, "stripe", b.sign(t, "stripe", "customer.updated", 1, time.Now())).ID == "" {
		t.Error("no delivery is taken while the gateway drains")
	}
	if _, err := io.WriteString(idle, "GET /healthz HTTP/1.1\r\nHost: postern\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	res, err := http.ReadResponse(answers, nil)
	if err != nil {
		t.Fatalf("a connection that was open is not served while the gateway drains: %v", err)
	}
	_ = res.Body.Close()
	if !res.Close {
		t.Error("the answer does not say that its connection closes")
	}
	if err := <-ended; err != nil {
		t.Errorf("the stop: %v", err)
	}
	if took := time.Since(asked); took < b.cfg.Ingest.DrainDelay {
		t.Errorf("the gateway stopped after %s, before balancers had %s", took, b.cfg.Ingest.DrainDelay)
	}
}

// readyz wants a status of the gateway's.
func (b *testBundle) readyz(want int) error {
	res, err := http.Get("http://" + b.app.Addr() + "/readyz")
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != want {
		return fmt.Errorf("/readyz says %d, want %d", res.StatusCode, want)
	}
	return nil
}
