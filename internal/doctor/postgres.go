package doctor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
)

const (
	settingsSQL = `SELECT name, setting FROM pg_settings WHERE name = ANY($1::text[])`

	stateSQL = `
SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', clock_now(),
	pg_database_size(current_database()),
  (SELECT coalesce(sum(d.numbackends), 0)::bigint FROM pg_stat_database d), (SELECT r.rolsuper FROM pg_roles r
  	WHERE r.rolname = session_user)`

	slotsSQL = `
SELECT s.slot_name::text, s.active, coalesce(s.wal_status, ''),
  CASE WHEN pg_is_in_recovery() THEN 0 ELSE coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)::bigint
  	END
FROM pg_replication_slots s ORDER BY 1`

	// standbysSQL counts all standbys, those whose state this login may see, and those that commits
	// wait for.
	standbysSQL = `SELECT count(*), count(r.sync_state), count(*) FILTER (WHERE r.sync_state IN ('sync', 'quorum'))
		FROM pg_stat_replication r`

	rolesSQL = `SELECT r.name FROM unnest($1::text[]) r(name) WHERE to_regrole(r.name) IS NULL`

	// rightsSQL finds rights that differ from those that the migrations grant.
	rightsSQL = `
SELECT r.role, r.right, r.tab, r.wanted FROM unnest($1::text[], $2::text[], $3::text[], $4::boolean[]) AS r(role,
	"right", tab, wanted)
WHERE has_table_privilege(r.role, 'postern.' || r.tab, r."right") <> r.wanted ORDER BY 1, 2, 3`

	// unguardedSQL finds partitions of the log that can be changed, or whose triggers a daemon
	// could remove.
	unguardedSQL = `
SELECT c.relname::text, coalesce(g.n, 0), pg_get_userbyid(c.relowner)::text FROM pg_class c
LEFT JOIN LATERAL (SELECT count(*) AS n FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgenabled IN ('O', 'A')
	AND t.tgname IN ('events_append_only', 'events_no_truncate')) g ON true
WHERE (c.oid = 'events'::regclass OR c.oid IN (SELECT i.inhrelid FROM pg_inherits i
	WHERE i.inhparent = 'events'::regclass))
  AND (g.n < 2 OR c.relowner <> 'postern_maintenance'::regrole) ORDER BY 1`

	oldestDaySQL = `
SELECT coalesce(min(m.b[1]::bigint), 0) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
CROSS JOIN LATERAL (SELECT regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO \(''?(\d+)''?\)') AS b) m
WHERE i.inhparent = 'events'::regclass AND NOT i.inhdetachpending`
)

// checkPostgres checks the server and the database. A check that fails is reported, and the others
// still run, unless the server is unavailable.
func (e *examination) checkPostgres(ctx context.Context) {
	if e.PoolError != nil {
		e.add(Error, "postgres.reached", e.PoolError.Error(), "start PostgreSQL, or correct database.url; nothing "+
			"else of PostgreSQL was checked")
		return
	}
	if e.Pool == nil {
		return
	}
	for _, check := range []struct {
		name string
		run  func(context.Context) error
	}{
		{"postgres.reached", e.checkState}, {"postgres.settings", e.checkSettings}, {"postgres.schema", e.checkSchema},
		{"postgres.slots", e.checkSlots}, {"postgres.standby", e.checkStandbys},
		{"postgres.rights", e.checkRights}, {"postgres.log", e.checkLog}, {"postgres.processor", e.checkProcessor},
		{"postgres.event_delay", e.checkEventDelays}, {"postgres.spools", e.checkSpools},
		{"spool.files", e.checkLocalSpools},
	} {
		err := check.run(ctx)
		if check.name == "postgres.reached" && postgres.IsUnavailable(err) {
			e.add(Error, check.name, err.Error(), "start PostgreSQL, or correct database.url; nothing else of "+
				"PostgreSQL was checked")
			return
		}
		if err != nil {
			e.add(Error, check.name, "check failed: "+err.Error(),
				"correct the error; if the schema is the reason, run: postern migrate up")
		}
	}
}

// clockWarn and clockError limit the difference between clocks. A gateway accepts a provider's
// signed time only if it differs from its own clock by a few minutes at most.
const (
	clockWarn  = 2 * time.Second
	clockError = 60 * time.Second
)

