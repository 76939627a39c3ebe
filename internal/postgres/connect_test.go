package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

func TestConnect_session_isConfigured(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	db.Exec(t,
		"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$")
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: db.URL, Role: "postern_gateway",
		AppName: "gateway-1", MaxConns: 3})
	must(t, err)
	defer pool.Close()
	for setting, want := range map[string]string{
		"search_path": "postern", "synchronous_commit": "on", "application_name": "gateway-1",
		"role": "postern_gateway", "jit": "off",
	} {
		var got string
		if err := pool.QueryRow(t.Context(), "SELECT current_setting($1)", setting).Scan(&got); err != nil ||
			got != want {
			t.Errorf("%s is %q, %v; want %q", setting, got, err, want)
		}
	}
	if got := pool.Config().MaxConns; got != 3 {
		t.Errorf("the pool has %d connections at most, want 3", got)
	}
}

// Neither the URL, the login nor the database changes how a session commits.
func TestSession_otherDefaults_commitsAsWritten(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	login := "lax_" + strings.ToLower(rand.Text())
	for _, statement := range []string{"CREATE ROLE " + login + " LOGIN",
		"ALTER ROLE " + login + " SET synchronous_commit = off",
		"ALTER ROLE " + login + " SET default_transaction_isolation = serializable",
		"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET synchronous_commit = off', current_database()); END $$",
		"DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', " +
			"current_database()); END $$"} {
		db.Exec(t, statement)
	}
	t.Cleanup(func() {
		if _, err := db.Pool.Exec(context.Background(), "DROP ROLE "+login); err != nil {
			t.Error(err)
		}
	})
	settings := map[string]struct{ given, ours string }{
		"synchronous_commit":            {"off", "on"},
		"default_transaction_isolation": {"serializable", "read committed"},
	}
	for name, change := range map[string]func(q url.Values, setting, value string){
		"database": func(url.Values, string, string) {},
		"setting":  func(q url.Values, setting, value string) { q.Set(setting, value) },
		"options": func(q url.Values, setting, value string) {
			q.Set("options", "--"+strings.ReplaceAll(setting, "_", "-")+"="+value)
		},
		"login": func(q url.Values, _, _ string) { q.Set("user", login) },
	} {
		for setting, value := range settings {
			t.Run(name+" "+setting, func(t *testing.T) {
				t.Parallel()
				u, err := url.Parse(db.URL)
				must(t, err)
				q := u.Query()
				change(q, setting, value.given)
				u.RawQuery = q.Encode()
				conn, err := pgx.Connect(t.Context(), u.String())
				must(t, err)
				defer conn.Close(context.Background())
				pool, err := postgres.Connect(t.Context(), postgres.Options{URL: u.String(), MaxConns: 2})
				must(t, err)
				defer pool.Close()
				for want, from := range map[string]interface {
					QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
				}{value.given: conn, value.ours: pool} {
					var got string
					if err := from.QueryRow(t.Context(), "SHOW "+setting).Scan(&got); err != nil || got != want {
						t.Errorf("%s, %v; want %s", got, err, want)
					}
				}
			})
		}
	}
}

// A pooler that drops the settings of a session's start is detected.
func TestSession_settingsDroppedByPooler_isRejected(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for setting, tc := range map[string]struct{ value, want string }{
		"synchronous_commit": {"off", "synchronous_commit is off in a session that requested on"},
		"default_transaction_isolation": {"repeatable read", "is repeatable read in a session that requested read " +
			"committed"},
	} {
		cfg, err := postgres.PoolConfig(postgres.Options{URL: db.URL, Role: "postern_gateway"})
		must(t, err)
		cfg.ConnConfig.RuntimeParams[setting] = tc.value
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		must(t, err)
		if err := postgres.CheckConnection(t.Context(), pool); err == nil || !strings.Contains(err.Error(), tc.want) ||
			postgres.IsUnavailable(err) {
			t.Errorf("%s: got %v, unavailable: %t", setting, err, postgres.IsUnavailable(err))
		}
		pool.Close()
	}
}

