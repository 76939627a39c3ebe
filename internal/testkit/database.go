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

// databases numbers the databases of this process.
var databases atomic.Int64

// DB is a migrated database of one test.
type DB struct {
	// URL reaches it as the cluster's superuser, who migrated it.
	URL string
	// Pool is connected as that superuser. It is the test's own hand: a transaction that it holds open, for somebody to wait for it, may take as long as the machine is slow.
	Pool *pgxpool.Pool
}

// Database makes a database for the test, a copy of a migrated one, and drops it when the test ends.
func Database(t testing.TB) *DB {
	t.Helper()
	db := EmptyDatabase(t, "TEMPLATE postern")
	db.Pool = db.connect(t, "")
	return db
}

// patient is the pool's twin, whose sessions may be idle in a transaction for ever.
func patient(ctx context.Context, pool *pgxpool.Pool) (*pgxpool.Pool, error) {
	cfg := pool.Config()
	cfg.ConnConfig.RuntimeParams["idle_in_transaction_session_timeout"] = "0"
	pool.Close()
	return pgxpool.NewWithConfig(ctx, cfg)
}

// EmptyDatabase makes a database without schema and without a pool, for tests of migrations. options end CREATE DATABASE.
func EmptyDatabase(t testing.TB, options string) *DB {
	t.Helper()
	if err := shared.start(); err != nil {
		t.Fatalf("start PostgreSQL for tests (install what they need: make prerequisites): %v", err)
	}
	name := fmt.Sprintf("test_%d", databases.Add(1))
	admin(t, "CREATE DATABASE "+name+" "+options)
	t.Cleanup(func() { admin(t, "DROP DATABASE IF EXISTS "+name+" WITH (FORCE)") })
	return &DB{URL: shared.url(name)}
}

// Role is a pool whose sessions act as a role: "postern_gateway", or short "gateway".
func (db *DB) Role(t testing.TB, role string) *pgxpool.Pool {
	t.Helper()
	if !strings.HasPrefix(role, "postern_") {
		role = "postern_" + role
	}
	return db.connect(t, role)
}

// connect closes the pool when the test ends, before the database is dropped.
func (db *DB) connect(t testing.TB, role string) *pgxpool.Pool {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), databaseTimeout)
	defer cancel()
	own := role == ""
	pool, err := postgres.Connect(ctx, postgres.Options{URL: db.URL, Role: role, AppName: "test", MaxConns: 10, Lazy: own})
	if err == nil && own {
		pool, err = patient(ctx, pool)
	}
	if err != nil {
		t.Fatalf("connect to test database: %v", err)
	}
	t.Cleanup(func() { closePool(t, pool) })
	return pool
}

// closePool closes a pool; one that still has a session taken would wait for ever, so that is a failure with a reason.
func closePool(t testing.TB, pool *pgxpool.Pool) {
	done := make(chan struct{})
	go func() { defer close(done); pool.Close() }()
	select {
	case <-done:
	case <-time.After(databaseTimeout):
		t.Errorf("close pool: %d sessions were never given back", pool.Stat().AcquiredConns())
	}
}

func admin(t testing.TB, statement string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), databaseTimeout)
	defer cancel()
	if _, err := shared.admin.Exec(ctx, statement); err != nil {
		t.Errorf("%s: %v", statement, err)
	}
}
