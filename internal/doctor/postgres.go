package doctor

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/reconcile"
)

const (
	settingsSQL = `SELECT name, setting FROM pg_settings WHERE name = ANY($1::text[])`

	stateSQL = `
SELECT pg_is_in_recovery(), current_setting('transaction_read_only') = 'on', clock_now(), pg_database_size(current_database()),
  (SELECT coalesce(sum(d.numbackends), 0)::bigint FROM pg_stat_database d), (SELECT r.rolsuper FROM pg_roles r WHERE r.rolname = session_user)`

	slotsSQL = `
SELECT s.slot_name::text, s.active, coalesce(s.wal_status, ''),
  CASE WHEN pg_is_in_recovery() THEN 0 ELSE coalesce(pg_wal_lsn_diff(pg_current_wal_lsn(), s.restart_lsn), 0)::bigint END
FROM pg_replication_slots s ORDER BY 1`

	// standbysSQL counts standbys, those whose kind this login may see, and those that commits wait for.
	standbysSQL = `SELECT count(*), count(r.sync_state), count(*) FILTER (WHERE r.sync_state IN ('sync', 'quorum')) FROM pg_stat_replication r`

	rolesSQL = `SELECT r.name FROM unnest($1::text[]) r(name) WHERE to_regrole(r.name) IS NULL`

	// rightsSQL finds rights that are not as the migrations give them.
	rightsSQL = `
SELECT r.role, r.right, r.tab, r.wanted FROM unnest($1::text[], $2::text[], $3::text[], $4::boolean[]) AS r(role, "right", tab, wanted)
WHERE has_table_privilege(r.role, 'postern.' || r.tab, r."right") <> r.wanted ORDER BY 1, 2, 3`

	// unguardedSQL finds parts of the log that can be changed, or that a daemon could take the guards from.
	unguardedSQL = `
SELECT c.relname::text, coalesce(g.n, 0), pg_get_userbyid(c.relowner)::text FROM pg_class c
LEFT JOIN LATERAL (SELECT count(*) AS n FROM pg_trigger t WHERE t.tgrelid = c.oid AND t.tgenabled IN ('O', 'A') AND t.tgname IN ('events_append_only', 'events_no_truncate')) g ON true
WHERE (c.oid = 'events'::regclass OR c.oid IN (SELECT i.inhrelid FROM pg_inherits i WHERE i.inhparent = 'events'::regclass))
  AND (g.n < 2 OR c.relowner <> 'postern_maintenance'::regrole) ORDER BY 1`

	oldestDaySQL = `
SELECT coalesce(min(m.b[1]::bigint), 0) FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
CROSS JOIN LATERAL (SELECT regexp_match(pg_get_expr(c.relpartbound, c.oid), 'TO \(''?(\d+)''?\)') AS b) m
WHERE i.inhparent = 'events'::regclass AND NOT i.inhdetachpending`
)

// Statements are all SQL statements of this package, for the test that prepares each.
func Statements() []string {
	return []string{settingsSQL, stateSQL, slotsSQL, standbysSQL, rolesSQL, rightsSQL, unguardedSQL, oldestDaySQL, spoolsSQL, apiSourcesSQL}
}

// postgres looks at the server and the database. What cannot be asked is told by itself, and the rest is looked at all the same.
func (e *examination) postgres(ctx context.Context) {
	if e.PoolError != nil {
		e.add(Error, "postgres.reached", e.PoolError.Error(), "start PostgreSQL, or mend database.url; nothing else of PostgreSQL was looked at")
		return
	}
	if e.Pool == nil {
		return
	}
	for _, look := range []struct {
		name string
		at   func(context.Context) error
	}{
		{"postgres.reached", e.state}, {"postgres.settings", e.settings}, {"postgres.schema", e.schema}, {"postgres.slots", e.slots}, {"postgres.standby", e.standbys},
		{"postgres.rights", e.rights}, {"postgres.log", e.log}, {"postgres.processor", e.applied}, {"postgres.event_delay", e.eventDelays}, {"postgres.spools", e.spools}, {"spool.files", e.localSpools},
	} {
		if err := look.at(ctx); err != nil {
			e.add(Error, look.name, "cannot be looked at: "+err.Error(), "mend what keeps this from being looked at; where it is the schema, run: postern migrate up")
		}
	}
}

