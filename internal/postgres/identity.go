package postgres

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/lifecycle"
)

// ErrOtherDatabase is the error for a database with another identity than Options.Identity.
var ErrOtherDatabase = errors.New("a different database than expected")

const identitySQL = `
SELECT c.system_identifier || '/' || d.oid FROM pg_control_system() AS c, pg_database AS d
	WHERE d.datname = current_database()`

// Identity identifies the database at a URL: the system identifier of its cluster, which standbys
// share, and the database's oid. It is the same for each address and login. It is empty where the
// login may not read it.
func Identity(ctx context.Context, url string) (id string, err error) {
	cfg, err := sessionConfig(url)
	if err != nil {
		return "", err
	}
	ctx, cancel := lifecycle.WithTimeout(ctx, "identify the database", setupTimeout)
	defer cancel()
	conn, err := pgx.ConnectConfig(ctx, cfg)
	if err != nil {
		return "", connectError(&cfg.Config, err)
	}
	defer func() { err = errors.Join(err, conn.Close(context.WithoutCancel(ctx))) }()
	return identity(ctx, conn)
}

// CheckIdentity returns ErrOtherDatabase unless the database at a URL has the given identity. An
// empty identity matches any database.
func CheckIdentity(ctx context.Context, url, want string) error {
	if want == "" {
		return nil
	}
	got, err := Identity(ctx, url)
	if err != nil {
		return err
	}
	return compareIdentity(got, want)
}

func checkIdentity(ctx context.Context, conn *pgx.Conn, want string) error {
	if want == "" {
		return nil
	}
	got, err := identity(ctx, conn)
	if err != nil {
		return err
	}
	return compareIdentity(got, want)
}

func compareIdentity(got, want string) error {
	if got != "" && got != want {
		return fmt.Errorf("%w: it is %s, but %s is expected", ErrOtherDatabase, got, want)
	}
	return nil
}

func identity(ctx context.Context, conn *pgx.Conn) (string, error) {
	var id string
	err := conn.QueryRow(ctx, identitySQL, pgx.QueryExecModeSimpleProtocol).Scan(&id)
	if Code(err) == "42501" { // a hosted service may allow the function to its own logins only
		return "", nil
	}
	if err != nil {
		return "", fmt.Errorf("identify the database: %w", err)
	}
	return id, nil
}
