package app_test

import (
	"bytes"
	"context"
	"fmt"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/app"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/testkit"
)

// A gateway with a spool starts while PostgreSQL is away, acknowledges, is ready, and brings what it kept to the log once PostgreSQL is there.
func TestGatewayStartsWithoutPostgreSQL(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	proxy := testkit.Proxy(t, b.db.URL)
	b.cfg.Database.URL, b.cfg.Ingest.Spool.Dir = config.URL(proxy.URL), t.TempDir()
	proxy.Cut()
	b.app = b.start(t, app.Options{Gateway: true})
	for n := range 3 {
		if status, body := b.post(t, "stripe", b.sign(t, "stripe", "customer.updated", n+1, time.Now())); status != 200 || !strings.Contains(string(body), `"spooled":true`) {
			t.Errorf("%d %s", status, body)
		}
	}
	proxy.Restore()
	testkit.Eventually(t, time.Minute, func() error {
		var n int
		if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events`).Scan(&n); err != nil || n != 3 {
			return fmt.Errorf("%d events, %w", n, err)
		}
		return nil
	})
	testkit.Eventually(t, time.Minute, func() error {
		if _, body := b.post(t, "stripe", b.sign(t, "stripe", "customer.updated", 9, time.Now())); !strings.Contains(string(body), `"id"`) {
			return fmt.Errorf("%s", body)
		}
		return nil
	})
}

// PostgreSQL may as well go away while such a gateway starts.
func TestGatewayStartsWhilePostgreSQLGoes(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	proxy := testkit.Proxy(t, b.db.URL)
	knocked, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	cut := make(chan struct{})
	var once sync.Once
	go func() { // whoever looks for JetStream has seen PostgreSQL already
		for {
			conn, err := knocked.Accept()
			if err != nil {
				return
			}
			once.Do(func() { proxy.Cut(); close(cut) })
			_ = conn.Close() // nobody speaks here
		}
	}()
	defer knocked.Close()
	b.cfg.Database.URL, b.cfg.NATS.URL, b.cfg.Ingest.Spool.Dir = config.URL(proxy.URL), config.URL("nats://"+knocked.Addr().String()), t.TempDir()
	b.app = b.start(t, app.Options{Gateway: true})
	<-cut
	testkit.Eventually(t, time.Minute, func() error {
		if status, body := b.post(t, "stripe", b.sign(t, "stripe", "customer.updated", 1, time.Now())); status != 200 || !strings.Contains(string(body), `"spooled":true`) {
			return fmt.Errorf("%d %s", status, body)
		}
		return nil
	})
	proxy.Restore()
	testkit.Eventually(t, time.Minute, func() error {
		var n int
		if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events`).Scan(&n); err != nil || n != 1 {
			return fmt.Errorf("%d events, %w", n, err)
		}
		return nil
	})
}

// Without a spool a gateway does not start where it cannot keep anything.
func TestGatewayWithoutASpoolNeedsPostgreSQL(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	proxy := testkit.Proxy(t, b.db.URL)
	b.cfg.Database.URL = config.URL(proxy.URL)
	proxy.Cut()
	if _, err := app.New(t.Context(), app.Options{Config: b.cfg, Logger: slog.New(slog.DiscardHandler), Gateway: true}); err == nil {
		t.Error("it started")
	}
}

// A promise that was given up is told at each start, in the log and among the metrics.
func TestUnsafeSettingsAreTold(t *testing.T) {
	t.Parallel()
	for name, unsafe := range map[string]bool{"off": false, "on": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := configured(t, nil)
			b.cfg.Ingest.Spool.Dir, b.cfg.Ingest.Spool.UnsafeDir = t.TempDir(), unsafe
			var log bytes.Buffer
			a, err := app.New(t.Context(), app.Options{Config: b.cfg, Logger: slog.New(slog.NewTextHandler(&log, nil)), Gateway: true, Tune: patient})
			if err != nil {
				t.Fatal(err)
			}
			a.Start()
			on := scrape(t, a)["postern_unsafe_settings"].GetMetric()[0].GetGauge().GetValue()
			ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
			defer cancel()
			if err := a.Stop(ctx); err != nil {
				t.Fatal(err)
			}
			want := 2.0 // the tests' server is lax itself
			if unsafe {
				want++
			}
			if said := strings.Contains(log.String(), "ingest.spool.unsafe_dir is on"); said != unsafe || on != want {
				t.Errorf("counted %v, want %v, said %t:\n%s", on, want, said, log.String())
			}
			for _, name := range []string{"fsync", "full_page_writes"} {
				if said := strings.Count(log.String(), "postgresql runs with "+name+" off"); said != 1 {
					t.Errorf("said %d times that %s is off", said, name)
				}
			}
		})
	}
}

// An instance keeps a spool in its folder, unless a start of the machine would empty it and nobody said that this may be.
func TestLocalKeepsASpoolWhereItLasts(t *testing.T) {
	t.Parallel()
	for name, unsafe := range map[string]bool{"off": false, "on": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := localOptions(t, "sources: {stripe: {provider: stripe, secrets: [{name: n, value: whsec_secret_of_a_test}]}}")
			o.Config.Ingest.Spool.UnsafeDir = unsafe
			dir, err := os.MkdirTemp("/tmp", "postern")
			if err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() {
				if err := os.RemoveAll(dir); err != nil {
					t.Error(err)
				}
			})
			o.Dir = dir
			run(t, o)
			if _, err := os.Stat(filepath.Join(dir, "spool")); (err == nil) != unsafe {
				t.Errorf("looked for the spool: %v", err)
			}
		})
	}
}

// An earlier process set files of the spool apart: the gauges count them until they are removed.
func TestMetrics_spoolFilesSetApart_areCountedUntilRemoved(t *testing.T) {
	t.Parallel()
	b := configured(t, nil)
	b.cfg.Ingest.Spool.Dir = t.TempDir()
	want := map[string]float64{"postern_spool_damaged_files": 1, "postern_spool_refused_files": 2}
	var files []string
	for _, name := range []string{"00000000000000000001.spool.damaged", "1-aa.refused", "2-bb.refused"} {
		file := filepath.Join(b.cfg.Ingest.Spool.Dir, name)
		files = append(files, file)
		if err := os.WriteFile(file, nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	a := b.start(t, app.Options{Gateway: true})
	for metric, n := range want {
		if got := scrape(t, a)[metric].GetMetric()[0].GetGauge().GetValue(); got != n {
			t.Errorf("%s is %v, want %v", metric, got, n)
		}
	}
	for _, file := range files {
		if err := os.Remove(file); err != nil {
			t.Fatal(err)
		}
	}
	testkit.Eventually(t, time.Minute, func() error {
		for metric := range want {
			if got := scrape(t, a)[metric].GetMetric()[0].GetGauge().GetValue(); got != 0 {
				return fmt.Errorf("after the removal %s is %v", metric, got)
			}
		}
		return nil
	})
}