// clockWarn and clockError are how far clocks may be apart: signed times are taken some minutes wrong.
const (
	clockWarn  = 2 * time.Second
	clockError = 60 * time.Second
)

func (e *examination) state(ctx context.Context) error {
	var standby, readOnly, super bool
	var clock time.Time
	var size, sessions int64
	asked := e.Now()
	if err := e.Pool.QueryRow(ctx, stateSQL).Scan(&standby, &readOnly, &clock, &size, &sessions, &super); err != nil {
		return err
	}
	took := e.Now().Sub(asked)
	switch {
	case standby:
		e.add(Error, "postgres.reached", "it is a standby, which takes no deliveries", "name the primary in database.url, or all hosts, separated by commas")
	case readOnly:
		e.add(Error, "postgres.reached", "sessions are read-only (default_transaction_read_only)", "ALTER SYSTEM RESET default_transaction_read_only, and look whether the database or the login sets it")
	default:
		e.add(OK, "postgres.reached", "it answers, and takes writes", "")
	}
	e.databaseAhead, e.databaseKnown = clock.Sub(asked.Add(took/2)), true
	e.clock("postgres.clock", "PostgreSQL's clock", e.databaseAhead, took)
	e.size(size)
	e.sessions = sessions
	e.add(unless(!super, Warn), "postgres.login", map[bool]string{true: "this login is a superuser, whom no right is refused", false: "this login is no superuser"}[super],
		"give each daemon a login of its own that may only act as its role (deploy/logins.sql)")
	return nil
}

// clock tells how far a clock is from this machine's; what the answer took is no difference.
func (e *examination) clock(name, whose string, ahead, took time.Duration) {
	off := max(ahead.Abs()-took/2, 0)
	verdict := OK
	switch {
	case off > clockError:
		verdict = Error
	case off > clockWarn:
		verdict = Warn
	}
	e.add(verdict, name, fmt.Sprintf("%s and this machine's are at most %s apart", whose, (ahead.Abs()+took/2).Round(time.Millisecond)),
		"have all machines set their clocks by NTP (timedatectl, chronyc tracking): signed times that do not fit are refused")
}

// warnFull and errorFull are parts of the disk of PostgreSQL.
const (
	warnFull  = 0.7
	errorFull = 0.9
)

func (e *examination) size(size int64) {
	if e.DatabaseDisk <= 0 {
		e.add(OK, "postgres.disk", fmt.Sprintf("the database has %d MiB; how large its disk is cannot be asked (--database-disk tells)", size>>20), "")
		return
	}
	share := float64(size) / float64(e.DatabaseDisk)
	verdict := OK
	switch {
	case share > errorFull:
		verdict = Error
	case share > warnFull:
		verdict = Warn
	}
	e.add(verdict, "postgres.disk", fmt.Sprintf("the database has %d MiB, %.0f %% of the disk that was told, without the write-ahead log", size>>20, 100*share),
		"make room, or have old days dropped (retention.bodies): a full disk is as PostgreSQL away")
}

// setting is one of the server's, and what is wrong with it.
type setting struct {
	name string
	// bad are values that are not wanted.
	bad     []string
	verdict Verdict
	means   string
}

