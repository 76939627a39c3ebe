// Package postgres provides access to PostgreSQL: connections, transactions, migrations, and the
// classification of errors. All packages with SQL use it. It also runs the private cluster of
// development instances and tests. It never contains queries of Postern's own tables, except that
// of applied migrations.
package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/lifecycle"
)

// minVersion is the oldest supported major version of PostgreSQL.
const minVersion = 15

const (
	connectTimeout = 3 * time.Second
	// setupTimeout limits the queries at the start of a session.
	setupTimeout = 10 * time.Second
)

// Options configure the connections to a database.
type Options struct {
	// URL is a connection URL or a keyword string in libpq's format. It may name several hosts.
	URL string
	// Role is the role of each session (SET ROLE); empty: that of the login.
	Role string
	// AppName is shown in pg_stat_activity; empty: "postern".
	AppName string
	// MaxConns is the maximum size of the pool; 0: the URL's pool_max_conns, else max(4, number of
	// CPUs).
	MaxConns int32
	// MinConns is the number of sessions that stay open, at most MaxConns. A new session needs six
	// round trips, which take long over a slow network. Lost sessions are opened again within a
	// minute.
	MinConns int32
	// Connections is the group to which the connections belong; nil: none.
	Connections *Connections
	// Identity is the required result of Identity in each session; empty: any database.
	Identity string
	// ReadTimeout, if it is not 0, makes the pool one for reading: transactions are read-only, and
	// the server cancels a statement after this time.
	ReadTimeout time.Duration
	// Lazy: Connect does not test the connection; CheckConnection does.
	Lazy bool
	// OnUnsafeSettings is called at the start of each session with the server settings that are off
	// although durable commits need them; nil: not called.
	OnUnsafeSettings func(off []string)
}

// Connect opens a pool and, unless it is Lazy, tests one session: the server's version is supported
// and the role may be used. No error contains the password. An error for which IsUnavailable is
// true may be temporary; any other is permanent.
func Connect(ctx context.Context, o Options) (*pgxpool.Pool, error) {
	cfg, err := poolConfig(o)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open pool of %s: %w", describeTarget(&cfg.ConnConfig.Config), err)
	}
	if o.Lazy {
		return pool, nil
	}
	if err := CheckConnection(ctx, pool); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// CheckConnection tests one session: the server's version is supported and the role may be used. It
// returns the same errors as Connect.
func CheckConnection(ctx context.Context, pool *pgxpool.Pool) error {
	if err := pool.Ping(ctx); err != nil {
		return connectError(&pool.Config().ConnConfig.Config, err)
	}
	return nil
}

func poolConfig(o Options) (*pgxpool.Config, error) {
	cfg, err := pgxpool.ParseConfig(o.URL)
	if err != nil {
		return nil, fmt.Errorf("read database URL: %w", err)
	}
	if o.MaxConns > 0 {
		cfg.MaxConns = o.MaxConns
	}
	cfg.MinConns = min(max(cfg.MinConns, o.MinConns), cfg.MaxConns)
	configureSession(cfg.ConnConfig, o)
	if cfg.PingTimeout == 0 {
		cfg.PingTimeout = connectTimeout // for an idle session, whose connection may have been lost
	}
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		ctx, cancel := lifecycle.WithTimeout(ctx, "set up a session", setupTimeout) // pgx sets no other limit
		defer cancel()
		if err := checkVersion(conn.PgConn().ParameterStatus("server_version")); err != nil {
			return err
		}
		if err := checkIdentity(ctx, conn, o.Identity); err != nil {
			return err
		}
		if err := setRole(ctx, conn, o.Role); err != nil {
			return err
		}
		if err := limitReads(ctx, conn, o.ReadTimeout); err != nil {
			return err
		}
		return checkDurability(ctx, conn, o.OnUnsafeSettings)
	}
	cfg.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) { return CheckConfirmed(conn) == nil, nil }
	return cfg, nil
}

