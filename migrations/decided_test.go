package migrations_test

import (
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
)

// decided is what each role may do to each relation of schemas postern and mirror: SELECT, INSERT,
// UPDATE, DELETE, TRUNCATE, REFERENCES and TRIGGER by their first letters (of the last two: f, t;
// USAGE of a sequence: u), and in brackets what it may do to some columns only. Who is not named
// may do nothing. A new table needs a line.
const decided = `
activity_hours        operator sidu
activity_minutes      operator sidu
activity_secrets      operator sidu
audit                 gateway (i) operator s(i)
change_feed           operator su processor su
changes               operator s processor siu
checkpoints           operator s processor siu
console_sessions      operator sidu
disconnected_accounts operator s processor sidu
drifts                operator s processor sidu
dropped_partitions    operator s processor siu
effect_baselines      operator s processor sidu
effect_schedule_clock operator s processor su
effect_steps          operator siu processor sidu
effect_window_changes processor sid
effect_window_waits   operator s processor sid
effect_windows        operator s processor siu
effects               operator siu processor sidu
event_conflicts       gateway si operator s processor (s)
event_keys            gateway si operator s processor s
event_sequence        gateway u
events                gateway si operator s processor s
feed_cursors          operator sidu processor s(u)
idempotency_keys      operator sidu
listed_objects        processor sidu
log_floor             gateway su operator s processor su
mirror.change_feed    operator s reader s
mirror.changes        operator s reader s
mirror.events         operator s reader s
mirror.objects        operator s reader s
mirror.outcomes       operator s reader s
notifications         operator s processor siu
object_scans          operator s processor sidu
objects               operator s processor siu
orphans               processor sid
outbox                operator si processor sidu
outcomes              operator s processor siu
processes             operator sidu
rate_budgets          operator s processor siu
recent_missing        processor sidu
redacted_events       gateway s operator s processor s
redactions            operator s processor s
refetch_requests      operator sidu processor sidu
rejections            gateway sid operator s processor (s)
republish_passes      operator si processor su
retained_objects      operator s processor siu
runs                  operator siu processor siu
schedules             operator su processor siu
schema_migrations     gateway s operator s processor s
source_types          operator sidu
sources               gateway si operator s processor si(u)
spools                gateway sidu operator sd processor s
staged_objects        operator s processor sidu
tokens                operator si(u)
verify_reports        operator sid
watermarks            operator s processor sidu
`

// functions are those of schema postern that do something as their owner, and who may call them.
// All others work with the caller's rights.
const functions = `
delete_search_digests     trigger
end_redaction             processor
ensure_partitions         gateway processor
raise_floor               operator processor
redact_conflicts          processor
redact_copies             processor
redact_events             processor
`

const grantsSQL = `
SELECT rpad(CASE WHEN n.nspname = 'mirror' THEN 'mirror.' ELSE '' END || c.relname, 22) || string_agg(substr(r.rolname,
	9) || ' ' || g.whole || CASE WHEN g.cols <> '' THEN '(' || g.cols || ')' ELSE '' END, ' ' ORDER BY r.rolname)
FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
CROSS JOIN (SELECT oid, rolname FROM pg_roles WHERE rolname IN ('postern_gateway', 'postern_processor',
	'postern_operator', 'postern_reader')) r
CROSS JOIN LATERAL (
  SELECT coalesce(string_agg(letter, '' ORDER BY place) FILTER (WHERE whole), '') AS whole,
  	coalesce(string_agg(letter, '' ORDER BY place) FILTER (WHERE cols AND NOT whole), '') AS cols
  FROM (
    SELECT letter, place, has_table_privilege(r.oid, c.oid, word) AS whole, CASE
    	WHEN columns THEN has_any_column_privilege(r.oid, c.oid, word) ELSE false END AS cols
    FROM (VALUES (1, 's', 'SELECT', true), (2, 'i', 'INSERT', true), (3, 'd', 'DELETE', false), (4, 'u', 'UPDATE',
    	true), (5, 't', 'TRUNCATE', false), (6, 'f', 'REFERENCES', true), (7, 'g', 'TRIGGER', false)) p (place, letter,
    	word, columns)
    WHERE c.relkind <> 'S'
    UNION ALL SELECT 'u', 1, has_sequence_privilege(r.oid, c.oid, 'USAGE'), false WHERE c.relkind = 'S'
    UNION ALL SELECT 'w', 2, has_sequence_privilege(r.oid, c.oid, 'UPDATE'), false WHERE c.relkind = 'S'
  ) one
) g
WHERE n.nspname IN ('postern', 'mirror') AND c.relkind IN ('r', 'p', 'v', 'm', 'S', 'f') AND NOT c.relispartition
	AND g.whole || g.cols <> ''
GROUP BY n.nspname, c.relname ORDER BY 1`

