package postgres_test

import (
	"context"
	"net/url"
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

// administrator runs statements on a database as its superuser.
func administrator(t *testing.T, db *testkit.DB) func(statement string) {
	t.Helper()
	conn, err := pgx.Connect(t.Context(), db.URL)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close(context.WithoutCancel(t.Context())) })
	return func(statement string) {
		t.Helper()
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatalf("%s: %v", statement, err)
		}
	}
}

// A login that may not create in the database is told what an administrator has to run, also where the schema is there
// already; with either of the two it migrates.
func TestALoginThatMayNotCreateIsToldWhatToRun(t *testing.T) {
	t.Parallel()
	testkit.Database(t) // whose template has made Postern's roles
	for login, prepare := range map[string]string{"Without_Right": "", "without_right_but_schema": "CREATE SCHEMA postern AUTHORIZATION "} {
		t.Run(login, func(t *testing.T) {
			t.Parallel()
			db := testkit.EmptyDatabase(t, "")
			run := administrator(t, db)
			quoted := `"` + login + `"`
			run("DROP ROLE IF EXISTS " + quoted) // of an earlier run
			run("CREATE ROLE " + quoted + " LOGIN IN ROLE postern_maintenance, postern_gateway, postern_processor, postern_operator, postern_reader")
			if prepare != "" {
				run(prepare + quoted)
			}
			u, err := url.Parse(db.URL)
			if err != nil {
				t.Fatal(err)
			}
			q := u.Query()
			q.Set("user", login)
			u.RawQuery = q.Encode()
			_, err = postgres.Migrate(t.Context(), u.String())
			if err == nil {
				t.Fatal("migrated without the right to create")
			}
			_, advice, _ := strings.Cut(err.Error(), "as an administrator run: ")
			grant, own, _ := strings.Cut(advice, "; or make it the owner: ")
			if !strings.HasPrefix(grant, "GRANT CREATE ON DATABASE test_") || !strings.HasPrefix(own, "ALTER DATABASE test_") {
				t.Fatalf("no advice in: %v", err)
			}
			run(map[bool]string{true: grant, false: own}[prepare == ""])
			if _, err := postgres.Migrate(t.Context(), u.String()); err != nil {
				t.Errorf("after %s: %v", advice, err)
			}
		})
	}
}

func TestConnectErrorsNameEveryHostOnce(t *testing.T) {
	t.Parallel()
	_, err := postgres.Connect(t.Context(), postgres.Options{URL: "postgres://u:hunter2@127.0.0.1:1,127.0.0.1:2/d"})
	if err == nil || !strings.Contains(err.Error(), `database "d" on 127.0.0.1 port 1, 127.0.0.1 port 2 as "u"`) || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("got %v, want both hosts and no password", err)
	}
}
