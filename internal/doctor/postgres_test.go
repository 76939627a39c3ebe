package doctor_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/doctor"
	"github.com/postern-gateway/postern/internal/testkit"
)

// A server with default settings is accepted. Each setting that weakens a guarantee is reported
// while it is active.
func TestExamine_unsafeSettings_areReported(t *testing.T) {
	t.Parallel()
	owner, url := cluster(t, nil)
	testkit.ExecSQL(t, owner, `CREATE ROLE plain LOGIN`)
	testkit.ExecSQL(t, owner, `GRANT postern_operator TO plain`)
	operator := open(t, url+"&user=plain", "postern_operator")
	examine := func() *doctor.Report { return doctor.Examine(t.Context(), doctor.Options{Pool: operator}) }
	if r := examine(); r.Errors+r.Warnings > 0 || len(r.Checks) < 15 {
		t.Errorf("before any change: %+v", r)
	}
	for _, c := range []struct {
		name, value string
		check       string
		verdict     doctor.Verdict
	}{
		{"fsync", "off", "postgres.fsync", doctor.Error},
		{"full_page_writes", "off", "postgres.full_page_writes", doctor.Error},
		{"zero_damaged_pages", "on", "postgres.zero_damaged_pages", doctor.Error},
		{"ignore_checksum_failure", "on", "postgres.ignore_checksum_failure", doctor.Error},
		{"autovacuum", "off", "postgres.autovacuum", doctor.Error},
		{"track_counts", "off", "postgres.track_counts", doctor.Error},
		{"synchronous_standby_names", "nobody", "postgres.standby", doctor.Error},
	} {
		set := func(sql string, bad int) {
			t.Helper()
			testkit.ExecSQL(t, owner, sql)
			testkit.ExecSQL(t, owner, `SELECT pg_reload_conf()`)
			// a session sees the change at its next statement, or shortly after
			testkit.Eventually(t, time.Minute, func() error {
				if r := examine(); len(findings(r, c.check)) != bad {
					return fmt.Errorf("%s: %+v", sql, r)
				}
				return nil
			})
		}
		set(fmt.Sprintf("ALTER SYSTEM SET %s = '%s'", c.name, c.value), 1)
		want(t, examine(), c.check, c.verdict, "")
		set("ALTER SYSTEM RESET "+c.name, 0)
	}
	testkit.ExecSQL(t, owner, `SELECT pg_create_physical_replication_slot('gone', true)`)
	want(t, examine(), "postgres.slots", doctor.Warn, "slot gone, unused, retains")
	weak, err := pgxpool.New(t.Context(), url+"&search_path=postern&synchronous_commit=off")
	testkit.Must(t, err)
	defer weak.Close()
	want(t, doctor.Examine(t.Context(), doctor.Options{Pool: weak}), "postgres.synchronous_commit", doctor.Error, "off")
}

// Settings that need a restart of the server are reported too.
func TestExamine_smallServer_isReported(t *testing.T) {
	t.Parallel()
	owner, _ := cluster(t, map[string]string{"wal_level": "minimal", "max_wal_senders": "0", "max_connections": "20",
		"max_locks_per_transaction": "10"})
	r := doctor.Examine(t.Context(), doctor.Options{Pool: owner, Config: configured(t)})
	want(t, r, "postgres.wal_level", doctor.Warn, "neither a standby nor point-in-time recovery")
	want(t, r, "postgres.connections", doctor.Warn, " of 17 are in use")
	want(t, r, "postgres.locks", doctor.Warn, "capacity for 200 locks")
	want(t, r, "postgres.login", doctor.Warn, "superuser")
}

