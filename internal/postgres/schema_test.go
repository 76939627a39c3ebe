package postgres_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMigrate_concurrentCalls_applyOnce(t *testing.T) {
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
	testkit.Must(t, err)
	for i, m := range after {
		if !before[i].AppliedAt.IsZero() || m.AppliedAt.IsZero() || m.Number != int64(i+1) {
			t.Errorf("migration %+v, before %+v; want pending, then applied", m, before[i])
		}
	}
}

func TestCheckSchema_versions_areCompared(t *testing.T) {
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
		db.Exec(t, statement)
		if err := postgres.CheckSchema(t.Context(), db.Pool); !errors.Is(err, want) {
			t.Errorf("after %s: %v, want %v", statement, err, want)
		}
	}
}

// The first migration creates the roles, and the last ones grant their rights.
func TestCheckSchema_roleWithoutRights_isBehind(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	db.Exec(t, "REVOKE SELECT ON schema_migrations FROM postern_gateway, postern_operator")
	err := postgres.CheckSchema(t.Context(), db.Role(t, "gateway"))
	if !errors.Is(err, postgres.ErrSchemaBehind) || !strings.Contains(err.Error(), "postern migrate up") {
		t.Errorf("got %v, want ErrSchemaBehind with what to run", err)
	}
}

// A login of operators has only the rights of the operator's role.
func TestMigrationStatus_operatorLogin_isAllowed(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	db.Exec(t, "DROP ROLE IF EXISTS status_operator, status_nobody; CREATE ROLE status_operator LOGIN NOINHERIT; "+
		"GRANT postern_operator TO status_operator; CREATE ROLE status_nobody LOGIN")
	as := func(login string) string { return withParam(t, db.URL, "user", login) }
	list, err := postgres.MigrationStatus(t.Context(), as("status_operator"))
	if err != nil || len(list) == 0 || list[len(list)-1].AppliedAt.IsZero() {
		t.Errorf("as an operator: %v, %v", list, err)
	}
	_, err = postgres.MigrationStatus(t.Context(), as("status_nobody"))
	for _, want := range []string{`run: GRANT postern_operator TO "status_nobody"`,
		"; or use the login for migrations"} {
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("as somebody else: %v, want %q in it", err, want)
		}
	}
	db.Exec(t, "REVOKE SELECT ON schema_migrations FROM postern_operator")
	if _, err := postgres.MigrationStatus(t.Context(), as("status_operator")); err == nil ||
		!strings.Contains(err.Error(), "use the login for migrations") {
		t.Errorf("before the operator has its rights: %v", err)
	}
}

// administrator runs statements on a database as its superuser.
func administrator(t *testing.T, db *testkit.DB) func(statement string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.URL)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return func(statement string) { t.Helper(); testkit.ExecSQL(t, conn, statement) }
}

// A migration without a server names the database and the remedy, and each attempt once.
func TestMigrate_noServer_namesDatabaseAndRemedy(t *testing.T) {
	t.Parallel()
	const url = "postgres://u@127.0.0.1:1/d"
	_, migrateErr := postgres.Migrate(t.Context(), url)
	_, statusErr := postgres.MigrationStatus(t.Context(), url)
	for _, err := range []error{migrateErr, statusErr} {
		text := fmt.Sprint(err)
		if strings.Count(text, "refused") != 1 || !strings.Contains(text, `database "d" on `) ||
			!strings.HasSuffix(text, "check that the server is running and that the URL is correct") {
			t.Errorf("got %v", err)
		}
	}
}

// If a login lacks the right to create, the error says what an administrator must run, even if the
// schema exists. With either remedy the migration succeeds.
func TestMigrate_missingRight_saysWhatToRun(t *testing.T) {
	t.Parallel()
	testkit.Database(t) // the template database has already created Postern's roles
	for login, prepare := range map[string]string{"Without_Right": "",
		"without_right_but_schema": "CREATE SCHEMA postern AUTHORIZATION "} {
		t.Run(login, func(t *testing.T) {
			t.Parallel()
			db := testkit.EmptyDatabase(t, "")
			run := administrator(t, db)
			quoted := `"` + login + `"`
			run("DROP ROLE IF EXISTS " + quoted) // of an earlier run
			run("CREATE ROLE " + quoted + " LOGIN IN ROLE postern_maintenance, postern_gateway, postern_processor, " +
				"postern_operator, postern_reader")
			if prepare != "" {
				run(prepare + quoted)
			}
			address := withParam(t, db.URL, "user", login)
			_, err := postgres.Migrate(t.Context(), address)
			if err == nil {
				t.Fatal("migrated without the right to create")
			}
			_, advice, _ := strings.Cut(err.Error(), "as an administrator run: ")
			grant, own, _ := strings.Cut(advice, "; or make it the owner: ")
			if !strings.HasPrefix(grant, "GRANT CREATE ON DATABASE test_") ||
				!strings.HasPrefix(own, "ALTER DATABASE test_") {
				t.Fatalf("no advice in: %v", err)
			}
			run(map[bool]string{true: grant, false: own}[prepare == ""])
			if _, err := postgres.Migrate(t.Context(), address); err != nil {
				t.Errorf("after %s: %v", advice, err)
			}
		})
	}
}
