package testkit

import (
	"context"
	"fmt"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
)

const databaseTimeout = 30 * time.Second

// databaseCount numbers the databases of this process.
var databaseCount atomic.Int64

// DB is the migrated database of one test.
type DB struct {
	// URL connects as the superuser of the cluster, who ran the migrations.
	URL string
	// Pool is connected as that superuser. Tests use it directly, so a transaction that a test
	// holds open has no idle timeout.
	Pool *pgxpool.Pool
}

// Database creates a database for the test as a copy of the template. It is dropped when the test
// ends.
func Database(t testing.TB) *DB {
	t.Helper()
	// Without fsync, copying the files costs less than logging each block. The copy also has the
	// file of the catalog's cache, which the first session would otherwise make.
	db := EmptyDatabase(t, "TEMPLATE postern STRATEGY file_copy")
	db.Pool = db.connect(t, "")
	return db
}

// withoutIdleTimeout closes the pool and returns one with the same configuration, whose sessions
// may stay idle in a transaction without limit.
func withoutIdleTimeout(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Pool, error) {
	cfg := pool.Config()
	cfg.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "0"
	pool.Close()
	return pgxpool.NewWithConfig(ctx, cfg)
}

// EmptyDatabase creates a database without schema and pool, for tests of migrations. The options
// are appended to CREATE DATABASE.
func EmptyDatabase(t testing.TB, options string) *DB {
	t.Helper()
	if err := sharedCluster.start(); err != nil {
		t.Fatalf("start PostgreSQL for tests (install what they need: make prerequisites): %v", err)
	}
	name := fmt.Sprintf("test_%d", databaseCount.Add(1))
	admin(t, "CREATE DATABASE "+name+" "+options)
	t.Cleanup(func() { admin(t, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") })
	return &DB{URL: sharedCluster.url(name)}
}

// Role returns a pool whose sessions act as a role: "postern_gateway", or short "gateway".
func (db *DB) Role(t testing.TB, role string) *pgxpool.Pool {
	t.Helper()
	if !strings.HasPrefix(role, "postern_") {
		role = "postern_" + role
	}
	return db.connect(t, role)
}

// connect opens a pool that is closed when the test ends, before the database is dropped.
func (db *DB) connect(t testing.TB, role string) *pgxpool.Pool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), databaseTimeout)
	defer cancel()
	asSuperuser := role == ""
	pool, err := postgres.Connect(ctx, postgres.Options{URL: db.URL, Role: role, AppName: "test", MaxConns: 10,
		Lazy: asSuperuser})
	if err == nil && asSuperuser {
		pool, err = withoutIdleTimeout(ctx, pool)
	}
	if err != nil {
		t.Fatalf("connect to test database: %v", err)
	}
	t.Cleanup(func() { closePool(t, pool) })
	return pool
}

// closePool closes a pool. It fails the test when a session is still acquired, because closing
// would then wait forever.
func closePool(t testing.TB, pool *pgxpool.Pool) {
	done := make(chan struct{})
	go func() { defer close(done); pool.Close() }()
	select {
	case <-done:
	case <-time.After(databaseTimeout):
		t.Errorf("close pool: %d sessions were never released", pool.Stat().AcquiredConns())
	}
}

func admin(t testing.TB, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), databaseTimeout)
	defer cancel()
	if _, err := sharedCluster.admin.Exec(ctx, statement); err != nil {
		t.Errorf("%s: %v", statement, err)
	}
}
