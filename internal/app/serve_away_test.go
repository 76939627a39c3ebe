package app_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// An instance of gateway and processor that starts while PostgreSQL is away takes deliveries, and applies them once PostgreSQL is there, which it brings to its schema before.
func TestServeStartsWithoutPostgreSQL(t *testing.T) {
	t.Parallel()
	b := &testBundle{db: testkit.EmptyDatabase(t, ""), cfg: config.Default()}
	proxy := testkit.Proxy(t, b.db.URL)
	proxy.Cut()
	b.cfg.Sources, b.cfg.Database.URL, b.cfg.Ingest.Spool.Dir = config.DemoSources(), config.URL(proxy.URL), t.TempDir()
	b.cfg.Ingest.Listen, b.cfg.Admin.Listen = "127.0.0.1:0", "127.0.0.1:0"
	dir := t.TempDir()
	l, err := app.NewLocal(t.Context(), app.LocalOptions{Config: b.cfg, Logger: slog.New(slog.DiscardHandler), Dir: dir, Tune: patient})
	if err != nil {
		t.Fatal(err)
	}
	b.app = l.App
	ctx, stop := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- l.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Errorf("ended with %v", err)
		}
	})
	for n := range 3 {
		if status, body := b.post(t, "stripe", b.sign(t, "stripe", "customer.updated", n+1, time.Now())); status != 200 || !strings.Contains(string(body), `"spooled":true`) {
			t.Errorf("%d %s", status, body)
		}
	}
	proxy.Restore()
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: b.db.URL, MaxConns: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	testkit.Eventually(t, time.Minute, func() error {
		var n int
		if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM outcomes WHERE status = 'applied'`).Scan(&n); err != nil || n != 3 {
			return fmt.Errorf("%d are applied, %v", n, err)
		}
		return nil
	})
	b.mustPost(t, "stripe", b.sign(t, "stripe", "customer.updated", 4, time.Now())) // at the address of before
	checkInstanceFile(t, dir, b.db.URL)
}

// checkInstanceFile fails unless the file names its database, and its servers name the start that wrote it.
func checkInstanceFile(t *testing.T, dir, database string) {
	t.Helper()
	in, err := config.ReadInstance(dir)
	if err != nil {
		t.Fatal(err)
	}
	if id, err := postgres.Identity(t.Context(), database); err != nil || id == "" || in.DatabaseID != id {
		t.Errorf("the file names the database %q, and it is %q: %v", in.DatabaseID, id, err)
	}
	for _, address := range []string{in.IngestURL, in.AdminURL} {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, address+"/healthz", nil)
		if err != nil {
			t.Fatal(err)
		}
		res, err := (&http.Client{Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
		if err != nil {
			t.Fatal(err)
		}
		if got := res.Header.Get(config.InstanceHeader); in.ID == "" || got != in.ID {
			t.Errorf("%s answers as %q, and the file names %q", address, got, in.ID)
		}
		if err := res.Body.Close(); err != nil {
			t.Error(err)
		}
	}
}
