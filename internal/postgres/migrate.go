package postgres

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"path"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"

	"github.com/postern-gateway/postern/migrations"
)

const migrationsTable = "postern.schema_migrations"

// Migrate applies every pending migration and tells how many those were. Many processes may call it at once: one works,
// the others wait and find nothing left. The login must be able to create schemas and roles.
func Migrate(ctx context.Context, url string) (applied int, err error) {
	cfg, err := sessionConfig(url)
	if err != nil {
		return 0, err
	}
	db := stdlib.OpenDB(*cfg)
	defer func() { err = errors.Join(err, db.Close()) }()
	err = locked(ctx, db, func() error {
		applied, err = up(ctx, db)
		return err
	})
	if err != nil {
		return applied, fmt.Errorf("migrate schema: %w%s%s", err, advice(err), createRight(ctx, db, err))
	}
	return applied, nil
}

func sessionConfig(url string) (*pgx.ConnConfig, error) {
	cfg, err := pgx.ParseConfig(url)
	if err != nil {
		return nil, fmt.Errorf("read database URL: %w", err)
	}
	configure(cfg, Options{URL: url, AppName: "postern-migrate"})
	return cfg, nil
}

func up(ctx context.Context, db *sql.DB) (int, error) {
	p, err := goose.NewProvider(goose.DialectPostgres, db, migrations.Files,
		goose.WithTableName(migrationsTable), goose.WithDisableGlobalRegistry(true))
	if err != nil {
		return 0, fmt.Errorf("read embedded migrations: %w", err)
	}
	results, err := p.Up(ctx)
	if partial := (*goose.PartialError)(nil); errors.As(err, &partial) {
		return len(partial.Applied), fmt.Errorf("apply migration %s: %w", path.Base(partial.Failed.Source.Path), partial.Err)
	}
	return len(results), err
}

// locked runs fn in a database that no other process migrates meanwhile, with the schema that holds goose's table in place.
// The lock is ours, since goose's own makes its table before it locks, and waits a second or more between tries.
func locked(ctx context.Context, db *sql.DB, fn func() error) error {
	conn, err := db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() // which also frees the lock: closing db ends the session
	if err := lockSchema(ctx, conn); err != nil {
		return fmt.Errorf("lock schema: %w", err)
	}
	if _, err := conn.ExecContext(ctx, createSchema); err != nil {
		return fmt.Errorf("create schema postern: %w", err)
	}
	return fn()
}

const missingCreateRight = `
SELECT format('; as an administrator run: GRANT CREATE ON DATABASE %1$I TO %2$I; or make it the owner: ALTER DATABASE %1$I OWNER TO %2$I',
  current_database(), session_user)
WHERE NOT has_database_privilege(current_database(), 'CREATE')`

// createRight is what to run where err comes of a login that may not create schemas in the database; else "".
func createRight(ctx context.Context, db *sql.DB, err error) (advice string) {
	if Code(err) != insufficientPrivilege || db.QueryRowContext(ctx, missingCreateRight).Scan(&advice) != nil {
		return "" // the right is there, or the server is gone: err says what is wrong
	}
	return advice
}

// createSchema looks first, since CREATE SCHEMA IF NOT EXISTS asks for the right to create even where there is nothing to do.
const createSchema = `DO $$ BEGIN IF to_regnamespace('postern') IS NULL THEN CREATE SCHEMA postern; END IF; END $$`

// lockSchema polls, since a session that waits inside pg_advisory_lock holds a snapshot, and CREATE INDEX CONCURRENTLY in the
// process that migrates would wait for that one.
func lockSchema(ctx context.Context, conn *sql.Conn) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		var got bool
		err := conn.QueryRowContext(ctx, `SELECT pg_try_advisory_lock(hashtextextended('postern.migrate', 0))`).Scan(&got)
		if err != nil || got {
			return err
		}
		select {
		case <-tick.C:
		case <-ctx.Done():
			return fmt.Errorf("another process migrates: %w", context.Cause(ctx))
		}
	}
}
