package app_test

import (
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/testkit"
)

// Whoever stops a processor while it still waits for PostgreSQL is told of no failure; one that nobody stops fails.
func TestStoppedBeforeItIsReady(t *testing.T) {
	t.Parallel()
	proxy := testkit.Proxy(t, testkit.Database(t).URL)
	proxy.Stall()
	file := filepath.Join(t.TempDir(), "postern.yaml")
	text := fmt.Sprintf("database: {url: %q}\nnats: {url: 'nats://127.0.0.1:1'}\nadmin: {listen: '127.0.0.1:0'}\nsources: {stripe: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}}\n", proxy.URL)
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	stay := func(ctx context.Context) error {
		return app.Stay(ctx, app.Options{Processor: true, AdminListen: "127.0.0.1:0", Loader: config.NewLoader(file, config.ForProcessor, nil)}, io.Discard)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 500*time.Millisecond)
	defer cancel()
	if err := stay(ctx); err != nil {
		t.Errorf("stopped early: %v", err)
	}
	if err := stay(t.Context()); err == nil {
		t.Error("a processor without PostgreSQL starts")
	}
}
