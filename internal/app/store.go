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

// openSpool opens the spool that the configuration names, and tells its name; nil where it names none. Who runs it closes it.
func (a *App) openSpool(cfg *config.Config) (_ *spool.Spool, name string, err error) {
	if cfg.Ingest.Spool.Dir == "" {
		return nil, "", nil
	}
	disk, err := spool.Folder(cfg.Ingest.Spool.Dir)
	if err != nil {
		return nil, "", fmt.Errorf("ingest.spool.dir: %w", err)
	}
	if name, err = spool.Name(disk); err != nil {
		return nil, "", errors.Join(fmt.Errorf("ingest.spool.dir: %w", err), disk.Close())
	}
	s, err := spool.Open(disk, spool.Options{MaxBytes: int64(cfg.Ingest.Spool.MaxBytes), Logger: a.Logger.With("component", "spool")})
	if err != nil {
		return nil, "", fmt.Errorf("ingest.spool.dir: %w", err)
	}
	if left := s.Stats(); left.Records > 0 {
		a.Logger.Info("the spool holds deliveries of an earlier process; they are appended now", "deliveries", left.Records, "bytes", left.Bytes, "oldest", left.Oldest)
	}
	if left := s.Stats(); left.Damaged > 0 || left.Refused > 0 {
		a.Logger.Error("the spool has files that were set apart: acknowledged deliveries may be missing; "+
			"postern verify --spool tells of each, and they are reported until they are removed",
			"damaged", left.Damaged, "refused", left.Refused, "dir", cfg.Ingest.Spool.Dir)
	}
	return s, name, nil
}

// gatewayStore is the database that deliveries go to, and its numbers of the sources. Where it does not answer and there is a spool, the process starts without it: a.away.
func (a *App) gatewayStore(ctx context.Context, cfg *config.Config, spooled bool, sessions int) (*pgxpool.Pool, events.Sources, error) {
	a.spooled, a.away = spooled, spooled // away until it is proven
	pool, err := a.openPool(ctx, postgres.Options{URL: string(cfg.Database.URL), Role: "postern_gateway", AppName: "postern_gateway", MaxConns: int32(cfg.Database.MaxConnections), Ready: int32(sessions)})
	if err != nil {
		return nil, events.Sources{}, err
	}
	within := proveWithin
	if spooled {
		within = startWithin
	}
	known, err := proveStore(ctx, pool, cfg, within)
	a.away = spooled && postgres.IsUnavailable(err)
	if a.away {
		a.Logger.Warn("started without postgresql: deliveries are kept in the spool until it answers", "error", err)
		return pool, known, nil
	}
	return pool, known, err
}

const (
	// proveWithin bounds one look at the database.
	proveWithin = 10 * time.Second
	// startWithin bounds what a start asks of those without whom the process can start: PostgreSQL where there is a spool, JetStream.
	startWithin = 2 * time.Second
)

// proveStore sees that the database answers, has our schema, and knows the sources.
func proveStore(ctx context.Context, pool *pgxpool.Pool, cfg *config.Config, within time.Duration) (events.Sources, error) {
	ctx, cancel := context.WithTimeout(ctx, within)
	defer cancel()
	if err := postgres.Prove(ctx, pool); err != nil {
		return events.Sources{}, err
	}
	if err := postgres.CheckSchema(ctx, pool); err != nil {
		return events.Sources{}, err
	}
	return register(ctx, pool, cfg)
}

// migratedStore is proveStore of a database that may be of an older version, or empty.
func (a *App) migratedStore(ctx context.Context, pool *pgxpool.Pool, cfg *config.Config) (events.Sources, error) {
	if a.Migrate != nil {
		if err := a.Migrate(ctx); err != nil {
			return events.Sources{}, err
		}
	}
	return proveStore(ctx, pool, cfg, proveWithin)
}

// awaitStore lets the gateway write to the database once it answers. A database that is not ours ends the process: what is spooled waits for the right one.
func (a *App) awaitStore(ctx context.Context, pool *pgxpool.Pool, server *ingest.Server) error {
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for proven := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		if proven {
			continue
		}
		cfg := a.inUse.Load()
		known, err := a.migratedStore(ctx, pool, cfg)
		if err == nil {
			server.Replace(gatewaySources(cfg, known))
			err = server.Proven(ctx)
		}
		switch {
		case err == nil:
			a.Logger.Info("postgresql answers")
			proven = true
			if a.Returned != nil {
				a.Returned()
			}
		case !postgres.IsUnavailable(err):
			return err
		}
	}
}