var settings = []setting{
	{"fsync", []string{"off"}, Error, "a power cut may take what was acknowledged, and break the database"},
	{"full_page_writes", []string{"off"}, Error, "a power cut may leave half-written pages, which nothing mends"},
	{"synchronous_commit", []string{"off", "local", "remote_write"}, Error, "an acknowledgement does not stand for a durable commit"},
	{"zero_damaged_pages", []string{"on"}, Error, "damaged pages lose their rows without a word"},
	{"ignore_checksum_failure", []string{"on"}, Error, "damaged pages are read as if they were whole"},
	{"autovacuum", []string{"off"}, Error, "tables grow without end, and the server stops when it runs out of transaction ids"},
	{"track_counts", []string{"off"}, Error, "autovacuum does not know what to do, and does nothing"},
	{"data_checksums", []string{"off"}, Warn, "what a disk gets wrong is not noticed"},
	{"wal_level", []string{"minimal"}, Warn, "there can be neither a standby nor a backup to a point in time"},
}

// mendSettings say what to do where ALTER SYSTEM and a reload are not enough.
var mendSettings = map[string]string{
	"data_checksums":     "stop the server and run pg_checksums --enable",
	"wal_level":          "ALTER SYSTEM SET wal_level = replica, and start the server again",
	"synchronous_commit": "take it out of database.url, and have a pooler pass on what sessions ask for",
}

func (e *examination) settings(ctx context.Context) error {
	have, err := e.readSettings(ctx)
	if err != nil {
		return err
	}
	e.add(OK, "postgres.version", have["server_version"], "") // older ones are refused by the connection
	for _, s := range settings {
		verdict, found, do := OK, have[s.name], ""
		for _, bad := range s.bad {
			if have[s.name] == bad {
				verdict, found = s.verdict, bad+": "+s.means
				do = mendSettings[s.name]
				if do == "" {
					do = "ALTER SYSTEM RESET " + s.name + "; SELECT pg_reload_conf(); and look into postgresql.conf where it stays"
				}
			}
		}
		e.add(verdict, "postgres."+s.name, found, do)
	}
	e.connections(have)
	e.locks(have)
	e.syncNames = have["synchronous_standby_names"]
	return nil
}

func (e *examination) readSettings(ctx context.Context) (map[string]string, error) {
	names := []string{"server_version", "max_connections", "superuser_reserved_connections", "max_locks_per_transaction", "synchronous_standby_names", "max_wal_size"}
	for _, s := range settings {
		names = append(names, s.name)
	}
	rows, err := e.Pool.Query(ctx, settingsSQL, names)
	if err != nil {
		return nil, err
	}
	have := map[string]string{}
	var name, value string
	_, err = pgx.ForEachRow(rows, []any{&name, &value}, func() error { have[name] = value; return nil })
	return have, err
}

// connections wants room for one more daemon: while an upgrade goes on there is one more than before.
func (e *examination) connections(have map[string]string) {
	most, _ := strconv.ParseInt(have["max_connections"], 10, 64)
	reserved, _ := strconv.ParseInt(have["superuser_reserved_connections"], 10, 64)
	room, need := most-reserved-e.sessions, int64(processorConnections)
	if e.Config != nil {
		need = int64(e.Config.Database.MaxConnections) + 6 + 7*int64(e.Config.Processor.Lanes+2) + 6
	}
	e.add(unless(room >= need, Warn), "postgres.connections", fmt.Sprintf("%d of %d are in use", e.sessions, most-reserved),
		fmt.Sprintf("a processor opens up to %d: raise max_connections (which starts the server again), or lower database.max_connections of the daemons", need))
}

// processorConnections is what a processor opens at most, with the shipped settings.
const processorConnections = 16 + 6 + 7*4 + 6

func (e *examination) locks(have map[string]string) {
	perTransaction, _ := strconv.ParseInt(have["max_locks_per_transaction"], 10, 64)
	most, _ := strconv.ParseInt(have["max_connections"], 10, 64)
	held := int64(500 * 2)
	if e.Config != nil {
		held = int64(e.Config.Processor.Batch * e.Config.Processor.Lanes)
	}
	const others = 2000 // a run beside live events, and the locks on partitions
	e.add(unless(perTransaction*most >= 2*held+others, Warn), "postgres.locks", fmt.Sprintf("room for %d locks; a processor holds up to %d at once", perTransaction*most, held),
		"raise max_locks_per_transaction (256), which starts the server again; else batches fail with: out of shared memory")
}