// Differences from a database with running daemons are reported, with the remedy.
func TestExamine_database_isChecked(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// damage is executed by the owner; tune changes the options of the check.
		damage  string
		tune    func(*doctor.Options)
		check   string
		verdict doctor.Verdict
		found   string
	}{
		"an additional right": {`GRANT UPDATE ON events TO postern_gateway`, nil, "postgres.rights",
			doctor.Error, "postern_gateway may UPDATE events"},
		"a missing right": {`REVOKE INSERT ON outcomes FROM postern_processor`, nil,
			"postgres.rights", doctor.Error, "postern_processor may not INSERT outcomes"},
		"a disabled trigger": {`ALTER TABLE events DISABLE TRIGGER events_no_truncate`, nil,
			"postgres.append_only", doctor.Error, "table events, owned by postern_maintenance, has 1 of the 2"},
		"another owner": {`ALTER TABLE events OWNER TO postern_gateway`, nil,
			"postgres.append_only", doctor.Error, "owned by postern_gateway"},
		"an older schema": {`DELETE FROM schema_migrations WHERE version_id = (SELECT max(version_id)
			FROM schema_migrations)`, nil, "postgres.schema", doctor.Error, "older"},
		"a newer schema": {`INSERT INTO schema_migrations (version_id, is_applied)
			VALUES (9999, true)`, nil, "postgres.schema", doctor.Error, "newer"},
		"no partitions ahead": {`DO $$ DECLARE p text; BEGIN FOR p IN SELECT inhrelid::regclass
			FROM pg_inherits WHERE inhparent = 'events'::regclass LOOP EXECUTE 'DROP TABLE ' || p; END LOOP; END $$`,
			nil, "postgres.partitions", doctor.Error, "the log has partitions until"},
		"few partitions ahead": {`DO $$ BEGIN EXECUTE 'DROP TABLE events_' || to_char((now() + interval '3 days') ` +
			`AT TIME ZONE 'UTC', 'YYYYMMDD'); END $$`,
			nil, "postgres.partitions", doctor.Warn, "the log has partitions until"},
		"no processor": {`DELETE FROM checkpoints`, nil, "postgres.processor", doctor.Warn,
			"no processor is running"},
		"a spool not emptied": {`INSERT INTO spools (spool, location, drained_at)
			VALUES ('here', 'here:/spool', now()), ('old', 'there:/spool', now() - interval '10 min')`, nil,
			"postgres.spools", doctor.Warn, "redactions wait for the spool there:/spool (old), which was last empty " +
				"10m0s ago"},
		"a spool that never reported": {`INSERT INTO spools (spool, location, drained_at)
			VALUES ('here', 'here:/spool', now()), ('old', 'there:/spool', '-infinity')`, nil, "postgres.spools",
			doctor.Warn, "redactions wait for the spool there:/spool (old), which was never reported empty"},
		"a spool with a new name": {`INSERT INTO spools (spool, location, drained_at)
			VALUES ('new', 'here:/spool', now()), ('old', 'here:/spool', now() - interval '10 min')`, nil,
			"postgres.spools", doctor.Warn, "the folder now has another spool name"},
		"events long after their time": {arrives(12 * time.Second), nil, "postgres.event_delay", doctor.Warn,
			"events of source shop arrive at least 12"},
		"events with a time in the future": {arrives(-12 * time.Second), nil, "postgres.event_delay", doctor.Warn,
			"events of source shop have times up to 1"},
		"a wrong clock": {`SELECT 1`,
			func(o *doctor.Options) {
				o.Now = func() time.Time { return time.Now().Add(-10 * time.Second) }
			}, "postgres.clock", doctor.Warn, "apart"},
		"a very wrong clock": {`SELECT 1`,
			func(o *doctor.Options) {
				o.Now = func() time.Time { return time.Now().Add(2 * time.Minute) }
			}, "postgres.clock", doctor.Error, "apart"},
		"a nearly full disk": {`SELECT 1`, func(o *doctor.Options) { o.DatabaseDisk = 1 << 20 },
			"postgres.disk", doctor.Error, "of the given disk size"},
		"a day older than retention.bodies": {`SELECT ensure_partitions((extract(epoch FROM now())::bigint - 9 * 86400)
			* 1000, (extract(epoch FROM now())::bigint - 9 * 86400) * 1000)`, func(o *doctor.Options) {
			o.Config.Retention.Bodies = 2
		}, "postgres.retention", doctor.Warn, "retention.bodies is 2 days"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testkit.Database(t)
			prepare(t, db.Pool)
			o := doctor.Options{Pool: db.Role(t, "operator"), Config: configured(t)}
			if c.tune != nil {
				c.tune(&o)
			} else if bad := findings(doctor.Examine(t.Context(), o), c.check); len(bad) > 0 {
				t.Fatalf("before: %+v", bad)
			}
			testkit.ExecSQL(t, db.Pool, c.damage)
			want(t, doctor.Examine(t.Context(), o), c.check, c.verdict, c.found)
		})
	}
}

