package app

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/spool"
)

// openSpool opens the spool, if one is configured, and returns its name. The ingest server closes
// it.
func (a *App) openSpool(cfg *config.Config, stallAfter time.Duration) (name string, err error) {
	if cfg.Ingest.Spool.Dir == "" {
		return "", nil
	}
	disk, err := spool.OpenFolder(cfg.Ingest.Spool.Dir)
	if err != nil {
		return "", fmt.Errorf("ingest.spool.dir: %w", err)
	}
	if name, err = spool.Name(disk); err != nil {
		return "", errors.Join(fmt.Errorf("ingest.spool.dir: %w", err), disk.Close())
	}
	s, err := spool.Open(disk, spool.Options{MaxBytes: int64(cfg.Ingest.Spool.MaxBytes),
		StallAfter: stallAfter, Logger: a.Logger.With("component", "spool")})
	if err != nil {
		return "", fmt.Errorf("ingest.spool.dir: %w", err)
	}
	if stats := s.Stats(); stats.Records > 0 {
		a.Logger.Info("the spool has deliveries of an earlier process; appending them now", "deliveries",
			stats.Records, "bytes", stats.Bytes, "oldest", stats.Oldest)
	}
	if stats := s.Stats(); stats.Damaged > 0 || stats.Quarantined > 0 {
		a.Logger.Error("the spool has quarantined files: acknowledged deliveries may be missing; postern verify "+
			"--spool describes each, and they are reported until they are removed",
			"damaged", stats.Damaged, "quarantined", stats.Quarantined, "dir", cfg.Ingest.Spool.Dir)
	}
	a.deliverySpool = s
	return name, nil
}

// connectStore opens the gateway's database and registers the sources. If the database does not
// respond and there is a spool, it sets databaseUnavailable and the process starts without it.
func (a *App) connectStore(ctx context.Context, cfg *config.Config, sessions int) (*pgxpool.Pool, events.Sources,
	error) {
	spooled := a.deliverySpool != nil
	a.databaseUnavailable = spooled // until it is checked
	pool, err := a.openPool(ctx, postgres.Options{URL: string(cfg.Database.URL), Role: "postern_gateway",
		AppName: "postern_gateway", MaxConns: int32(cfg.Database.MaxConnections), MinConns: int32(sessions)})
	if err != nil {
		return nil, events.Sources{}, err
	}
	timeout := storeCheckTimeout
	if spooled {
		timeout = startTimeout
	}
	known, err := checkStore(ctx, pool, cfg, timeout)
	a.databaseUnavailable = spooled && postgres.IsUnavailable(err)
	if a.databaseUnavailable {
		a.Logger.Warn("started without postgresql: the spool stores deliveries until it responds", "error", err)
		return pool, known, nil
	}
	return pool, known, err
}

const (
	// storeCheckTimeout limits one check of the database.
	storeCheckTimeout = 10 * time.Second
	// startTimeout limits the checks of servers that the process can start without: PostgreSQL if
	// there is a spool, and JetStream.
	startTimeout = 2 * time.Second
)

// checkStore checks that the database responds and has the expected schema, and registers the
// sources.
func checkStore(ctx context.Context, pool *pgxpool.Pool, cfg *config.Config, within time.Duration) (events.Sources,
	error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := postgres.CheckConnection(ctx, pool); err != nil {
		return events.Sources{}, err
	}
	if err := postgres.CheckSchema(ctx, pool); err != nil {
		return events.Sources{}, err
	}
	return register(ctx, pool, cfg)
}

// migrateAndCheckStore is checkStore for a database that may need migrations.
func (a *App) migrateAndCheckStore(ctx context.Context, pool *pgxpool.Pool, cfg *config.Config) (events.Sources,
	error) {
	if a.Migrate != nil {
		if err := a.Migrate(ctx); err != nil {
			return events.Sources{}, err
		}
	}
	return checkStore(ctx, pool, cfg, storeCheckTimeout)
}

// waitForStore lets the gateway write to the database once it responds. It returns an error if the
// database is the wrong one. The process then ends, and its deliveries remain in the spool.
func (a *App) waitForStore(ctx context.Context, pool *pgxpool.Pool, server *ingest.Server) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for checked := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if checked {
			continue
		}
		cfg := a.currentConfig.Load()
		known, err := a.migrateAndCheckStore(ctx, pool, cfg)
		if err == nil {
			server.Replace(gatewaySources(cfg, known))
			err = server.ConfirmDatabase(ctx)
		}
		switch {
		case err == nil:
			a.Logger.Info("postgresql responds")
			checked = true
			if a.OnDatabaseReturned != nil {
				a.OnDatabaseReturned()
			}
		case !postgres.IsUnavailable(err):
			return err
		}
	}
}
