package doctor_test

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/doctor"
	"github.com/postern-gateway/postern/internal/spool"
	"github.com/postern-gateway/postern/internal/testkit"
)

// Errors on this machine, and settings that are probably not intended, are reported.
func TestExamine_localChecks_areReported(t *testing.T) {
	t.Parallel()
	write := func(t *testing.T, mode os.FileMode) string {
		t.Helper()
		path := filepath.Join(t.TempDir(), "secret")
		testkit.Must(t, errors.Join(os.WriteFile(path, []byte("s"), 0o600), os.Chmod(path, mode)))
		return path
	}
	secret := func(path string) map[string]*config.Source {
		return map[string]*config.Source{"shop": {Secrets: []config.Secret{{Name: "main", File: path}}}}
	}
	for name, c := range map[string]struct {
		tune    func(t *testing.T, c *config.Config)
		check   string
		verdict doctor.Verdict
		found   string
	}{
		"a secret for its group only": {func(t *testing.T, c *config.Config) { c.Sources = secret(write(t, 0o640)) },
			"config.secrets", doctor.OK, "1 file with secrets"},
		"a world-readable secret": {func(t *testing.T, c *config.Config) { c.Sources = secret(write(t, 0o644)) },
			"config.secrets", doctor.Warn, "sources.shop.secrets.main: "},
		"a missing secret": {func(_ *testing.T, c *config.Config) { c.Sources = secret("/nowhere/secret") },
			"config.secrets", doctor.Error, "no such file"},
		"credentials": {func(t *testing.T, c *config.Config) { c.NATS.Credentials = write(t, 0o604) },
			"config.secrets", doctor.Warn, "nats.credentials: "},
		"an admin address on a network": {func(_ *testing.T, c *config.Config) { c.Admin.Listen = "10.0.0.1:8081" },
			"config.admin", doctor.Warn, "has no certificate"},
		"the same with a certificate": {func(_ *testing.T, c *config.Config) {
			c.Admin.Listen, c.Admin.TLS.Cert = "10.0.0.1:8081", "/c"
		}, "config.admin", doctor.OK, "with TLS and tokens"},
		"metrics on all addresses": {func(_ *testing.T, c *config.Config) { c.Admin.MetricsListen = "0.0.0.0:9100" },
			"config.metrics", doctor.Warn, "0.0.0.0:9100"},
		"metrics on one address": {func(_ *testing.T, c *config.Config) { c.Admin.MetricsListen = "10.0.0.1:9100" },
			"config.metrics", doctor.OK, "10.0.0.1:9100"},
		"an unsafe setting": {func(*testing.T, *config.Config) {}, "config.doubtful", doctor.Warn,
			"ingest.spool.unsafe_dir is on"},
		"early deletion of effects": {func(_ *testing.T, c *config.Config) { c.Retention.Effects = 3 },
			"config.doubtful", doctor.Warn, "the contents of effects are deleted 3 days"},
		"no spool": {func(_ *testing.T, c *config.Config) { c.Ingest.Spool.Dir = "" },
			"spool.folder", doctor.Warn, "no folder is set"},
		"a spool in memory": {func(_ *testing.T, c *config.Config) { c.Ingest.Spool.UnsafeDir = false },
			"spool.folder", doctor.Error, "/tmp"},
		"a spool in a file": {func(t *testing.T, c *config.Config) { c.Ingest.Spool.Dir = write(t, 0o600) },
			"spool.folder", doctor.Error, "is not a folder"},
		"a spool with a quarantined file": {func(t *testing.T, c *config.Config) {
			testkit.Must(t, errors.Join(os.Mkdir(c.Ingest.Spool.Dir, 0o700),
				os.WriteFile(filepath.Join(c.Ingest.Spool.Dir, "1.spool.damaged"), nil, 0o600)))
		}, "spool.files", doctor.Error, "1 file quarantined"},
		"a damaged file in a folder with brackets": {func(t *testing.T, c *config.Config) {
			c.Ingest.Spool.Dir = filepath.Join(t.TempDir(), "spool[1]")
			file := filepath.Join(c.Ingest.Spool.Dir, "1.spool.damaged")
			testkit.Must(t, errors.Join(os.Mkdir(c.Ingest.Spool.Dir, 0o700), os.WriteFile(file, nil, 0o600)))
		}, "spool.files", doctor.Error, "1 file quarantined"},
		"few open files": {func(_ *testing.T, c *config.Config) { c.Ingest.MaxConnections = 1 << 40 }, "machine.files",
			doctor.Warn, "1099511627776 connections are allowed"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			cfg := configured(t)
			c.tune(t, cfg)
			want(t, doctor.Examine(t.Context(), doctor.Options{Config: cfg}), c.check, c.verdict, c.found)
			if left, _ := filepath.Glob(filepath.Join(cfg.Ingest.Spool.Dir, "doctor-*")); len(left) > 0 {
				t.Errorf("left behind: %v", left)
			}
		})
	}
}

// Deliveries in the spool of the process are reported, also while PostgreSQL is unavailable.
func TestExamine_spooledDeliveries_areReported(t *testing.T) {
	t.Parallel()
	cfg := configured(t)
	disk, err := spool.OpenFolder(cfg.Ingest.Spool.Dir)
	testkit.Must(t, err)
	s, err := spool.Open(disk, spool.Options{MaxBytes: 1 << 30, Logger: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- s.Run(ctx) }()
	o := doctor.Options{Config: cfg, PoolError: errors.New("no response"), Spool: s}
	want(t, doctor.Examine(t.Context(), o), "spool.content", doctor.OK, "no delivery")
	testkit.Must(t, s.Append(t.Context(), []byte("delivery")))
	want(t, doctor.Examine(t.Context(), o), "spool.content", doctor.Warn, "wait for PostgreSQL: 1 (")
	cancel()
	testkit.Must(t, <-done)
}

// Each problem of a configuration is reported separately.
func TestExamine_configProblems_areReported(t *testing.T) {
	t.Parallel()
	_, err := config.Parse([]byte("databse: {}\nsources: {shop: {provider: nobody}}\n"),
		func(string) string { return "" })
	r := doctor.Examine(t.Context(), doctor.Options{ConfigError: err})
	want(t, r, "config.valid", doctor.Error, "databse")
	want(t, r, "config.valid", doctor.Error, `"nobody" does not exist`)
	if r.Errors < 3 {
		t.Errorf("%+v", r)
	}
}
