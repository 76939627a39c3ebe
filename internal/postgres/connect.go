// Package postgres is the way to PostgreSQL: connections, transactions, migrations, the kinds of errors, and the private
// cluster of a development instance and of tests.
package postgres

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/lifecycle"
)

// MinVersion is the oldest major version of PostgreSQL that Postern runs on.
const MinVersion = 15

const (
	connectTimeout = 3 * time.Second
	// setUpWithin bounds what is said at the start of a session.
	setUpWithin = 10 * time.Second
)

// Options say how to reach a database and as whom.
type Options struct {
	// URL is a connection URL or a keyword string, as libpq reads them; several hosts may be named.
	URL string
	// Role is what each session acts as (SET ROLE); empty: the login itself.
	Role string
	// AppName is shown in pg_stat_activity; empty: "postern".
	AppName string
	// MaxConns bounds the pool; 0: what the URL says (pool_max_conns), else max(4, number of CPUs).
	MaxConns int32
	// Ready is how many sessions are kept open, used or not, at most MaxConns: to open one takes six answers of the server, which is long over a slow line. What is lost of them is opened again within a minute.
	Ready int32
	// Lines are what the connections are part of; nil: nobody cuts them.
	Lines *Lines
	// Identity is what Identity must return for the database, in each session; empty: any database.
	Identity string
	// Lazy: nothing is proven yet; Prove does it.
	Lazy bool
	// Lax is told at the start of each session which of the server's settings are off by which a commit outlives its machine, by name; nil: nobody is.
	Lax func(off []string)
}

// Connect opens a pool and, unless it is Lazy, proves that one session works: the server is new enough and the role may be taken.
// No error carries the password. An error for which IsUnavailable holds may go away by itself; any other will not.
func Connect(ctx context.Context, o Options) (*pgxpool.Pool, error) {
	cfg, err := poolConfig(o)
	if err != nil {
		return nil, err
	}
	pool, err := pgxpool.NewWithConfig(ctx, cfg)
	if err != nil {
		return nil, fmt.Errorf("open pool of %s: %w", target(&cfg.ConnConfig.Config), err)
	}
	if o.Lazy {
		return pool, nil
	}
	if err := Prove(ctx, pool); err != nil {
		pool.Close()
		return nil, err
	}
	return pool, nil
}

