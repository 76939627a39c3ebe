package migrations_test

import (
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

const denied = "42501"

// event fills every column of an event; $1 is its id.
const event = `INSERT INTO events (id, source, event_id, event_type, account, object_type, object_id, received_at,
	origin,
  api_version, headers, verification, fingerprint, delivery_id, delivery_index, body)
  VALUES ($1, 1, 'evt_1', 'invoice.paid', '', 'invoice', 'in_1', now(), 'webhook', '', '{}', '{}', '\x01', $1, 0,
  	'\x7b7d')`

// withEvent is a database whose log has one event, written by the gateway's role; the event's id.
func withEvent(t *testing.T) (*testkit.DB, int64) {
	t.Helper()
	db := testkit.Database(t)
	gateway := db.Role(t, "gateway")
	ms := time.Now().UnixMilli()
	id := ms << 20
	execSQL(t, gateway, "SELECT ensure_partitions($1, $1)", ms)
	execSQL(t, gateway, "INSERT INTO sources (name, provider) VALUES ('stripe', 'stripe')")
	execSQL(t, gateway, event, id)
	return db, id
}

func refused(t *testing.T, pool *pgxpool.Pool, who, statement string, args ...any) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), statement, args...); postgres.Code(err) != denied {
		t.Errorf("%s: %s: got %v, want it refused with %s", who, statement, err, denied)
	}
}

func TestRoles_forbiddenStatements_areRejected(t *testing.T) {
	t.Parallel()
	db, _ := withEvent(t)
	for role, statements := range map[string][]string{
		"gateway": {
			"UPDATE events SET body = null", "DELETE FROM events", "TRUNCATE events",
			"UPDATE event_keys SET id = 1", "DELETE FROM event_keys",
			"UPDATE sources SET name = 'x'", "INSERT INTO objects SELECT * FROM objects", "SELECT * FROM outbox",
			"DROP TABLE events", "ALTER TABLE events DISABLE TRIGGER ALL", "CREATE TABLE mine (a int)",
			"SELECT * FROM dropped_partitions", "SELECT raise_floor()",
			"SELECT * FROM tokens", "SELECT * FROM idempotency_keys", "SELECT * FROM audit", "DELETE FROM audit",
			"UPDATE audit SET actor = 'x'",
		},
		"processor": {
			"INSERT INTO events SELECT * FROM events", "UPDATE events SET body = null", "DELETE FROM events",
			"TRUNCATE events",
			"INSERT INTO event_keys SELECT * FROM event_keys", "DELETE FROM objects", "DELETE FROM outcomes",
			"TRUNCATE outcomes",
			"SELECT * FROM rejections", "CREATE TABLE mine (a int)", "SELECT * FROM tokens",
			"INSERT INTO audit (actor) VALUES ('x')", "DELETE FROM idempotency_keys", "DELETE FROM spools",
			"UPDATE spools SET drained_at = now()",
		},
		"operator": {
			"UPDATE spools SET drained_at = now()",
			"INSERT INTO events SELECT * FROM events", "UPDATE objects SET deleted = true", "DELETE FROM outcomes",
			"SELECT ensure_partitions(0, 0)", "CREATE TABLE mine (a int)", "UPDATE log_floor SET ms = 1 << 42",
			"UPDATE log_floor SET ms = ms",
			"UPDATE audit SET reason = ''", "DELETE FROM audit", "TRUNCATE audit", "INSERT INTO audit (actor, via, " +
				"address, action, target, reason, at) VALUES ('x', 'command', '', 'a', '', '', now())",
			"INSERT INTO audit (actor, via, address, action, target, reason, database_user) VALUES ('x', 'command', " +
				"'', 'a', '', '', 'x')",
			"UPDATE tokens SET role = 'operator'", "UPDATE tokens SET digest = '\\x00'",
			"UPDATE tokens SET expires_at = NULL", "DELETE FROM tokens", "TRUNCATE tokens",
		},
		"reader": {
			"SELECT * FROM postern.events", "SELECT * FROM postern.objects",
			"UPDATE postern.objects SET deleted = true",
			"DELETE FROM postern.events", "INSERT INTO postern.outcomes SELECT * FROM mirror.outcomes",
			"CREATE TABLE mirror.mine (a int)",
		},
	} {
		pool := db.Role(t, role)
		for _, s := range statements {
			refused(t, pool, role, s)
		}
	}
}

func TestRoles_ownWork_isAllowed(t *testing.T) {
	t.Parallel()
	db, id := withEvent(t)
	for role, statements := range map[string][]string{
		"gateway": {
			"INSERT INTO sources (name, provider) VALUES ('s', 'stripe')", "SELECT nextval('event_sequence')",
			"UPDATE log_floor SET ms = ms", "SELECT * FROM schema_migrations", "DELETE FROM rejections",
		},
		"processor": {"SELECT * FROM events", "UPDATE objects SET revision = revision", "DELETE FROM outbox",
			"SELECT * FROM schema_migrations"},
		"operator": {"DELETE FROM spools", "INSERT INTO audit (actor, via, address, action, target, reason) VALUES " +
			"('x', 'command', '', 'a', '', '')", "SELECT * FROM events", "SELECT * FROM rejections",
			"SELECT * FROM mirror.events", "SELECT raise_floor()", "SELECT * FROM dropped_partitions"},
		"reader": {"SELECT * FROM mirror.objects", "SELECT * FROM mirror.events", "SELECT * FROM mirror.outcomes"},
	} {
		pool := db.Role(t, role)
		for _, s := range statements {
			if _, err := pool.Exec(t.Context(), s); err != nil {
				t.Errorf("%s: %s: %v", role, s, err)
			}
		}
	}
	var json string
	const seen = "SELECT body_json FROM mirror.events WHERE id = $1"
	if err := db.Role(t, "reader").QueryRow(t.Context(), seen, id).Scan(&json); err != nil || json != "{}" {
		t.Errorf("reader sees body %q, %v; want {}", json, err)
	}
}