func (e *examination) checkState(ctx context.Context) error {
	var standby, readOnly, super bool
	var clock time.Time
	var size, sessions int64
	requestedAt := e.Now()
	if err := e.Pool.QueryRow(ctx, stateSQL).Scan(&standby, &readOnly, &clock, &size, &sessions, &super); err != nil {
		return err
	}
	duration := e.Now().Sub(requestedAt)
	switch {
	case standby:
		e.add(Error, "postgres.reached", "it is a standby, which cannot store deliveries",
			"name the primary in database.url, or all hosts, separated by commas")
	case readOnly:
		e.add(Error, "postgres.reached", "sessions are read-only (default_transaction_read_only)",
			"ALTER SYSTEM RESET default_transaction_read_only, and check whether the database or the login sets it")
	default:
		e.add(OK, "postgres.reached", "it is reachable and writable", "")
	}
	e.databaseAhead, e.databaseKnown = clock.Sub(requestedAt.Add(duration/2)), true
	e.checkClock("postgres.clock", "PostgreSQL's clock", e.databaseAhead, duration)
	e.checkSize(size)
	e.sessions = sessions
	e.add(okIf(!super, Warn), "postgres.login",
		map[bool]string{true: "this login is a superuser, to whom no restriction applies",
			false: "this login is not a superuser"}[super],
		"give each daemon its own login with only its role (deploy/logins.sql)")
	return nil
}

// checkClock compares a clock with this machine's. duration is the time that the request took; it
// limits the precision.
func (e *examination) checkClock(name, clock string, ahead, duration time.Duration) {
	off := max(ahead.Abs()-duration/2, 0)
	verdict := verdictFor(off > clockError, off > clockWarn)
	e.add(verdict, name, fmt.Sprintf("%s and this machine's are at most %s apart", clock,
		(ahead.Abs()+duration/2).Round(time.Millisecond)), "synchronize the clocks of all machines with NTP "+
		"(timedatectl, chronyc tracking): deliveries whose signed time is too far off are rejected")
}

// diskWarn and diskError are fractions of PostgreSQL's disk.
const (
	diskWarn  = 0.7
	diskError = 0.9
)

func (e *examination) checkSize(size int64) {
	if e.DatabaseDisk <= 0 {
		e.add(OK, "postgres.disk", fmt.Sprintf("the database has %d MiB; the size of its disk is unknown "+
			"(give it with --database-disk)", size>>20), "")
		return
	}
	share := float64(size) / float64(e.DatabaseDisk)
	verdict := verdictFor(share > diskError, share > diskWarn)
	e.add(verdict, "postgres.disk", fmt.Sprintf("the database has %d MiB, %.0f %% of the given disk size, without "+
		"the write-ahead log", size>>20, 100*share),
		"free space, or drop old days (retention.bodies): a full disk makes PostgreSQL unavailable")
}

// setting is a setting of the server, with its unsafe values and the consequence of these.
type setting struct {
	name        string
	unsafe      []string
	verdict     Verdict
	consequence string
}

var settings = []setting{
	{"fsync", []string{"off"}, Error, "a power failure can destroy acknowledged deliveries and damage the database"},
	{"full_page_writes", []string{"off"}, Error, "a power failure can leave half-written pages, which cannot be " +
		"repaired"},
	{"synchronous_commit", []string{"off", "local", "remote_write"}, Error,
		"an acknowledgement does not guarantee a durable commit"},
	{"zero_damaged_pages", []string{"on"}, Error, "rows of damaged pages are lost without an error"},
	{"ignore_checksum_failure", []string{"on"}, Error, "damaged pages are read as if they were intact"},
	{"autovacuum", []string{"off"}, Error, "tables grow without limit, and the server stops when it runs out of " +
		"transaction ids"},
	{"track_counts", []string{"off"}, Error, "autovacuum has no statistics and does nothing"},
	{"data_checksums", []string{"off"}, Warn, "errors of a disk are not detected"},
	{"wal_level", []string{"minimal"}, Warn, "neither a standby nor point-in-time recovery is possible"},
}

// settingRemedies say what to do where ALTER SYSTEM and a reload are not enough.
var settingRemedies = map[string]string{
	"data_checksums":     "stop the server and run pg_checksums --enable",
	"wal_level":          "ALTER SYSTEM SET wal_level = replica, and restart the server",
	"synchronous_commit": "remove it from database.url, and configure the pooler to pass on session parameters",
}

func (e *examination) checkSettings(ctx context.Context) error {
	have, err := e.readSettings(ctx)
	if err != nil {
		return err
	}
	e.add(OK, "postgres.version", have["server_version"], "") // the connection rejects older versions
	for _, s := range settings {
		verdict, found, do := OK, have[s.name], ""
		for _, bad := range s.unsafe {
			if have[s.name] == bad {
				verdict, found = s.verdict, bad+": "+s.consequence
				do = settingRemedies[s.name]
				if do == "" {
					do = "ALTER SYSTEM RESET " + s.name + "; SELECT pg_reload_conf(); and check postgresql.conf " +
						"if it does not change"
				}
			}
		}
		e.add(verdict, "postgres."+s.name, found, do)
	}
	e.checkConnections(have)
	e.checkLocks(have)
	e.syncNames = have["synchronous_standby_names"]
	return nil
}

