package postgres

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/pressly/goose/v3"

	"github.com/postern-gateway/postern/migrations"
)

// Migration is one numbered change of the schema.
type Migration struct {
	Number int64
	// Name is the file name: NNNN_subject.sql.
	Name string
	// AppliedAt is zero for a pending migration.
	AppliedAt time.Time
}

const appliedMigrationsSQL = `SELECT version_id, max(tstamp) FROM postern.schema_migrations WHERE is_applied
	GROUP BY version_id`

// MigrationStatus lists the migrations of this binary, in order, with the time when each was
// applied. It changes nothing.
func MigrationStatus(ctx context.Context, url string) ([]Migration, error) {
	cfg, err := sessionConfig(url)
	if err != nil {
		return nil, err
	}
	list, err := embeddedMigrations()
	if err != nil {
		return nil, err
	}
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("read migration status: %w", connectError(&cfg.Config, err))
	}
	defer conn.Close(context.WithoutCancel(ctx))
	err = readApplied(ctx, conn, list)
	if Code(err) == insufficientPrivilege {
		// A login of daemons or operators has only the rights of its roles, so a role must be set.
		if roleErr := setRole(ctx, conn, "postern_operator"); roleErr != nil {
			return nil, fmt.Errorf("read migration status: %w; or use the login for migrations", roleErr)
		}
		err = readApplied(ctx, conn, list)
	}
	switch {
	case Code(err) == insufficientPrivilege:
		return nil, fmt.Errorf("read migration status: postern_operator may not read it, so not all migrations were "+
			"applied; use the login for migrations (%w)", err)
	case err != nil && !isNeverMigrated(err):
		return nil, fmt.Errorf("read migration status: %w", err)
	}
	return list, nil
}

const insufficientPrivilege = "42501"

// readApplied sets in list the time when each migration was applied.
func readApplied(ctx context.Context, conn *pgx.Conn, list []Migration) error {
	var number int64
	var at time.Time
	rows, _ := conn.Query(ctx, appliedMigrationsSQL) // ForEachRow returns the error
	_, err := pgx.ForEachRow(rows, []any{&number, &at}, func() error {
		for i := range list {
			if list[i].Number == number {
				list[i].AppliedAt = at
			}
		}
		return nil
	})
	return err
}

// The errors of CheckSchema.
var (
	// ErrSchemaBehind: the database lacks migrations of this binary.
	ErrSchemaBehind = errors.New("the schema is older than this binary; run: postern migrate up")
	// ErrSchemaNewer: the database has migrations that this binary does not have.
	ErrSchemaNewer = errors.New("the schema is newer than this binary; install the release that made it, " +
		"or a later one")
)

const schemaVersionSQL = `SELECT coalesce(max(version_id), 0) FROM postern.schema_migrations WHERE is_applied`

// CheckSchema returns nil if the database has exactly the migrations of this binary, else
// ErrSchemaBehind or ErrSchemaNewer. A daemon calls it before it starts its loops.
func CheckSchema(ctx context.Context, pool *pgxpool.Pool) error {
	list, err := embeddedMigrations()
	if err != nil {
		return err
	}
	want := list[len(list)-1].Number
	var have int64
	err = pool.QueryRow(ctx, schemaVersionSQL).Scan(&have)
	switch {
	case Code(err) == insufficientPrivilege:
		// The first migration creates the roles, and the last ones grant their rights.
		return fmt.Errorf("check schema: the role may not read the applied migrations, so not all of them "+
			"were applied: %w (%w)", ErrSchemaBehind, err)
	case err != nil && !isNeverMigrated(err):
		return fmt.Errorf("check schema: %w", err)
	case have < want:
		return fmt.Errorf("check schema: at migration %d, but %d is needed: %w", have, want, ErrSchemaBehind)
	case have > want:
		return fmt.Errorf("check schema: at migration %d, but this binary ends at %d: %w", have, want, ErrSchemaNewer)
	}
	return nil
}

// isNeverMigrated reports whether the table of applied migrations, or its schema, does not exist.
func isNeverMigrated(err error) bool {
	code := Code(err)
	return code == "42P01" || code == "3F000"
}

// embeddedMigrations lists the migrations of this binary by number.
func embeddedMigrations() ([]Migration, error) {
	entries, err := migrations.Files.ReadDir(".")
	if err == nil && len(entries) == 0 {
		err = errors.New("none")
	}
	if err != nil {
		return nil, fmt.Errorf("read embedded migrations: %w", err)
	}
	list := make([]Migration, len(entries))
	for i, e := range entries {
		number, err := goose.NumericComponent(e.Name())
		if err != nil {
			return nil, fmt.Errorf("read embedded migration %s: %w", e.Name(), err)
		}
		list[i] = Migration{Number: number, Name: e.Name()}
	}
	return list, nil
}
