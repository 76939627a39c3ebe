package doctor_test

import (
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/doctor"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// configured returns a configuration without problems, except that its spool is in a test's folder.
func configured(t *testing.T) *config.Config {
	t.Helper()
	c := &config.Config{}
	c.Complete()
	c.Ingest.MaxConnections = 10
	c.Ingest.Spool = config.Spool{Dir: filepath.Join(t.TempDir(), "spool"), MaxBytes: 64 << 20, UnsafeDir: true}
	return c
}

// prepare makes a database look like one with running daemons: it has partitions for the next days,
// and a republisher.
func prepare(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	testkit.Must(t, events.EnsurePartitions(t.Context(), pool, 8*24*time.Hour))
	testkit.ExecSQL(t, pool, `INSERT INTO checkpoints (job, run, cursor, lease_owner, lease_until, updated_at)
		VALUES ('republisher', 0, 0, 'some/1', now() + interval '1 h', now())`)
}

// cluster starts a durable server for a test, with additional settings.
func cluster(t *testing.T, settings map[string]string) (owner *pgxpool.Pool, url string) {
	t.Helper()
	dir, err := os.MkdirTemp("", "postern-doctor-")
	testkit.Must(t, err)
	if err := os.Chmod(dir, 0o711); err != nil { //nolint:gosec // the server may run as another account
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	pg, err := postgres.StartCluster(t.Context(), postgres.ClusterOptions{Dir: filepath.Join(dir, "cluster"),
		Settings: settings})
	testkit.Must(t, err)
	t.Cleanup(func() {
		if err := pg.Stop(t.Context()); err != nil {
			t.Error(err)
		}
	})
	if _, err := postgres.Migrate(t.Context(), pg.URL()); err != nil {
		t.Fatal(err)
	}
	owner = open(t, pg.URL(), "")
	prepare(t, owner)
	return owner, pg.URL()
}

func open(t *testing.T, url, role string) *pgxpool.Pool {
	t.Helper()
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: url, Role: role, MaxConns: 2})
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	return pool
}

func connect(t *testing.T, url string) *stream.Conn {
	t.Helper()
	conn, err := stream.Connect(stream.Options{URL: url, Logger: slog.New(slog.DiscardHandler)})
	testkit.Must(t, err)
	t.Cleanup(conn.Close)
	return conn
}

// findings returns the checks with a name that are not OK.
func findings(r *doctor.Report, name string) (bad []doctor.Check) {
	for _, k := range r.Checks {
		if k.Name == name && k.Verdict != doctor.OK {
			bad = append(bad, k)
		}
	}
	return bad
}

// want fails the test unless one check with the name has the verdict, the finding and the advice.
func want(t *testing.T, r *doctor.Report, name string, verdict doctor.Verdict, found string) {
	t.Helper()
	if !slices.ContainsFunc(r.Checks, func(k doctor.Check) bool {
		return k.Name == name && k.Verdict == verdict && strings.Contains(k.Found, found) &&
			(k.Advice != "") == (verdict != doctor.OK)
	}) {
		t.Errorf("want %s: %s, %q, in %+v", name, verdict, found, r.Checks)
	}
}
