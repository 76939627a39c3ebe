package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/postern-gateway/postern/migrations"
)

const migrationsTable = "postern.schema_migrations"

// Migrate applies every pending migration and returns how many it applied. Several processes may
// call it at once: one applies them, the others wait and find none pending. The login must be
// allowed to create schemas and roles.
func Migrate(ctx context.Context, url string) (applied int, err error) {
	cfg, err := sessionConfig(url)
	if err != nil {
		return 0, err
	}
	db := stdlib.OpenDB(*cfg)
	defer func() { err = errors.Join(err, db.Close()) }()
	err = withMigrationLock(ctx, db, func() error {
		applied, err = applyMigrations(ctx, db)
		return err
	})
	if attempts := (*pgconn.ConnectError)(nil); errors.As(err, &attempts) {
		return applied, fmt.Errorf("migrate schema: %w", connectError(&cfg.Config, err))
	}
	if err != nil {
		return applied, fmt.Errorf("migrate schema: %w%s%s", err, connectAdvice(err), createRightAdvice(ctx, db, err))
	}
	return applied, nil
}

func sessionConfig(url string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("read database URL: %w", err)
	}
	configureSession(cfg, Options{URL: url, AppName: "postern-migrate"})
	return cfg, nil
}

func applyMigrations(ctx context.Context, db *sql.DB) (int, error) {
	p, err := goose.NewProvider(goose.DialectPostgres, db, migrations.Files,
		goose.WithTableName(migrationsTable), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return 0, fmt.Errorf("read embedded migrations: %w", err)
	}
	results, err := p.Up(ctx)
	if partial := (*goose.PartialError)(nil); errors.As(err, &partial) {
		return len(partial.Applied), fmt.Errorf("apply migration %s: %w", path.Base(partial.Failed.Source.Path),
			partial.Err)
	}
	return len(results), err
}

// withMigrationLock runs fn while no other process migrates the database, after it created the
// schema for goose's table. It uses its own lock, because goose creates its table before it locks,
// and waits a second or more between attempts.
func withMigrationLock(ctx context.Context, db *sql.DB, fn func() error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() // which also releases the lock: closing db ends the session
	if err := lockSchema(ctx, conn); err != nil {
		return fmt.Errorf("lock schema: %w", err)
	}
	if _, err := conn.ExecContext(ctx, createSchemaSQL); err != nil {
		return fmt.Errorf("create schema postern: %w", err)
	}
	return fn()
}

const missingCreateRightSQL = `
SELECT format('; as an administrator run: GRANT CREATE ON DATABASE %1$I TO %2$I; ' ||
  'or make it the owner: ALTER DATABASE %1$I OWNER TO %2$I',
  current_database(), session_user)
WHERE NOT has_database_privilege(current_database(), 'CREATE')`

// createRightAdvice returns what to run if err means that the login may not create schemas in the
// database; else "".
func createRightAdvice(ctx context.Context, db *sql.DB, err error) (remedy string) {
	if Code(err) != insufficientPrivilege || db.QueryRowContext(ctx, missingCreateRightSQL).Scan(&remedy) != nil {
		return "" // the right exists, or the server is unavailable: err gives the reason
	}
	return remedy
}

// createSchemaSQL checks first, because CREATE SCHEMA IF NOT EXISTS requires the right to create
// even where the schema exists.
const createSchemaSQL = `DO $$ BEGIN IF to_regnamespace('postern') IS NULL THEN CREATE SCHEMA postern; END IF; END $$`

// lockSchema polls. A session that waits inside pg_advisory_lock holds a snapshot, and CREATE INDEX
// CONCURRENTLY in the migrating process would wait for it.
func lockSchema(ctx context.Context, conn *sql.Conn) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var got bool
		err := conn.QueryRowContext(ctx, `SELECT pg_try_advisory_lock(hashtextextended('postern.migrate', 0))`).Scan(
			&got)
		if err != nil || got {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("another process is migrating: %w", context.Cause(ctx))
		}
	}
}