// configureSession sets the options that all of Postern's sessions share.
func configureSession(cfg *pgx.ConnConfig, o Options) {
	cfg.RuntimeParams["search_path"] = "postern"
	// An acknowledgement promises a durable commit, whatever the default of the database or the
	// login is.
	cfg.RuntimeParams["synchronous_commit"] = "on"
	// A statement that waits for a lock must then see the changes that the lock's holder committed.
	// At a stricter level it fails or, worse, decides on an old snapshot. Transactions that need
	// another level set it themselves.
	cfg.RuntimeParams["default_transaction_isolation"] = isolationLevel
	// A warning is the only sign that a commit did not wait for its standby.
	cfg.RuntimeParams["client_min_messages"] = "warning"
	cfg.OnNotice = recordNotice
	// Paging queries read a range of an index in its order. For a table without statistics, the
	// planner would instead fetch and sort the complete rest of the table for each page.
	cfg.RuntimeParams["enable_bitmapscan"] = "off"
	// A plan that is made for all parameters has a high estimated cost for a large log, and a small
	// real one. PostgreSQL would compile such a plan for longer than it runs.
	cfg.RuntimeParams["jit"] = "off"
	// A session whose process is frozen or whose host is lost must not hold locks for hours.
	for name, value := range map[string]string{"idle_in_transaction_session_timeout": "15s", "tcp_keepalives_idle": "5",
		"tcp_keepalives_interval": "2", "tcp_keepalives_count": "3", "tcp_user_timeout": "10000"} {
		cfg.RuntimeParams[name] = value
	}
	cfg.RuntimeParams["application_name"] = cmp.Or(o.AppName, "postern")
	if cfg.ConnectTimeout == 0 || !isConfigured(o.URL, "connect_timeout", "PGCONNECT_TIMEOUT") {
		cfg.ConnectTimeout = connectTimeout
	}
	cfg.DialFunc = o.Connections.dial
	keepsOpen := cfg.OnPgError
	cfg.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		// False closes the session. After a failover or a change of settings, an existing session
		// stays read-only; a new one does not.
		return err.Code != readOnly && keepsOpen(conn, err)
	}
	if hasSeveralHosts(&cfg.Config) && !isConfigured(o.URL, "target_session_attrs", "PGTARGETSESSIONATTRS") {
		cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
}

// readOnly is the SQLSTATE of a write in a read-only transaction.
const readOnly = "25006"

// isConfigured reports whether the URL or the environment sets an option that otherwise has
// Postern's default.
func isConfigured(url, setting, variable string) bool {
	return strings.Contains(url, setting) || os.Getenv(variable) != ""
}

// hasSeveralHosts compares hosts and ports, because a single host has fallbacks too, with and
// without TLS.
func hasSeveralHosts(cfg *pgconn.Config) bool {
	for _, f := range cfg.Fallbacks {
		if f.Host != cfg.Host || f.Port != cfg.Port {
			return true
		}
	}
	return false
}

func checkVersion(version string) error {
	n, err := majorVersion(version)
	if err != nil {
		return err
	}
	if n < minVersion {
		return fmt.Errorf("PostgreSQL %s is too old: Postern requires version %d or newer", version, minVersion)
	}
	return nil
}

// limitReads makes a session one for reading; 0: it stays as it is. It is not a parameter of the
// start, because a URL with several hosts may choose the server whose sessions are not read-only.
func limitReads(ctx context.Context, conn *pgx.Conn, timeout time.Duration) error {
	if timeout == 0 {
		return nil
	}
	if _, err := conn.Exec(ctx, "SET default_transaction_read_only = on; SET statement_timeout = "+
		strconv.FormatInt(timeout.Milliseconds(), 10)); err != nil {
		return fmt.Errorf("limit a session to reading: %w", err)
	}
	return nil
}