func (e *examination) schema(ctx context.Context) error {
	err := postgres.CheckSchema(ctx, e.Pool)
	switch {
	case errors.Is(err, postgres.ErrSchemaBehind):
		e.add(Error, "postgres.schema", err.Error(), "postern migrate up")
	case errors.Is(err, postgres.ErrSchemaNewer):
		e.add(Error, "postgres.schema", err.Error(), "run the programs of that release")
	case err == nil:
		e.add(OK, "postgres.schema", "it is this binary's", "")
	}
	if errors.Is(err, postgres.ErrSchemaBehind) || errors.Is(err, postgres.ErrSchemaNewer) {
		return nil
	}
	return err
}

// keptWAL is how much of the write-ahead log a slot may hold back.
const keptWAL = 1 << 30

func (e *examination) slots(ctx context.Context) error {
	rows, err := e.Pool.Query(ctx, slotsSQL)
	if err != nil {
		return err
	}
	n := 0
	var name, status string
	var active bool
	var held int64
	if _, err := pgx.ForEachRow(rows, []any{&name, &active, &status, &held}, func() error {
		n++
		verdict := OK
		switch {
		case status == "lost" || status == "unreserved" || !active && held > keptWAL:
			verdict = Error
		case !active || held > keptWAL:
			verdict = Warn
		}
		e.add(verdict, "postgres.slots", fmt.Sprintf("slot %s, %s, holds back %d MiB of the write-ahead log", name, map[bool]string{true: "in use", false: "used by nobody"}[active], held>>20),
			fmt.Sprintf("start the standby that uses it, or SELECT pg_drop_replication_slot('%s'): what it holds back fills the disk; max_slot_wal_keep_size bounds that", name))
		return nil
	}); err != nil {
		return err
	}
	if n == 0 {
		e.add(OK, "postgres.slots", "there are none", "")
	}
	return nil
}

func (e *examination) standbys(ctx context.Context) error {
	var all, seen, waited int64
	if err := e.Pool.QueryRow(ctx, standbysSQL).Scan(&all, &seen, &waited); err != nil {
		return err
	}
	const do = "start the standbys that synchronous_standby_names names, or take it out and SELECT pg_reload_conf()"
	switch {
	case e.syncNames != "" && all == 0:
		e.add(Error, "postgres.standby", "commits wait for "+e.syncNames+", and no standby is connected: nothing can be stored", do)
	case e.syncNames != "" && seen > 0 && waited == 0:
		e.add(Error, "postgres.standby", fmt.Sprintf("commits wait for %s, and none of %s is that", e.syncNames, counted(int(all), "standby")), do)
	case e.syncNames != "" && seen == 0:
		e.add(OK, "postgres.standby", fmt.Sprintf("commits wait for %s; %d are connected, and this login may not see which of them commits wait for (GRANT pg_monitor)", e.syncNames, all), "")
	case e.syncNames != "":
		e.add(OK, "postgres.standby", fmt.Sprintf("commits wait for %d of %d that are connected: what is acknowledged survives the loss of the primary", waited, all), "")
	default:
		e.add(OK, "postgres.standby", fmt.Sprintf("commits wait for none of %d that are connected: what is acknowledged is as safe as the disk of this server", all), "")
	}
	return nil
}

// right is one that a role must have, or must not.
type right struct {
	role, right, table string
	wanted             bool
}