func (e *examination) readSettings(ctx context.Context) (map[string]string, error) {
	names := []string{"server_version", "max_connections", "superuser_reserved_connections",
		"max_locks_per_transaction", "synchronous_standby_names", "max_wal_size"}
	for _, s := range settings {
		names = append(names, s.name)
	}
	have := map[string]string{}
	var name, value string
	err := postgres.ForEach(ctx, e.Pool, settingsSQL, []any{names}, []any{&name, &value},
		func() error { have[name] = value; return nil })
	return have, err
}

// checkConnections requires capacity for one more daemon, because an upgrade runs an additional one
// for a while.
func (e *examination) checkConnections(have map[string]string) {
	most, _ := strconv.ParseInt(have["max_connections"], 10, 64)
	reserved, _ := strconv.ParseInt(have["superuser_reserved_connections"], 10, 64)
	free, need := most-reserved-e.sessions, int64(processorConnections)
	if e.Config != nil {
		need = int64(e.Config.Database.MaxConnections) + 6 + 7*int64(e.Config.Processor.Workers+2) + otherConnections
	}
	e.add(okIf(free >= need, Warn), "postgres.connections", fmt.Sprintf("%d of %d are in use", e.sessions,
		most-reserved), fmt.Sprintf("a processor opens up to %d: raise max_connections (requires a restart of the "+
		"server), or lower database.max_connections of the daemons", need))
}

// otherConnections are those of a processor beside live events and runs: maintenance 2, operators
// 4, refetches 4, effects 5, alerts 2. processorConnections is the maximum of all with default
// settings.
const (
	otherConnections     = 17
	processorConnections = 16 + 6 + 7*4 + otherConnections
)

func (e *examination) checkLocks(have map[string]string) {
	perTransaction, _ := strconv.ParseInt(have["max_locks_per_transaction"], 10, 64)
	most, _ := strconv.ParseInt(have["max_connections"], 10, 64)
	held := int64(500 * 2)
	if e.Config != nil {
		held = int64(e.Config.Processor.Batch * e.Config.Processor.Workers)
	}
	const others = 2000 // a run alongside live events, and the locks on partitions
	e.add(okIf(perTransaction*most >= 2*held+others, Warn), "postgres.locks", fmt.Sprintf("capacity for %d locks; a "+
		"processor holds up to %d at once", perTransaction*most, held), "raise max_locks_per_transaction (256), "+
		"which requires a restart of the server; otherwise batches fail with: out of shared memory")
}

func (e *examination) checkSchema(ctx context.Context) error {
	err := postgres.CheckSchema(ctx, e.Pool)
	switch {
	case errors.Is(err, postgres.ErrSchemaBehind):
		e.add(Error, "postgres.schema", err.Error(), "postern migrate up")
	case errors.Is(err, postgres.ErrSchemaNewer):
		e.add(Error, "postgres.schema", err.Error(), "run the programs of that release")
	case err == nil:
		e.add(OK, "postgres.schema", "it matches this binary", "")
	}
	if errors.Is(err, postgres.ErrSchemaBehind) || errors.Is(err, postgres.ErrSchemaNewer) {
		return nil
	}
	return err
}

// maxRetainedWAL is how much of the write-ahead log a slot may retain.
const maxRetainedWAL = 1 << 30

func (e *examination) checkSlots(ctx context.Context) error {
	n := 0
	var name, status string
	var active bool
	var held int64
	if err := postgres.ForEach(ctx, e.Pool, slotsSQL, nil, []any{&name, &active, &status, &held}, func() error {
		n++
		verdict := verdictFor(status == "lost" || status == "unreserved" || !active && held > maxRetainedWAL, !active ||
			held > maxRetainedWAL)
		e.add(verdict, "postgres.slots", fmt.Sprintf("slot %s, %s, retains %d MiB of the write-ahead log", name,
			map[bool]string{true: "in use", false: "unused"}[active], held>>20),
			fmt.Sprintf("start the standby that uses it, or SELECT pg_drop_replication_slot('%s'): the retained log "+
				"fills the disk; max_slot_wal_keep_size limits it", name))
		return nil
	}); err != nil {
		return err
	}
	if n == 0 {
		e.add(OK, "postgres.slots", "no slots", "")
	}
	return nil
}

