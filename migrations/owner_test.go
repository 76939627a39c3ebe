package migrations_test

import (
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// ownedBy is an empty database that belongs to a new login, and the URL of that login. options end CREATE ROLE.
func ownedBy(t *testing.T, login, options string) string {
	t.Helper()
	testkit.Database(t) // whose template has made Postern's roles
	db := testkit.EmptyDatabase(t, "")
	admin, err := pgxpool.New(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	u, err := url.Parse(db.URL)
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{"DROP ROLE IF EXISTS " + login, "CREATE ROLE " + login + " LOGIN " + options,
		"ALTER DATABASE " + strings.TrimPrefix(u.Path, "/") + " OWNER TO " + login} {
		if _, err := admin.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	q := u.Query()
	q.Set("user", login)
	u.RawQuery = q.Encode()
	return u.String()
}

func TestAnOwnerWhoIsNoSuperuserMigrates(t *testing.T) {
	t.Parallel()
	url := ownedBy(t, "owner_with_roles", "IN ROLE postern_maintenance, postern_gateway, postern_processor, postern_operator, postern_reader")
	if got, err := postgres.Migrate(t.Context(), url); err != nil || got != len(files(t)) {
		t.Fatalf("applied %d, %v; want %d", got, err, len(files(t)))
	}
	for _, role := range []string{"postern_gateway", "postern_processor", "postern_maintenance", "postern_operator"} {
		pool, err := postgres.Connect(t.Context(), postgres.Options{URL: url, Role: role})
		if err != nil {
			t.Fatal(err)
		}
		pool.Close()
	}
}

func TestALoginThatMayNotMakeRolesIsToldWhatToRun(t *testing.T) {
	t.Parallel()
	_, err := postgres.Migrate(t.Context(), ownedBy(t, "owner_without_roles", ""))
	if err == nil || !strings.Contains(err.Error(), "ALTER ROLE owner_without_roles CREATEROLE") {
		t.Errorf("got %v; want what an administrator can run", err)
	}
}

// A daemon's login is granted the daemon's role alone; its admin interface acts as the operator.
func TestDaemonsMayActAsTheOperatorAndInheritNothing(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for _, role := range []string{"gateway", "processor"} {
		pool := db.Role(t, role)
		var member, inherits bool
		err := pool.QueryRow(t.Context(), `SELECT pg_has_role(current_user, 'postern_operator', 'MEMBER'), pg_has_role(current_user, 'postern_operator', 'USAGE')`).
			Scan(&member, &inherits)
		if err != nil || !member || inherits {
			t.Errorf("%s: may act as the operator %t, inherits %t, %v; want true and false", role, member, inherits, err)
		}
	}
}