// Prove sees that one session works: the server is new enough and the role may be taken. Errors as Connect's.
func Prove(ctx context.Context, pool *pgxpool.Pool) error {
	if err := pool.Ping(ctx); err != nil {
		return fmt.Errorf("connect to %s: %w%s", target(&pool.Config().ConnConfig.Config), err, advice(err))
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
	cfg.MinConns = min(max(cfg.MinConns, o.Ready), cfg.MaxConns)
	configure(cfg.ConnConfig, o)
	if cfg.PingTimeout == 0 {
		cfg.PingTimeout = connectTimeout // of a session that was idle, which may have been lost meanwhile
	}
	cfg.AfterConnect = func(ctx context.Context, conn *pgx.Conn) error {
		ctx, cancel := lifecycle.WithTimeout(ctx, "set up a session", setUpWithin) // nobody else bounds it
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
		return checkDurable(ctx, conn, o.Lax)
	}
	cfg.PrepareConn = func(_ context.Context, conn *pgx.Conn) (bool, error) { return Confirmed(conn) == nil, nil }
	return cfg, nil
}

// configure sets what every session of ours has in common.
func configure(cfg *pgx.ConnConfig, o Options) {
	cfg.RuntimeParams["search_path"] = "postern"
	// An acknowledgement stands for a durable commit, whatever the database or the login has as a default.
	cfg.RuntimeParams["synchronous_commit"] = "on"
	// Statements that wait for a lock must then see what its holder committed. At any stricter level they fail or, worse,
	// decide on an old snapshot. Transactions that need another level name it themselves.
	cfg.RuntimeParams["default_transaction_isolation"] = isolation
	// That a commit did not wait for its standby is told by a warning alone.
	cfg.RuntimeParams["client_min_messages"] = "warning"
	cfg.OnNotice = noticed
	// A walk reads a window of an index in its order. Of a table that was not analysed yet the planner would rather fetch all that lies behind
	// the window, and sort it, for each window again.
	cfg.RuntimeParams["enable_bitmapscan"] = "off"
	// A session of ours whose process froze or lost its host must not keep locks for hours.
	for name, value := range map[string]string{"idle_in_transaction_session_timeout": "15s", "tcp_keepalives_idle": "5",
		"tcp_keepalives_interval": "2", "tcp_keepalives_count": "3", "tcp_user_timeout": "10000"} {
		cfg.RuntimeParams[name] = value
	}
	cfg.RuntimeParams["application_name"] = cmp.Or(o.AppName, "postern")
	if cfg.ConnectTimeout == 0 || !mentions(o.URL, "connect_timeout", "PGCONNECT_TIMEOUT") {
		cfg.ConnectTimeout = connectTimeout
	}
	cfg.DialFunc = o.Lines.dial
	closes := cfg.OnPgError
	cfg.OnPgError = func(conn *pgconn.PgConn, err *pgconn.PgError) bool {
		// A session stays read-only when the server is mended, or another one is the primary now: a new one does not.
		return err.Code != readOnly && closes(conn, err)
	}
	if severalHosts(&cfg.Config) && !mentions(o.URL, "target_session_attrs", "PGTARGETSESSIONATTRS") {
		cfg.ValidateConnect = pgconn.ValidateConnectTargetSessionAttrsReadWrite
	}
}

// readOnly is the SQLSTATE of a write in a transaction that may not write.
const readOnly = "25006"

// mentions tells whether the URL or the environment set what would otherwise be our default.
func mentions(url, setting, variable string) bool {
	return strings.Contains(url, setting) || os.Getenv(variable) != ""
}

// severalHosts is more than having fallbacks: one host has them too, with and without TLS.
func severalHosts(cfg *pgconn.Config) bool {
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
	if n < MinVersion {
		return fmt.Errorf("PostgreSQL %s is too old: Postern needs version %d or newer", version, MinVersion)
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
		return fmt.Errorf("set role %s: the login %s may not act as it; run: GRANT %s TO %s (%w)", role, login, role, login, err)
	case "22023":
		return fmt.Errorf("set role %s: no such role; run: postern migrate up (%w)", role, err)
	}
	return fmt.Errorf("set role %s: %w", role, err)
}

// isolation is the level that every statement is written for.
const isolation = "read committed"

const durableSQL = `SELECT pg_backend_pid(), current_setting('synchronous_commit'), current_setting('default_transaction_isolation'), ARRAY(SELECT s FROM unnest('{fsync,full_page_writes}'::text[]) AS s WHERE current_setting(s) = 'off')`

// checkDurable sees that the session commits durably, tells what the server itself does not do for that, and has its calls watched. The server took the startup message's word for synchronous_commit; a pooler
// between may have kept that to itself.
func checkDurable(ctx context.Context, conn *pgx.Conn, lax func(off []string)) error {
	var pid int32
	var commit, level string
	var off []string
	if err := conn.QueryRow(ctx, durableSQL, pgx.QueryExecModeSimpleProtocol).Scan(&pid, &commit, &level, &off); err != nil {
		return fmt.Errorf("ask for synchronous_commit: %w", err)
	}
	for _, s := range []struct{ name, got, want string }{{"synchronous_commit", commit, "on"}, {"default_transaction_isolation", level, isolation}} {
		if s.got != s.want {
			return fmt.Errorf("%s is %s in a session that asked for %s: a pooler between drops what sessions ask for at their start; "+
				"connect to PostgreSQL itself, or have the pooler pass it on", s.name, s.got, s.want)
		}
	}
	if lax != nil {
		lax(off)
	}
	if l := linkOf(conn); l != nil {
		l.watch(conn.Config(), pid)
	}
	return nil
}

// target names the database, every host that was tried for it, and the login.
func target(cfg *pgconn.Config) string {
	place := func(host string, port uint16) string { return fmt.Sprintf("%s port %d", host, port) }
	places := []string{place(cfg.Host, cfg.Port)}
	for _, f := range cfg.Fallbacks { // one host is there twice, with and without TLS
		if p := place(f.Host, f.Port); !slices.Contains(places, p) {
			places = append(places, p)
		}
	}
	return fmt.Sprintf("database %q on %s as %q", cfg.Database, strings.Join(places, ", "), cfg.User)
}

// advice is what to do about a session that could not be opened.
func advice(err error) string {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return "; no server listens on that socket: start PostgreSQL or mend the URL"
	case Code(err) == "28P01", Code(err) == "28000":
		return "; mend the user or password in the URL, or the server's pg_hba.conf"
	case Code(err) == "3D000":
		return "; create the database first (CREATE DATABASE), then run: postern migrate up"
	case Code(err) == "53300":
		return "; raise max_connections of the server or lower the pools of the daemons"
	case IsUnavailable(err):
		return "; is the server running, and is the URL right?"
	}
	return ""
}