// arrives inserts the outcome of an event that was appended the given time after the provider's
// time.
func arrives(after time.Duration) string {
	return fmt.Sprintf(`
		INSERT INTO sources (number, name, provider) OVERRIDING SYSTEM VALUE VALUES (7, 'shop', 'stripe');
		INSERT INTO rate_budgets (source, account, tokens, refilled_at, blocked_until, throttles, in_flight)
			VALUES (7, '', 1, now(), now(), 0, '{}');
		INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, version,
			attempts, at, rule_version)
		SELECT ms << 20, 0, 7, 1, '', 'customer', 'cus_1', 'applied', 'new', jsonb_build_object('at', ms * 1000 - %d,
			'seen', 0), 1, now(), 3
		FROM (SELECT (extract(epoch FROM now()) * 1000)::bigint AS ms) n`, after.Microseconds())
}

// A database that is read-only is reported, and the other checks still run. One that is unavailable
// is reported once.
func TestExamine_databaseUnavailable_isReported(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	prepare(t, db.Pool)
	testkit.ExecSQL(t, db.Pool, `DO $$ BEGIN EXECUTE 'ALTER DATABASE ' || current_database() ||
		' SET default_transaction_read_only = on'; END $$`)
	want(t, doctor.Examine(t.Context(), doctor.Options{Pool: db.Role(t, "operator")}), "postgres.reached", doctor.Error,
		"read-only")
	r := doctor.Examine(t.Context(), doctor.Options{PoolError: errors.New("nobody answers"),
		ConnError: errors.New("no server"), Config: configured(t)})
	want(t, r, "postgres.reached", doctor.Error, "nobody answers")
	want(t, r, "nats.reached", doctor.Error, "no server")
	want(t, r, "spool.folder", doctor.OK, "is writable")
	proxy := testkit.Proxy(t, db.URL)
	pool := open(t, proxy.URL, "postern_operator")
	proxy.Cut()
	r = doctor.Examine(t.Context(), doctor.Options{Pool: pool})
	if n := len(findings(r, "postgres.reached")); n != 1 || r.Errors != 1 { // one cause, one finding
		t.Errorf("%+v", r)
	}
}

// A test cannot create some states of a server. It simulates them with views and functions in a
// schema that precedes pg_catalog in the search path.
func TestExamine_simulatedStates_areReported(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		fake    string
		check   string
		verdict doctor.Verdict
		found   string
	}{
		"no checksums": {`CREATE VIEW fake.pg_settings AS SELECT s.name, CASE s.name WHEN 'data_checksums' THEN 'off'
			ELSE s.setting END AS setting FROM pg_catalog.pg_settings s`,
			"postgres.data_checksums", doctor.Warn, "not detected"},
		"a missing role": {`CREATE FUNCTION fake.to_regrole(name text) RETURNS regrole LANGUAGE sql AS $$
			SELECT pg_catalog.to_regrole(nullif(name, 'postern_reader')) $$`,
			"postgres.roles", doctor.Error, "missing roles: postern_reader"},
		"a slot that lost its log": {`CREATE VIEW fake.pg_replication_slots AS SELECT 'late'::text AS slot_name,
			true AS active, 'lost'::text AS wal_status, NULL::pg_lsn AS restart_lsn`,
			"postgres.slots", doctor.Error, "slot late, in use"},
		"standbys that commits do not wait for": {`CREATE VIEW fake.pg_settings AS SELECT s.name, CASE s.name
			WHEN 'synchronous_standby_names' THEN 'pg2' ELSE s.setting END AS setting FROM pg_catalog.pg_settings s;
			CREATE VIEW fake.pg_stat_replication AS SELECT 'async'::text AS sync_state`, "postgres.standby",
			doctor.Error, "commits wait for pg2, but none of 1 standby is one of them"},
		"a standby that commits wait for": {`CREATE VIEW fake.pg_settings AS SELECT s.name, CASE s.name
			WHEN 'synchronous_standby_names' THEN 'pg2' ELSE s.setting END AS setting FROM pg_catalog.pg_settings s;
			CREATE VIEW fake.pg_stat_replication AS SELECT 'sync'::text AS sync_state`, "postgres.standby", doctor.OK,
			"survive the loss of the primary"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			db := testkit.Database(t)
			prepare(t, db.Pool)
			testkit.ExecSQL(t, db.Pool, `CREATE SCHEMA fake`)
			for _, sql := range strings.Split(c.fake, ";\n") {
				testkit.ExecSQL(t, db.Pool, sql)
			}
			cfg, err := pgxpool.ParseConfig(db.URL)
			testkit.Must(t, err)
			cfg.ConnConfig.RuntimeParams["search_path"] = "fake, pg_catalog, postern"
			pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
			testkit.Must(t, err)
			defer pool.Close()
			want(t, doctor.Examine(t.Context(), doctor.Options{Pool: pool}), c.check, c.verdict, c.found)
		})
	}
}