var rights = []right{
	{"postern_gateway", "INSERT", "events", true}, {"postern_gateway", "INSERT", "event_keys", true}, {"postern_gateway", "INSERT", "rejections", true},
	{"postern_gateway", "UPDATE", "events", false}, {"postern_gateway", "DELETE", "events", false}, {"postern_gateway", "TRUNCATE", "events", false},
	{"postern_gateway", "DELETE", "event_keys", false}, {"postern_gateway", "UPDATE", "event_keys", false},
	{"postern_processor", "SELECT", "events", true}, {"postern_processor", "UPDATE", "objects", true}, {"postern_processor", "INSERT", "outcomes", true},
	{"postern_processor", "UPDATE", "events", false}, {"postern_processor", "DELETE", "events", false}, {"postern_processor", "TRUNCATE", "events", false}, {"postern_processor", "DELETE", "outcomes", false},
	{"postern_operator", "SELECT", "events", true}, {"postern_operator", "SELECT", "objects", true},
	{"postern_operator", "INSERT", "events", false}, {"postern_operator", "UPDATE", "events", false}, {"postern_operator", "DELETE", "events", false}, {"postern_operator", "UPDATE", "objects", false},
}

func (e *examination) rights(ctx context.Context) error {
	rows, err := e.Pool.Query(ctx, rolesSQL, []string{"postern_gateway", "postern_processor", "postern_operator", "postern_maintenance", "postern_reader"})
	if err != nil {
		return err
	}
	missing, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		return err
	}
	if len(missing) > 0 {
		e.add(Error, "postgres.roles", "there is no role "+listed(missing), "postern migrate up")
		return nil
	}
	roles, names, tables, wanted := make([]string, len(rights)), make([]string, len(rights)), make([]string, len(rights)), make([]bool, len(rights))
	for i, r := range rights {
		roles[i], names[i], tables[i], wanted[i] = r.role, r.right, r.table, r.wanted
	}
	if rows, err = e.Pool.Query(ctx, rightsSQL, roles, names, tables, wanted); err != nil {
		return err
	}
	wrong := 0
	var r right
	if _, err := pgx.ForEachRow(rows, []any{&r.role, &r.right, &r.table, &r.wanted}, func() error {
		wrong++
		found, do := fmt.Sprintf("%s may %s %s, which nobody of that role should", r.role, r.right, r.table), fmt.Sprintf("REVOKE %s ON postern.%s FROM %s", r.right, r.table, r.role)
		if r.wanted {
			found, do = fmt.Sprintf("%s may not %s %s, and needs it", r.role, r.right, r.table), fmt.Sprintf("GRANT %s ON postern.%s TO %s", r.right, r.table, r.role)
		}
		e.add(Error, "postgres.rights", found, do+", as the owner of the tables")
		return nil
	}); err != nil {
		return err
	}
	if wrong == 0 {
		e.add(OK, "postgres.rights", "the roles may do what they need, and cannot change the log", "")
	}
	return nil
}

// log looks at the partitions of the log.
func (e *examination) log(ctx context.Context) error {
	rows, err := e.Pool.Query(ctx, unguardedSQL)
	if err != nil {
		return err
	}
	open := 0
	var name, owner string
	var triggers int64
	if _, err := pgx.ForEachRow(rows, []any{&name, &triggers, &owner}, func() error {
		open++
		e.add(Error, "postgres.append_only", fmt.Sprintf("table %s, owned by %s, has %d of the 2 triggers that refuse changes", name, owner, triggers),
			fmt.Sprintf("ALTER TABLE postern.%s ENABLE TRIGGER ALL; ALTER TABLE postern.%s OWNER TO postern_maintenance; then postern verify, since it may have been changed", name, name))
		return nil
	}); err != nil {
		return err
	}
	if open == 0 {
		e.add(OK, "postgres.append_only", "no day of the log can be changed", "")
	}
	if err := e.partitions(ctx); err != nil {
		return err
	}
	return e.retention(ctx)
}

// Partitions are made 8 days ahead, once a minute.
const (
	aheadWarn  = 6 * 24 * time.Hour
	aheadError = 24 * time.Hour
)