const nobodySQL = `
SELECT c.relname FROM pg_class c WHERE c.relnamespace IN ('postern'::regnamespace, 'mirror'::regnamespace)
	AND c.relkind IN ('r', 'p', 'v', 'm', 'f') AND NOT c.relispartition ORDER BY 1`

// definers run as their owner; one that public may call, and is no trigger's, opens what it does to
// everybody.
const definersSQL = `
SELECT rpad(p.proname, 26) || CASE WHEN p.prorettype = 'trigger'::regtype THEN 'trigger' ELSE coalesce((
  SELECT string_agg(substr(r.rolname, 9), ' ' ORDER BY r.rolname) FROM pg_roles r
  WHERE r.rolname IN ('postern_gateway', 'postern_processor', 'postern_operator', 'postern_reader')
  	AND has_function_privilege(r.oid, p.oid, 'EXECUTE')), '') END
FROM pg_proc p WHERE p.pronamespace IN ('postern'::regnamespace, 'mirror'::regnamespace) AND p.prosecdef ORDER BY 1`

// looseSQL finds what runs as another owner than postern_maintenance, or looks for its tables where
// its caller says.
const looseSQL = `
SELECT p.proname FROM pg_proc p WHERE p.pronamespace = 'postern'::regnamespace AND p.prosecdef
  AND NOT coalesce('search_path=postern, pg_temp' = ANY (p.proconfig) AND p.proowner = 'postern_maintenance'::regrole,
  	false) ORDER BY 1`

// What each role may do is decided here for every table, view, sequence and function: a new one,
// and a new grant, fails until somebody has written down what it shall be.
func TestRights_eachRole_areDecided(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	lines := func(text string) []string { return strings.Split(strings.TrimSpace(text), "\n") }
	equal(t, "rights differ from what was decided (-) in decided_test.go", lines(decided),
		db.QueryStrings(t, grantsSQL))
	equal(t, "functions that run as their owner differ from what was decided (-) in decided_test.go", lines(functions),
		db.QueryStrings(t, definersSQL))
	if loose := db.QueryStrings(t, looseSQL); len(loose) > 0 {
		t.Errorf("these functions run as another owner than postern_maintenance or do not fix their search_path to "+
			"postern, pg_temp: %v", loose)
	}
	for _, name := range db.QueryStrings(t, nobodySQL) {
		if !strings.Contains(decided, "\n"+name+" ") && !strings.Contains(decided, "\nmirror."+name+" ") {
			t.Errorf("nobody has decided who may do what to %s: say so in decided_test.go", name)
		}
	}
	for _, role := range []string{"postern_gateway", "postern_processor", "postern_operator", "postern_reader"} {
		if odd := db.QueryStrings(t, `SELECT rolname::text FROM pg_roles WHERE rolname = $1
			AND (rolsuper OR rolcreaterole
			OR rolcreatedb OR rolcanlogin OR rolreplication OR rolbypassrls OR rolinherit)`, role); len(odd) > 0 {
			t.Errorf("%s may more than its grants say", role)
		}
	}
}
