package testkit_test

import (
	"testing"
	"time"

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