func (e *examination) partitions(ctx context.Context) error {
	until, left, err := events.PartitionsUntil(ctx, e.Pool)
	if err != nil {
		return err
	}
	verdict := OK
	switch {
	case left < aheadError:
		verdict = Error
	case left < aheadWarn:
		verdict = Warn
	}
	e.add(verdict, "postgres.partitions", fmt.Sprintf("the log has partitions until %s, %.1f days ahead", events.Instant{Time: until}, left.Hours()/24),
		"start a processor, which makes them 8 days ahead, and look into its log for maintenance; a gateway makes one on demand, more slowly")
	return nil
}

// retentionLate is how long after its age a day of the log may still be there: it is looked for once a day.
const retentionLate = 3 * 24 * time.Hour

func (e *examination) retention(ctx context.Context) error {
	if e.Config == nil || e.Config.Retention.Bodies == 0 {
		return nil
	}
	var end int64
	if err := e.Pool.QueryRow(ctx, oldestDaySQL).Scan(&end); err != nil || end == 0 {
		return err
	}
	age, allowed := e.Now().Add(e.databaseAhead).Sub(events.Time(end)), time.Duration(e.Config.Retention.Bodies)*24*time.Hour
	e.add(unless(age < allowed+retentionLate, Warn), "postgres.retention", fmt.Sprintf("the oldest day of the log ended %.0f days ago; retention.bodies is %d days", max(0, age.Hours()/24), e.Config.Retention.Bodies),
		"postern retention show says what keeps it: a run that has failed (postern runs list --job retention), or events that are not finished; postern verify finds those")
	return nil
}

// apiSourcesSQL are the sources whose API a process reads.
const apiSourcesSQL = `SELECT DISTINCT s.name, s.number FROM budgets b JOIN sources s ON s.number = b.source ORDER BY s.name`

// eventDelays tells how far the clock that stamps a source's events may be from PostgreSQL's, for each source with an API.
func (e *examination) eventDelays(ctx context.Context) error {
	type source struct {
		Name   string
		Number int32
	}
	rows, err := e.Pool.Query(ctx, apiSourcesSQL)
	if err != nil {
		return err
	}
	sources, err := pgx.CollectRows(rows, pgx.RowToStructByPos[source])
	if err != nil {
		return err
	}
	for _, s := range sources {
		least, ok, err := reconcile.ReadEventDelay(ctx, e.Pool, s.Number)
		if err != nil {
			return err
		}
		if !ok {
			continue // quiet: nothing tells it
		}
		found := fmt.Sprintf("events of source %s arrive %s after the provider's stamp, at the earliest", s.Name, least.Round(time.Millisecond))
		if least < 0 {
			found = fmt.Sprintf("events of source %s are stamped up to %s ahead of PostgreSQL's clock", s.Name, (-least).Round(time.Millisecond))
		}
		allowed := reconcile.EventDelayAllowed
		e.add(unless(least.Abs() <= allowed, Warn), "postgres.event_delay", fmt.Sprintf("%s; refetches allow for %s", found, allowed),
			"check PostgreSQL's clock. If it is right, the provider delivers late or its clock is wrong: an object that "+
				"changes while it is refetched may keep the older state until it changes again. "+
				"postern reconcile "+s.Name+" --objects finds such objects: have a schedule run it")
	}
	return nil
}

// applied looks whether a processor is there.
func (e *examination) applied(ctx context.Context) error {
	due, err := processor.ReadDue(ctx, e.Pool)
	if err != nil {
		return err
	}
	a := due.Auditor
	if a.Process == "" {
		e.add(Warn, "postgres.processor", fmt.Sprintf("none is running, and %s have no outcome", counted(int(due.Unapplied.Count), "event")), "start a processor")
		return nil
	}
	e.add(OK, "postgres.processor", a.Process+" is the auditor; postern stream status says how far it is", "")
	return nil
}
