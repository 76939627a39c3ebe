package testkit_test

import (
	"os"
	"os/exec"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestDatabase_twoDatabases_areSeparate(t *testing.T) {
	t.Parallel()
	began := time.Now()
	first := testkit.Database(t)
	t.Logf("first database after %s", time.Since(began))
	began = time.Now()
	second := testkit.Database(t)
	t.Logf("second database after %s", time.Since(began))

	if _, err := first.Pool.Exec(t.Context(),
		"INSERT INTO sources (name, provider) VALUES ('a', 'stripe')"); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := second.Role(t, "gateway").QueryRow(t.Context(), "SELECT count(*) FROM sources").Scan(&n); err != nil ||
		n != 0 {
		t.Fatalf("a row of another test's database is visible: %d, %v", n, err)
	}
	var who string
	if err := second.Role(t, "postern_processor").QueryRow(t.Context(), "SELECT current_user").Scan(&who); err != nil ||
		who != "postern_processor" {
		t.Fatalf("current_user is %q, %v", who, err)
	}
}

// The superuser's pool may hold a transaction open for as long as a slow machine takes. Sessions of
// roles have the product's timeout.
func TestDatabase_superuserPool_hasNoIdleTimeout(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for who, pool := range map[string]*pgxpool.Pool{"0": db.Pool, "15s": db.Role(t, "gateway")} {
		var limit string
		if err := pool.QueryRow(t.Context(), `SHOW idle_in_transaction_session_timeout`).Scan(&limit); err != nil ||
			limit != who {
			t.Errorf("idle_in_transaction_session_timeout is %q, %v, want %q", limit, err, who)
		}
	}
}

// Child programs of tests have the default handling of signals, also when the tests run under
// nohup.
func TestMain_ignoredSignals_childProgramsReceiveThem(t *testing.T) {
	t.Parallel()
	const inner = "TESTKIT_SIGNALS_INNER"
	if os.Getenv(inner) != "" {
		for _, signal := range []string{"HUP", "INT"} {
			if err := exec.Command("sh", "-c", "kill -"+signal+" $$; sleep 0").Run(); err == nil {
				t.Errorf("a program that a test starts ignores SIG%s", signal)
			}
		}
		return
	}
	outer := exec.CommandContext(t.Context(), "sh", "-c", `trap "" HUP INT; exec "$0" -test.run='^`+t.Name()+`$'`,
		os.Args[0])
	outer.Env = append(os.Environ(), inner+"=1")
	if out, err := outer.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