func setRole(ctx context.Context, conn *pgx.Conn, role string) error {
	if role == "" {
		return nil
	}
	_, err := conn.Exec(ctx, "SET ROLE "+pgx.Identifier{role}.Sanitize())
	switch Code(err) {
	case "":
		return err
	case "42501":
		login := pgx.Identifier{conn.Config().User}.Sanitize()
		return fmt.Errorf("set role %s: the login %s may not use it; run: GRANT %s TO %s (%w)", role, login, role,
			login, err)
	case "22023":
		return fmt.Errorf("set role %s: the role does not exist; run: postern migrate up (%w)", role, err)
	}
	return fmt.Errorf("set role %s: %w", role, err)
}

// isolationLevel is the level that every statement is written for.
const isolationLevel = "read committed"

const durabilitySQL = `SELECT current_setting('synchronous_commit'),
	current_setting('default_transaction_isolation'), ARRAY(SELECT s FROM unnest('{fsync,full_page_writes}'::text[]) AS
		s WHERE current_setting(s) = 'off')`

// checkDurability checks that the session's commits are durable, and reports unsafe settings of the
// server. The server accepted synchronous_commit in the startup message, but a pooler in between
// may have dropped it.
func checkDurability(ctx context.Context, conn *pgx.Conn, onUnsafe func(off []string)) error {
	var commit, level string
	var off []string
	if err := conn.QueryRow(ctx, durabilitySQL, pgx.QueryExecModeSimpleProtocol).Scan(&commit, &level,
		&off); err != nil {
		return fmt.Errorf("read synchronous_commit: %w", err)
	}
	for _, s := range []struct{ name, got, want string }{{"synchronous_commit", commit, "on"},
		{"default_transaction_isolation", level, isolationLevel}} {
		if s.got != s.want {
			return fmt.Errorf("%s is %s in a session that requested %s: a pooler in between drops session "+
				"parameters; connect to PostgreSQL directly, or configure the pooler to pass them on", s.name, s.got,
				s.want)
		}
	}
	if onUnsafe != nil {
		onUnsafe(off)
	}
	return nil
}

// connectError says which database could not be reached, why, and what to do.
func connectError(target *pgconn.Config, err error) error {
	return fmt.Errorf("connect to %s: %w%s", describeTarget(target), &attemptsError{err}, connectAdvice(err))
}

// attemptsError prints an error of pgx in one line. It omits the login, which the caller names, and
// an attempt that fails like the one before it: pgx tries each host with TLS and without.
type attemptsError struct{ err error }

func (e *attemptsError) Error() string {
	cause := e.err
	var attempts *pgconn.ConnectError
	if errors.As(cause, &attempts) {
		cause = attempts.Unwrap()
	}
	return strings.Join(slices.Compact(strings.Split(cause.Error(), "\n")), "; ")
}

func (e *attemptsError) Unwrap() error { return e.err }

// describeTarget names the database, every host that was tried, and the login.
func describeTarget(cfg *pgconn.Config) string {
	place := func(host string, port uint16) string { return fmt.Sprintf("%s port %d", host, port) }
	places := []string{place(cfg.Host, cfg.Port)}
	for _, f := range cfg.Fallbacks { // each host is listed twice, with and without TLS
		if p := place(f.Host, f.Port); !slices.Contains(places, p) {
			places = append(places, p)
		}
	}
	return fmt.Sprintf("database %q on %s as %q", cfg.Database, strings.Join(places, ", "), cfg.User)
}

// connectAdvice says what to do about a session that could not be opened.
func connectAdvice(err error) string {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "; no server listens on that socket: start PostgreSQL or correct the URL"
	case Code(err) == "28P01", Code(err) == "28000":
		return "; correct the user or password in the URL, or the server's pg_hba.conf"
	case Code(err) == "3D000":
		return "; create the database first (CREATE DATABASE), then run: postern migrate up"
	case Code(err) == "53300":
		return "; raise the server's max_connections or lower the pools of the daemons"
	case IsUnavailable(err):
		return "; check that the server is running and that the URL is correct"
	}
	return ""
}
