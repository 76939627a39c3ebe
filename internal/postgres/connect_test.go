package postgres_test

import (
	"context"
	"crypto/rand"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
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
	pool := connect(t, postgres.Options{URL: db.URL, Role: "postern_gateway", AppName: "gateway-1", MaxConns: 3})
	for setting, want := range map[string]string{
		"search_path": "postern", "synchronous_commit": "on", "application_name": "gateway-1",
		"role": "postern_gateway", "jit": "off",
	} {
		wantSetting(t, pool, setting, want)
	}
	if got := pool.Config().MaxConns; got != 3 {
		t.Errorf("the pool has %d connections at most, want 3", got)
	}
}

// Neither the URL, the login nor the database changes how a session commits. Sessions of
// migrations, of their status and of a private server's start have no pool. archtest ensures that
// no other package opens sessions.
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
	for name, change := range map[string]func(setting, value string) string{
		"database": func(string, string) string { return db.URL },
		"setting":  func(setting, value string) string { return withParam(t, db.URL, setting, value) },
		"options": func(setting, value string) string {
			return withParam(t, db.URL, "options", "--"+strings.ReplaceAll(setting, "_", "-")+"="+value)
		},
		"login": func(string, string) string { return withParam(t, db.URL, "user", login) },
	} {
		for setting, value := range settings {
			address := change(setting, value.given)
			t.Run(name+" "+setting, func(t *testing.T) {
				t.Parallel()
				cfg, err := postgres.SessionConfig(address)
				testkit.Must(t, err)
				unchanged, err := pgx.ParseConfig(address)
				testkit.Must(t, err)
				for _, c := range []struct {
					config *pgx.ConnConfig
					want   string
				}{{unchanged, value.given}, {cfg, value.ours}} {
					conn, err := pgx.ConnectConfig(t.Context(), c.config)
					testkit.Must(t, err)
					defer conn.Close(context.Background())
					wantSetting(t, conn, setting, c.want)
				}
				wantSetting(t, connect(t, postgres.Options{URL: address, MaxConns: 2}), setting, value.ours)
			})
		}
	}
}

func wantSetting(t *testing.T, in interface {
	QueryRow(ctx context.Context, sql string, args ...any) pgx.Row
}, setting, want string) {
	t.Helper()
	var got string
	if err := in.QueryRow(t.Context(), "SELECT current_setting($1)", setting).Scan(&got); err != nil || got != want {
		t.Errorf("%s is %q, %v; want %q", setting, got, err, want)
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
		testkit.Must(t, err)
		cfg.ConnConfig.RuntimeParams[setting] = tc.value
		pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
		testkit.Must(t, err)
		if err := postgres.CheckConnection(t.Context(), pool); err == nil || !strings.Contains(err.Error(), tc.want) ||
			postgres.IsUnavailable(err) {
			t.Errorf("%s: got %v, unavailable: %t", setting, err, postgres.IsUnavailable(err))
		}
		pool.Close()
	}
}

// Unsafe settings of the server are reported at each session's start.
func TestConnect_unsafeServerSettings_areReported(t *testing.T) {
	t.Parallel()
	reportedBy := func(address string) (reported [][]string) {
		t.Helper()
		connect(t, postgres.Options{URL: address, MaxConns: 1,
			OnUnsafeSettings: func(off []string) { reported = append(reported, off) }}).Close()
		return reported
	}
	testkit.Equal(t, "of a fast one", [][]string{{"fsync", "full_page_writes"}}, reportedBy(testkit.Database(t).URL))
	c, err := postgres.StartCluster(t.Context(), postgres.ClusterOptions{Dir: clusterDir(t)})
	testkit.Must(t, err)
	t.Cleanup(func() { stop(t, c) })
	testkit.Equal(t, "of a durable one", [][]string{{}}, reportedBy(c.URL()))
}