// Sessions of migrations, of their status and of a private server's start have no pool. archtest
// ensures that no other package opens sessions.
func TestSessionConfig_otherDefaults_commitsAsWritten(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	change := "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET default_transaction_isolation = serializable', " +
		"current_database()); END $$"
	db.Exec(t, change)
	cfg, err := postgres.SessionConfig(db.URL)
	must(t, err)
	conn, err := pgx.ConnectConfig(t.Context(), cfg)
	must(t, err)
	defer conn.Close(context.Background())
	var commit, level string
	const settingsSQL = `SELECT current_setting('synchronous_commit'), current_setting('transaction_isolation')`
	if err := conn.QueryRow(t.Context(), settingsSQL).Scan(&commit, &level); err != nil || commit != "on" ||
		level != "read committed" {
		t.Errorf("%s, %s, %v", commit, level, err)
	}
}

// Unsafe settings of the server are reported at each session's start.
func TestConnect_unsafeServerSettings_areReported(t *testing.T) {
	t.Parallel()
	reportedBy := func(address string) (reported [][]string) {
		t.Helper()
		pool, err := postgres.Connect(t.Context(), postgres.Options{URL: address, MaxConns: 1,
			OnUnsafeSettings: func(off []string) { reported = append(reported, off) }})
		must(t, err)
		pool.Close()
		return reported
	}
	equal(t, "of a fast one", [][]string{{"fsync", "full_page_writes"}}, reportedBy(testkit.Database(t).URL))
	c, err := postgres.StartCluster(t.Context(), postgres.ClusterOptions{Dir: clusterDir(t)})
	must(t, err)
	t.Cleanup(func() { stop(t, c) })
	equal(t, "of a durable one", [][]string{{}}, reportedBy(c.URL()))
}

func TestConnect_errors_sayWhatToDo(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	db.Exec(t, "DROP ROLE IF EXISTS plain_login; CREATE ROLE plain_login LOGIN")
	with := func(change func(*url.URL, url.Values)) string {
		u, err := url.Parse(db.URL)
		must(t, err)
		q := u.Query()
		change(u, q)
		u.RawQuery = q.Encode()
		return u.String()
	}
	for name, c := range map[string]struct {
		url, role, want string
		unavailable     bool
	}{
		"not a member": {with(func(_ *url.URL, q url.Values) { q.Set("user", "plain_login") }), "postern_gateway",
			`GRANT postern_gateway TO "plain_login"`, false},
		"no such role": {db.URL, "postern_nobody", "postern migrate up", false},
		"no database":  {with(func(u *url.URL, _ url.Values) { u.Path = "/missing" }), "", "CREATE DATABASE", false},
		"no socket": {with(func(_ *url.URL, q url.Values) { q.Set("host", "/nonexistent") }), "",
			"start PostgreSQL", true},
		"no server":     {"postgres://u:hunter2@127.0.0.1:1/d", "", "check that the server is running", true},
		"no URL at all": {"postgres://u:hunter2@127.0.0.1:notaport/d", "", "read database URL", false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, err := postgres.Connect(t.Context(), postgres.Options{URL: c.url, Role: c.role})
			if err == nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("got %v, want it to say %q", err, c.want)
			}
			if err != nil && strings.Contains(err.Error(), "hunter2") {
				t.Errorf("the password is in the error: %v", err)
			}
			if postgres.IsUnavailable(err) != c.unavailable {
				t.Errorf("unavailable: %t, want %t, of %v", !c.unavailable, c.unavailable, err)
			}
		})
	}
}

func TestCheckVersion_oldServer_isRejected(t *testing.T) {
	t.Parallel()
	for version, ok := range map[string]bool{
		"15.18 (Debian 15.18-0+deb12u1)": true, "17.2": true, "18beta1": true, "14.11": false, "9.6.24": false,
		"": false,
	} {
		if err := postgres.CheckVersion(version); (err == nil) != ok {
			t.Errorf("version %q: %v, want accepted %t", version, err, ok)
		}
	}
}

func TestConnect_severalHosts_usesPrimary(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]bool{
		"postgres://u@a:1,b:2/d":                          true,
		"postgres://u@a:1,b:2/d?target_session_attrs=any": false,
		"postgres://u@a:1/d":                              false,
	} {
		cfg, err := postgres.PoolConfig(postgres.Options{URL: dsn})
		must(t, err)
		if got := cfg.ConnConfig.ValidateConnect != nil; got != want {
			t.Errorf("%s: asks for a writable server: %t, want %t", dsn, got, want)
		}
		if cfg.ConnConfig.ConnectTimeout != 3*time.Second {
			t.Errorf("%s: connect timeout %s, want 3s", dsn, cfg.ConnConfig.ConnectTimeout)
		}
	}
}