func (e *examination) checkStandbys(ctx context.Context) error {
	var all, visible, synchronous int64
	if err := e.Pool.QueryRow(ctx, standbysSQL).Scan(&all, &visible, &synchronous); err != nil {
		return err
	}
	const do = "start the standbys in synchronous_standby_names, or remove them there and SELECT pg_reload_conf()"
	switch {
	case e.syncNames != "" && all == 0:
		e.add(Error, "postgres.standby", "commits wait for "+e.syncNames+
			", and no standby is connected: nothing can be stored", do)
	case e.syncNames != "" && visible > 0 && synchronous == 0:
		e.add(Error, "postgres.standby", fmt.Sprintf("commits wait for %s, but none of %s is one of them", e.syncNames,
			countOf(int(all), "standby")), do)
	case e.syncNames != "" && visible == 0:
		e.add(OK, "postgres.standby", fmt.Sprintf("commits wait for %s; %d are connected, but this login may not read "+
			"which of them are synchronous (GRANT pg_monitor)", e.syncNames, all), "")
	case e.syncNames != "":
		e.add(OK, "postgres.standby", fmt.Sprintf("commits wait for %d of %d connected standbys: acknowledged "+
			"deliveries survive the loss of the primary", synchronous, all), "")
	case all == 0:
		e.add(OK, "postgres.standby", "no standby is connected, and commits wait for none: acknowledged deliveries "+
			"are as safe as the disk of this server", "")
	default:
		e.add(OK, "postgres.standby", fmt.Sprintf("commits wait for none of %d connected standbys: acknowledged "+
			"deliveries are as safe as the disk of this server", all), "")
	}
	return nil
}

// right is a table privilege that a role must have, or must not have.
type right struct {
	role, right, table string
	wanted             bool
}

var rights = []right{
	{"postern_gateway", "INSERT", "events", true}, {"postern_gateway", "INSERT", "event_keys", true},
	{"postern_gateway", "INSERT", "rejections", true},
	{"postern_gateway", "UPDATE", "events", false}, {"postern_gateway", "DELETE", "events", false},
	{"postern_gateway", "TRUNCATE", "events", false},
	{"postern_gateway", "DELETE", "event_keys", false}, {"postern_gateway", "UPDATE", "event_keys", false},
	{"postern_processor", "SELECT", "events", true}, {"postern_processor", "UPDATE", "objects", true},
	{"postern_processor", "INSERT", "outcomes", true},
	{"postern_processor", "UPDATE", "events", false}, {"postern_processor", "DELETE", "events", false},
	{"postern_processor", "TRUNCATE", "events", false}, {"postern_processor", "DELETE", "outcomes", false},
	{"postern_operator", "SELECT", "events", true}, {"postern_operator", "SELECT", "objects", true},
	{"postern_operator", "INSERT", "events", false}, {"postern_operator", "UPDATE", "events", false},
	{"postern_operator", "DELETE", "events", false}, {"postern_operator", "UPDATE", "objects", false},
}

func (e *examination) checkRights(ctx context.Context) error {
	missing, err := postgres.Collect(ctx, e.Pool, pgx.RowTo[string], rolesSQL,
		[]string{"postern_gateway", "postern_processor", "postern_operator",
			"postern_maintenance", "postern_reader"})
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		e.add(Error, "postgres.roles", "missing roles: "+joinWords(missing), "postern migrate up")
		return nil
	}
	roles, names, tables, wanted := make([]string, len(rights)), make([]string, len(rights)),
		make([]string, len(rights)), make([]bool, len(rights))
	for i, r := range rights {
		roles[i], names[i], tables[i], wanted[i] = r.role, r.right, r.table, r.wanted
	}
	wrong := 0
	var r right
	if err := postgres.ForEach(ctx, e.Pool, rightsSQL, []any{roles, names, tables, wanted},
		[]any{&r.role, &r.right, &r.table, &r.wanted}, func() error {
			wrong++
			found, do := fmt.Sprintf("%s may %s %s, which this role must not", r.role, r.right, r.table),
				fmt.Sprintf("REVOKE %s ON postern.%s FROM %s", r.right, r.table, r.role)
			if r.wanted {
				found, do = fmt.Sprintf("%s may not %s %s, which it needs", r.role, r.right, r.table),
					fmt.Sprintf("GRANT %s ON postern.%s TO %s", r.right, r.table, r.role)
			}
			e.add(Error, "postgres.rights", found,
				do+"; run it as postern_maintenance, which owns the tables, or as superuser")
			return nil
		}); err != nil {
		return err
	}
	if wrong == 0 {
		e.add(OK, "postgres.rights", "the roles have the privileges that they need, and cannot change the log", "")
	}
	return nil
}
