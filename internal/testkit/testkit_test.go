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

func TestDatabase(t *testing.T) {
	t.Parallel()
	began := time.Now()
	first := testkit.Database(t)
	t.Logf("first database after %s", time.Since(began))
	began = time.Now()
	second := testkit.Database(t)
	t.Logf("second database after %s", time.Since(began))

	if _, err := first.Pool.Exec(t.Context(), "INSERT INTO sources (name, provider) VALUES ('a', 'stripe')"); err != nil {
		t.Fatal(err)
	}
	var n int
	if err := second.Role(t, "gateway").QueryRow(t.Context(), "SELECT count(*) FROM sources").Scan(&n); err != nil || n != 0 {
		t.Fatalf("another test's row is seen: %d, %v", n, err)
	}
	var who string
	if err := second.Role(t, "postern_processor").QueryRow(t.Context(), "SELECT current_user").Scan(&who); err != nil || who != "postern_processor" {
		t.Fatalf("acts as %q, %v", who, err)
	}
}

// The test's own hand may hold a transaction for as long as a slow machine takes; sessions of roles are as the product's.
func TestHandIsPatient(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for who, pool := range map[string]*pgxpool.Pool{"0": db.Pool, "15s": db.Role(t, "gateway")} {
		var limit string
		if err := pool.QueryRow(t.Context(), `SHOW idle_in_transaction_session_timeout`).Scan(&limit); err != nil || limit != who {
			t.Errorf("may be idle in a transaction for %q, %v, want %q", limit, err, who)
		}
	}
}

// The programs that tests start have the signals' default dispositions, also where the tests were started under nohup.
func TestMain_signalsAreIgnored_programsGetThem(t *testing.T) {
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
	outer := exec.CommandContext(t.Context(), "sh", "-c", `trap "" HUP INT; exec "$0" -test.run='^`+t.Name()+`$'`, os.Args[0])
	outer.Env = append(os.Environ(), inner+"=1")
	if out, err := outer.CombinedOutput(); err != nil {
		t.Errorf("%v\n%s", err, out)
	}
}