func TestConnect_errors_sayWhatToDo(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	db.Exec(t, "DROP ROLE IF EXISTS plain_login; CREATE ROLE plain_login LOGIN")
	missing, err := url.Parse(db.URL)
	testkit.Must(t, err)
	missing.Path = "/missing"
	for name, c := range map[string]struct {
		url, role, want string
		unavailable     bool
	}{
		"not a member": {withParam(t, db.URL, "user", "plain_login"), "postern_gateway",
			`GRANT postern_gateway TO "plain_login"`, false},
		"no such role": {db.URL, "postern_nobody", "postern migrate up", false},
		"no database":  {missing.String(), "", "CREATE DATABASE", false},
		"no socket":    {withParam(t, db.URL, "host", "/nonexistent"), "", "start PostgreSQL", true},
		"no server": {"postgres://u:hunter2@127.0.0.1:1/d", "", `as "u": 127.0.0.1:1 (127.0.0.1): dial error: ` +
			"dial tcp 127.0.0.1:1: connect: connection refused; check that the server is running", true},
		"two hosts without a server": {"postgres://u:hunter2@127.0.0.1:1,127.0.0.1:2/d", "",
			`database "d" on 127.0.0.1 port 1, 127.0.0.1 port 2 as "u"`, true},
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

// Of several hosts the primary is used. An idle session that does not respond is closed before a
// call gets it; the URL may set the timeout.
func TestPoolConfig_urls_setPrimaryAndTimeouts(t *testing.T) {
	t.Parallel()
	for dsn, want := range map[string]struct {
		primary bool
		ping    time.Duration
	}{
		"postgres://u@a:1,b:2/d":                          {true, 3 * time.Second},
		"postgres://u@a:1,b:2/d?target_session_attrs=any": {false, 3 * time.Second},
		"postgres://u@a:1/d":                              {false, 3 * time.Second},
		"postgres://x/y?pool_ping_timeout=7s":             {false, 7 * time.Second},
	} {
		cfg, err := postgres.PoolConfig(postgres.Options{URL: dsn})
		testkit.Must(t, err)
		if got := cfg.ConnConfig.ValidateConnect != nil; got != want.primary {
			t.Errorf("%s: asks for a writable server: %t, want %t", dsn, got, want.primary)
		}
		if cfg.ConnConfig.ConnectTimeout != 3*time.Second || cfg.PingTimeout != want.ping {
			t.Errorf("%s: connect timeout %s, want 3s; ping timeout %s, want %s", dsn, cfg.ConnConfig.ConnectTimeout,
				cfg.PingTimeout, want.ping)
		}
	}
}

func TestConnect_deadHost_isSkipped(t *testing.T) {
	t.Parallel()
	live := testkit.Proxy(t, testkit.Database(t).URL)
	u, err := url.Parse(live.URL)
	testkit.Must(t, err)
	u.Host = "127.0.0.1:1," + u.Host
	connect(t, postgres.Options{URL: u.String()})
}

func TestFindInstallation_noBinaries_saysHowToInstall(t *testing.T) {
	t.Parallel()
	if _, err := postgres.FindInstallation(99); !errors.Is(err, postgres.ErrNoServer) ||
		!strings.Contains(err.Error(), "make prerequisites") {
		t.Errorf("got %v, want ErrNoServer with what to run", err)
	}
}

// connect opens a pool until the test ends.
func connect(t *testing.T, o postgres.Options) *pgxpool.Pool {
	t.Helper()
	pool, err := postgres.Connect(t.Context(), o)
	testkit.Must(t, err)
	t.Cleanup(pool.Close)
	return pool
}

// errOf returns the error of a call and ignores its other result.
func errOf[T any](_ T, err error) error { return err }

// withParam sets a parameter of a URL.
func withParam(t *testing.T, address, name, value string) string {
	t.Helper()
	u, err := url.Parse(address)
	testkit.Must(t, err)
	q := u.Query()
	q.Set(name, value)
	u.RawQuery = q.Encode()
	return u.String()
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
	connect(t, postgres.Options{URL: one.URL, Role: "postern_operator", Identity: want})
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
	address := withParam(t, db.URL, "target_session_attrs", "read-write")
	pool := connect(t, postgres.Options{URL: address, ReadTimeout: 1500 * time.Millisecond})
	wantSetting(t, pool, "statement_timeout", "1500ms")
	if _, err := pool.Exec(t.Context(), "CREATE TABLE written ()"); postgres.Code(err) != "25006" {
		t.Errorf("a write: %v", err)
	}
}
