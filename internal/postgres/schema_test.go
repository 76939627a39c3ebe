package postgres_test

import (
	"errors"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"

	"golang.org/x/sync/errgroup"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestManyMayMigrateAtOnce(t *testing.T) {
	t.Parallel()
	db := testkit.EmptyDatabase(t, "")
	before, err := postgres.MigrationStatus(t.Context(), db.URL)
	if err != nil || len(before) == 0 {
		t.Fatalf("status of an empty database: %d migrations, %v", len(before), err)
	}
	var total atomic.Int64
	var group errgroup.Group
	for range 8 {
		group.Go(func() error {
			n, err := postgres.Migrate(t.Context(), db.URL)
			total.Add(int64(n))
			return err
		})
	}
	if err := group.Wait(); err != nil || int(total.Load()) != len(before) {
		t.Errorf("applied %d of %d migrations, %v", total.Load(), len(before), err)
	}
	after, err := postgres.MigrationStatus(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	for i, m := range after {
		if !before[i].AppliedAt.IsZero() || m.AppliedAt.IsZero() || m.Number != int64(i+1) {
			t.Errorf("migration %+v, before %+v; want pending, then applied", m, before[i])
		}
	}
}

func TestCheckSchema(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for _, role := range []string{"gateway", "processor", "operator"} {
		if err := postgres.CheckSchema(t.Context(), db.Role(t, role)); err != nil {
			t.Errorf("a migrated database, as %s: %v", role, err)
		}
	}
	for statement, want := range map[string]error{
		"INSERT INTO schema_migrations (version_id, is_applied) VALUES (9999, true)": postgres.ErrSchemaNewer,
		"DELETE FROM schema_migrations WHERE version_id > 1":                         postgres.ErrSchemaBehind,
		"DROP TABLE schema_migrations":                                               postgres.ErrSchemaBehind,
	} {
		db := testkit.Database(t)
		if _, err := db.Pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
		if err := postgres.CheckSchema(t.Context(), db.Pool); !errors.Is(err, want) {
			t.Errorf("after %s: %v, want %v", statement, err, want)
		}
	}
}

// The first migration makes the roles, the last ones give them their rights.
func TestARoleWithoutRightsMeansTheSchemaIsBehind(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	if _, err := db.Pool.Exec(t.Context(), "REVOKE SELECT ON schema_migrations FROM postern_gateway, postern_operator"); err != nil {
		t.Fatal(err)
	}
	err := postgres.CheckSchema(t.Context(), db.Role(t, "gateway"))
	if !errors.Is(err, postgres.ErrSchemaBehind) || !strings.Contains(err.Error(), "postern migrate up") {
		t.Errorf("got %v, want ErrSchemaBehind with what to run", err)
	}
}

// A login of operators has no rights of its own but may take the operator's role.
func TestMigrationStatusForAnOperator(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	if _, err := db.Pool.Exec(t.Context(), "DROP ROLE IF EXISTS status_operator, status_nobody; CREATE ROLE status_operator LOGIN NOINHERIT; "+
		"GRANT postern_operator TO status_operator; CREATE ROLE status_nobody LOGIN"); err != nil {
		t.Fatal(err)
	}
	as := func(login string) string {
		u, err := url.Parse(db.URL)
		if err != nil {
			t.Fatal(err)
		}
		q := u.Query()
		q.Set("user", login)
		u.RawQuery = q.Encode()
		return u.String()
	}
	list, err := postgres.MigrationStatus(t.Context(), as("status_operator"))
	if err != nil || len(list) == 0 || list[len(list)-1].AppliedAt.IsZero() {
		t.Errorf("as an operator: %v, %v", list, err)
	}
	_, err = postgres.MigrationStatus(t.Context(), as("status_nobody"))
	for _, want := range []string{`run: GRANT postern_operator TO "status_nobody"`, "; or use the login that migrates"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("as somebody else: %v, want %q in it", err, want)
		}
	}
	if _, err := db.Pool.Exec(t.Context(), "REVOKE SELECT ON schema_migrations FROM postern_operator"); err != nil {
		t.Fatal(err)
	}
	if _, err := postgres.MigrationStatus(t.Context(), as("status_operator")); err == nil || !strings.Contains(err.Error(), "use the login that migrates") {
		t.Errorf("before the operator has its rights: %v", err)
	}
}