// The owner's rights are not limited by grants: triggers are what stops it, on partitions by name
// too, and on one made later; and in the audit.
func TestLog_owner_cannotChangeIt(t *testing.T) {
	t.Parallel()
	db, id := withEvent(t)
	owner := db.Role(t, "maintenance")
	var partition string
	must(t,
		owner.QueryRow(t.Context(), "SELECT tableoid::regclass::text FROM events WHERE id = $1", id).Scan(&partition))
	db.Exec(t, "INSERT INTO audit (actor, via, address, action, target, reason) VALUES ('x', 'command', '', 'a', '', "+
		"'')")
	for who, pool := range map[string]*pgxpool.Pool{"maintenance": owner, "superuser": db.Pool} {
		refused(t, pool, who, "UPDATE audit SET reason = 'another'")
		refused(t, pool, who, "DELETE FROM audit")
		refused(t, pool, who, "TRUNCATE audit")
		for _, table := range []string{"events", partition} {
			refused(t, pool, who, "UPDATE "+table+" SET body = null")
			refused(t, pool, who, "DELETE FROM "+table)
			refused(t, pool, who, "TRUNCATE "+table)
		}
	}
	var kept int
	if err := owner.QueryRow(t.Context(), "SELECT count(*) FROM events").Scan(&kept); err != nil || kept != 1 {
		t.Errorf("the log has %d events, %v; want 1", kept, err)
	}
}

func TestDaemons_roles_ownNothing(t *testing.T) {
	t.Parallel()
	db, _ := withEvent(t)
	const foreign = `SELECT count(*) FROM pg_class c JOIN pg_roles r ON r.oid = c.relowner
	  WHERE c.relnamespace IN ('postern'::regnamespace, 'mirror'::regnamespace) AND c.relkind IN ('r', 'p', 'v', 'S')
	    AND r.rolname <> 'postern_maintenance' AND c.relname NOT LIKE 'schema_migrations%'`
	var n int
	if err := db.Pool.QueryRow(t.Context(), foreign).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d relations belong to someone else than postern_maintenance, %v; want none", n, err)
	}
}

// ownedBy is an empty database that belongs to a new login, and the URL of that login. options end
// CREATE ROLE.
func ownedBy(t *testing.T, login, options string) string {
	t.Helper()
	testkit.Database(t) // whose template has made Postern's roles
	db := testkit.EmptyDatabase(t, "")
	admin, err := pgxpool.New(t.Context(), db.URL)
	must(t, err)
	t.Cleanup(admin.Close)
	u, err := url.Parse(db.URL)
	must(t, err)
	for _, statement := range []string{"DROP ROLE IF EXISTS " + login, "CREATE ROLE " + login + " LOGIN " + options,
		"ALTER DATABASE " + strings.TrimPrefix(u.Path, "/") + " OWNER TO " + login} {
		execSQL(t, admin, statement)
	}
	q := u.Query()
	q.Set("user", login)
	u.RawQuery = q.Encode()
	return u.String()
}

func TestMigrate_ownerWithoutSuperuser_succeeds(t *testing.T) {
	t.Parallel()
	url := ownedBy(t, "owner_with_roles", "IN ROLE postern_maintenance, postern_gateway, postern_processor, "+
		"postern_operator, postern_reader")
	if got, err := postgres.Migrate(t.Context(), url); err != nil || got != len(files(t)) {
		t.Fatalf("applied %d, %v; want %d", got, err, len(files(t)))
	}
	for _, role := range []string{"postern_gateway", "postern_processor", "postern_maintenance", "postern_operator"} {
		pool, err := postgres.Connect(t.Context(), postgres.Options{URL: url, Role: role})
		must(t, err)
		pool.Close()
	}
}

func TestMigrate_loginWithoutCreateRole_namesCommand(t *testing.T) {
	t.Parallel()
	_, err := postgres.Migrate(t.Context(), ownedBy(t, "owner_without_roles", ""))
	if err == nil || !strings.Contains(err.Error(), "ALTER ROLE owner_without_roles CREATEROLE") {
		t.Errorf("got %v; want what an administrator can run", err)
	}
}

// A daemon's login is granted the daemon's role alone; its admin interface acts as the operator.
func TestDaemons_operatorRole_isNotInherited(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	for _, role := range []string{"gateway", "processor"} {
		pool := db.Role(t, role)
		var member, inherits bool
		err := pool.QueryRow(t.Context(), `SELECT pg_has_role(current_user, 'postern_operator', 'MEMBER'),
			pg_has_role(current_user, 'postern_operator', 'USAGE')`).
			Scan(&member, &inherits)
		if err != nil || !member || inherits {
			t.Errorf("%s: may act as the operator %t, inherits %t, %v; want true and false", role, member, inherits,
				err)
		}
	}
}