func TestConnect_deadHost_isSkipped(t *testing.T) {
	t.Parallel()
	live := testkit.Proxy(t, testkit.Database(t).URL)
	u, err := url.Parse(live.URL)
	must(t, err)
	u.Host = "127.0.0.1:1," + u.Host
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: u.String()})
	must(t, err)
	pool.Close()
}

func TestFindInstallation_noBinaries_saysHowToInstall(t *testing.T) {
	t.Parallel()
	if _, err := postgres.FindInstallation(99); !errors.Is(err, postgres.ErrNoServer) ||
		!strings.Contains(err.Error(), "make prerequisites") {
		t.Errorf("got %v, want ErrNoServer with what to run", err)
	}
}

// must fails the test on an error.
func must(t testing.TB, err error) {
	t.Helper()
	testkit.Must(t, err)
}

// errOf returns the error of a call and ignores its other result.
func errOf[T any](_ T, err error) error { return err }

// equal reports the difference between a value and the wanted one.
func equal(t testing.TB, what string, want, got any, opts ...cmp.Option) {
	t.Helper()
	testkit.Equal(t, what, want, got, opts...)
}

// execSQL runs a statement over a pool, a session or a transaction.
func execSQL(t testing.TB, over interface {
	Exec(context.Context, string, ...any) (pgconn.CommandTag, error)
}, sql string, args ...any) {
	t.Helper()
	if _, err := over.Exec(t.Context(), sql, args...); err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
}

func TestIdentity_sameDatabaseOnly(t *testing.T) {
	t.Parallel()
	one, other := testkit.Database(t), testkit.Database(t)
	id := func(url string) string {
		id, err := postgres.Identity(t.Context(), url)
		if err != nil || id == "" {
			t.Fatalf("%q, %v", id, err)
		}
		return id
	}
	want := id(one.URL)
	if got := id(one.URL + "&application_name=other"); got != want {
		t.Errorf("by another address %s, not %s", got, want)
	}
	if id(other.URL) == want {
		t.Error("two databases have one identity")
	}
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: one.URL, Role: "postern_operator", Identity: want})
	must(t, err)
	pool.Close()
	if _, err := postgres.Connect(t.Context(), postgres.Options{URL: other.URL, Identity: want}); !errors.Is(err,
		postgres.ErrOtherDatabase) {
		t.Errorf("connect to another database: %v", err)
	}
	if err := postgres.CheckIdentity(t.Context(), other.URL, want); !errors.Is(err, postgres.ErrOtherDatabase) {
		t.Errorf("check another database: %v", err)
	}
	if err := postgres.CheckIdentity(t.Context(), "postgres:///nothing?host=/nowhere", ""); err != nil {
		t.Errorf("no identity is expected: %v", err)
	}
}

// The PG* variables of a client replace parts that are missing in the URL.
func TestClusterURL_namesEachPart(t *testing.T) {
	t.Parallel()
	url := testkit.Database(t).URL
	for _, part := range []string{"postgres:///", "host=", "port=5432", "user="} {
		if !strings.Contains(url, part) {
			t.Errorf("%s lacks %s", url, part)
		}
	}
}

// A pool for reading also connects where the URL chooses the server that accepts writes.
func TestConnect_readTimeout_rejectsWrites(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	address := db.URL + " target_session_attrs=read-write"
	if strings.Contains(db.URL, "://") {
		address = db.URL + "&target_session_attrs=read-write"
	}
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: address, ReadTimeout: 1500 * time.Millisecond})
	testkit.Must(t, err)
	defer pool.Close()
	var timeout string
	if err := pool.QueryRow(t.Context(), "SHOW statement_timeout").Scan(&timeout); err != nil || timeout != "1500ms" {
		t.Errorf("statement_timeout %s, %v", timeout, err)
	}
	if _, err := pool.Exec(t.Context(), "CREATE TABLE written ()"); postgres.Code(err) != "25006" {
		t.Errorf("a write: %v", err)
	}
}
