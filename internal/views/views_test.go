package views_test

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/views"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// bench is a database with sources and the pool of the owner of the views.
type bench struct {
	*testkit.DB
	owner, reader, processor *pgxpool.Pool
	sources                  events.Sources
}

// newBench registers sources, given as name and provider.
func newBench(t *testing.T, sources ...string) *bench {
	t.Helper()
	b := &bench{DB: testkit.Database(t)}
	named := map[string]string{}
	for i := 0; i < len(sources); i += 2 {
		named[sources[i]] = sources[i+1]
	}
	var err error
	if b.sources, err = events.RegisterSources(t.Context(), b.Pool, named); err != nil {
		t.Fatal(err)
	}
	b.owner, b.reader, b.processor = b.Role(t, "maintenance"), b.Role(t, "reader"), b.Role(t, "processor")
	return b
}

const putSQL = `
INSERT INTO objects (source, account, object_type, object_id, version_final, version_at, version_seen, version_rank,
	tied_states, overflow, time_from, time_to, refetch_after, ambiguous, deleted, state_hash, exact_hash, state,
	sanitized, last_event_id, revision, rule_version, created_at, updated_at)
VALUES ($1, $2, $3, $4, false, 1, 0, 1, '[]', false, 1, 1, 0, false, false, '', '', $5, false, 1, 1, 1, now(), now())
ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET state = excluded.state`

// put stores an object with the rights of a processor. Its state is JSON; "" is none.
func (b *bench) put(t *testing.T, source, objectType, id, state string) {
	t.Helper()
	var stored any
	if state != "" {
		stored = state
	}
	if _, err := b.processor.Exec(t.Context(), putSQL, b.sources.Number[source], "", objectType, id,
		stored); err != nil {
		t.Fatalf("%s: %v", id, err)
	}
}

// me is the actor of all changes.
var me = adminauth.Actor{Name: "me", Via: adminauth.ViaCommand}

// create creates the views of a source and returns the results by type.
func (b *bench) create(t *testing.T, r views.Request) map[string]views.Result {
	t.Helper()
	r.Actor = me
	done, err := views.Create(t.Context(), b.owner, r)
	if err != nil {
		t.Fatal(err)
	}
	byType := map[string]views.Result{}
	for _, v := range done {
		byType[v.ObjectType] = v
	}
	return byType
}

// rows returns rows of JSON that a reader gets.
func (b *bench) rows(t *testing.T, sql string, args ...any) (rows []string) {
	t.Helper()
	err := b.read(t, sql, args, &rows)
	if err != nil {
		t.Fatalf("%s: %v", sql, err)
	}
	return rows
}

func (b *bench) read(t *testing.T, sql string, args []any, rows *[]string) error {
	var row string
	return postgres.ForEach(t.Context(), b.reader, "SELECT to_jsonb(r)::text FROM ("+sql+") r", args,
		[]any{&row}, func() error {
			*rows = append(*rows, row)
			return nil
		})
}

// layout returns the columns of a view in order, with their types, as the catalogue has them.
func (b *bench) layout(t *testing.T, view string) []string {
	t.Helper()
	return b.QueryStrings(t, `SELECT a.attname || ' ' || format_type(a.atttypid, a.atttypmod) FROM pg_attribute a
		WHERE a.attrelid = $1::regclass AND a.attnum > 0 ORDER BY a.attnum`, view)
}

func equal(t *testing.T, what string, want, got any) {
	t.Helper()
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("%s (-want +got):\n%s", what, diff)
	}
}

func TestStatements_fitTheSchema(t *testing.T) {
	t.Parallel()
	testkit.PrepareStatements(t, testkit.Statements("internal/views"))
}

func TestCreate_fields_becomeTypedColumns(t *testing.T) {
	t.Parallel()
	b := newBench(t, "stripe", "stripe", "shop", "shopify", "other", "hmac")
	b.put(t, "stripe", "subscription", "sub_1", `{"id": "sub_1", "created": 1700000000, "quantity": 5,
		"livemode": false, "amount": 1700000000, "share": 0.25, "customer": "cus_1", "items": {"data": []},
		"list": [1], "none": null,
		"canceled_at": null, "mixed": "a"}`)
	b.put(t, "stripe", "subscription", "sub_2", `{"id": "sub_2", "created": 1700000001, "quantity": 9223372036854775807,
		"mixed": 1, "list": null, "customer": null}`)
	b.create(t, views.Request{Source: "stripe"})
	equal(t, "Stripe", []string{"id text", "account text", "amount bigint", "canceled_at timestamp with time zone",
		"created timestamp with time zone", "customer text", "items jsonb", "list jsonb", "livemode boolean",
		"mixed text", "quantity bigint", "share numeric", "deleted boolean", "ambiguous boolean", "revision bigint",
		"updated_at timestamp with time zone", "state jsonb"}, b.layout(t, "stripe.subscription"))
	equal(t, "values", []string{
		`{"id": "sub_1", "list": [1], "items": {"data": []}, "mixed": "a", "share": 0.25, "account": "", "created": ` +
			`"2023-11-14T22:13:20+00:00", "customer": "cus_1", "livemode": false, "quantity": 5}`,
		`{"id": "sub_2", "list": null, "items": null, "mixed": "1", "share": null, "account": "", "created": ` +
			`"2023-11-14T22:13:21+00:00", "customer": null, "livemode": null, "quantity": 9223372036854775807}`},
		b.rows(t, `SELECT id, account, list, items, mixed, share, created, customer, livemode, quantity
			FROM stripe.subscription ORDER BY id`))
	b.put(t, "shop", "order", "1", `{"id": 1, "total_price": "199.00", "note": "12.50", "updated_at": `+
		`"2024-01-01T00:00:00+09:00", "total_price_set": null, "phone": ""}`)
	b.create(t, views.Request{Source: "shop"})
	equal(t, "Shopify", []string{`{"kind": "numeric", "note": "12.50", "phone": "", "total_price": 199.00, ` +
		`"updated_at_field": "2023-12-31T15:00:00+00:00"}`}, b.rows(t, `SELECT note, phone, total_price,
		pg_typeof(total_price)::text AS kind, updated_at_field FROM shop."order"`))
	b.put(t, "other", "thing", "a", `{"startTime": 1700000000, "expires_at": 1700000000123, "size": 1700000000,
		"Name": "x"}`)
	b.create(t, views.Request{Source: "other", ObjectType: "thing", Kinds: map[string]views.Kind{"size": views.Number,
		"later": views.Time}})
	equal(t, "no description", []string{"id text", "account text", "expires_at timestamp with time zone",
		"later timestamp with time zone", "name text", "size numeric", "start_time timestamp with time zone",
		"deleted boolean"}, b.layout(t, "other.thing")[:8])
}

func TestCreate_hostileNames_giveReadableViews(t *testing.T) {
	t.Parallel()
	b := newBench(t, "stripe", "stripe")
	long := strings.Repeat("é", 40)
	fields := map[string]string{ // columns by field
		"state": "state_field", "State": "state_field_", "deleted": "deleted_field", "ID": "id_field",
		"select": "select_field", "user": "user_field", "left": "left_field", "ctid": "ctid",
		"": "_", "a": "a", "A": "a_", "lineItems": "line_items",
		"3ds": "_3ds", `q"uo'te\`: "q_uo_te_", "a.b": "a_b", "a-b": "a_b", "$1": "_1", "$2 /* ": "",
		"größe": "größe", long: "", long + "1": "", strings.Repeat("x", 64): "",
		strings.Repeat("y", 63): strings.Repeat("y", 63),
		"tab\tnew\nline":        "tab_new_line",
	}
	state := map[string]any{}
	for field := range fields {
		state[field] = "value of " + field
	}
	text, err := json.Marshal(state)
	if err != nil {
		t.Fatal(err)
	}
	types := []string{`in'v"oi\ce`, "checkout.session", "checkout_session", "order", "select", strings.Repeat("t", 100),
		"%s $1", "Übung"}
	for _, objectType := range types {
		b.put(t, "stripe", objectType, "1", string(text))
	}
	names := map[string]bool{}
	for objectType, v := range b.create(t, views.Request{Source: "stripe"}) {
		if names[v.Name] || len(v.Name) > 63 {
			t.Errorf("the view of %s has the name %s", objectType, v.Name)
		}
		names[v.Name] = true
		columns := map[string]bool{}
		for _, c := range v.Columns {
			if want := fields[c.Field]; want != "" && !strings.HasPrefix(c.Name, want) || len(c.Name) > 63 ||
				columns[c.Name] {
				t.Errorf("field %q: column %q, want %q", c.Field, c.Name, want)
			}
			columns[c.Name] = true
			got := b.rows(t, fmt.Sprintf(`SELECT "%s" = $1 AS same FROM "%s"."%s"`, c.Name, v.Schema, v.Name),
				"value of "+c.Field)
			equal(t, objectType+" "+c.Field, []string{`{"same": true}`}, got)
		}
		if len(columns) != len(fields) {
			t.Errorf("%s: %d columns, want %d", objectType, len(columns), len(fields))
		}
	}
	if len(names) != len(types) || !names["checkout_session"] || !names["order"] {
		t.Errorf("views %v", names)
	}
	found, err := views.List(t.Context(), b.Role(t, "operator"), "stripe")
	if err != nil || len(found) != len(types) || len(found[0].Columns) != len(fields) {
		t.Errorf("%d views are listed, %v", len(found), err)
	}
	for _, v := range b.create(t, views.Request{Source: "stripe"}) {
		if v.Created || len(v.Added) > 0 {
			t.Errorf("again: %s has new columns %v", v.FullName(), v.Added)
		}
	}
}

// tiny is smaller than every float8.
var tiny = "0." + strings.Repeat("0", 399) + "1"

// values are fields of states, with the values of columns of all kinds: boolean, bigint, numeric,
// Unix time, milliseconds, RFC 3339, indexed text. - is null.
var values = [][]string{
	{`null`, "-", "-", "-", "-", "-", "-", "-"},
	{`true`, "t", "-", "-", "-", "-", "-", "true"},
	{`0`, "-", "0", "0", "1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "-", "0"},
	{`-1`, "-", "-1", "-1", "-", "-", "-", "-1"},
	{`1.0`, "-", "1", "1.0", "1970-01-01T00:00:01Z", "1970-01-01T00:00:00.001Z", "-", "1.0"},
	{`1.5`, "-", "-", "1.5", "1970-01-01T00:00:01.5Z", "1970-01-01T00:00:00.0015Z", "-", "1.5"},
	{`9223372036854775808`, "-", "-", "9223372036854775808", "-", "-", "-", "9223372036854775808"},
	{`253402300800`, "-", "253402300800", "253402300800", "-", "1978-01-11T21:31:40.8Z", "-", "253402300800"},
	{`1e-400`, "-", "-", tiny, "1970-01-01T00:00:00Z", "1970-01-01T00:00:00Z", "-", tiny},
	{`"1"`, "-", "-", "1", "-", "-", "-", "1"},
	{`"1e5"`, "-", "-", "-", "-", "-", "-", "1e5"},
	{`"NaN"`, "-", "-", "-", "-", "-", "-", "NaN"},
	{`[1]`, "-", "-", "-", "-", "-", "-", "[1]"},
	{`[[[true]]]`, "-", "-", "-", "-", "-", "-", "[[[true]]]"},
	{`{"a": 1}`, "-", "-", "-", "-", "-", "-", `{"a": 1}`},
	{`"2024-02-29T23:59:60Z"`, "-", "-", "-", "-", "-", "2024-03-01T00:00:00Z", "2024-02-29T23:59:60Z"},
	{`"2023-02-29T00:00:00Z"`, "-", "-", "-", "-", "-", "-", "2023-02-29T00:00:00Z"},
	{`"2024-01-01 10:00:00.5+05:30"`, "-", "-", "-", "-", "-", "2024-01-01T04:30:00.5Z", "2024-01-01 10:00:00.5+05:30"},
	{`"2024-01-01T10:00:60.5Z"`, "-", "-", "-", "-", "-", "-", "2024-01-01T10:00:60.5Z"},
	{`"0000-01-01T00:00:00Z"`, "-", "-", "-", "-", "-", "-", "0000-01-01T00:00:00Z"},
	{`"2024-01-01T00:00:00"`, "-", "-", "-", "-", "-", "-", "2024-01-01T00:00:00"},
	{`"infinity"`, "-", "-", "-", "-", "-", "-", "infinity"},
}

func TestCreate_valuesThatDoNotFit_areNull(t *testing.T) {
	t.Parallel()
	b := newBench(t, "stripe", "stripe")
	kinds := []views.Kind{views.Boolean, views.Whole, views.Number, views.UnixTime, views.UnixMS, views.Time,
		views.IndexedText}
	long := `"` + strings.Repeat("long", 501) + `"`
	digits := strings.Repeat("9", 1001)
	rows := append(slices.Clone(values), []string{long, "-", "-", "-", "-", "-", "-", "-"},
		[]string{digits, "-", "-", "-", "-", "-", "-", digits}, []string{"0." + digits, "-", "-", "-",
			"1970-01-01T00:00:01Z", "1970-01-01T00:00:00.001Z", "-", "0." + digits})
	chosen := map[string]views.Kind{}
	for i := range kinds {
		chosen[fmt.Sprintf("f%d", i)] = kinds[i]
	}
	b.put(t, "stripe", "thing", "none", "")
	b.put(t, "stripe", "thing", "array", `["f0"]`)
	b.put(t, "stripe", "thing", "text", `"f0"`)
	b.create(t, views.Request{Source: "stripe", ObjectType: "thing", Kinds: chosen})
	b.create(t, views.Request{Source: "stripe", ObjectType: "thing", Indexes: []string{"f1", "f2", "f3", "f4", "f5",
		"f6"}})
	for _, row := range rows {
		state := map[string]json.RawMessage{}
		for i := range kinds {
			state[fmt.Sprintf("f%d", i)] = json.RawMessage(row[0])
		}
		text, err := json.Marshal(state)
		if err != nil {
			t.Fatal(err)
		}
		b.put(t, "stripe", "thing", "x", string(text)) // which also writes the indexes
		for _, style := range []string{"ISO, MDY", "SQL, DMY", "German, YMD"} {
			equal(t, fmt.Sprintf("%.100s, %s", row[0], style), row[1:], b.readAs(t, style))
		}
	}
	equal(t, "no fields", []string{`{"id": "array", "empty": true}`, `{"id": "none", "empty": true}`,
		`{"id": "text", "empty": true}`}, b.rows(t, `SELECT id, coalesce(f0::text, f1::text, f2::text, f3::text,
		f4::text, f5::text, f6) IS NULL AS empty FROM stripe.thing WHERE id <> 'x' ORDER BY id`))
}

// valuesSQL returns the columns of the object x as texts, times in UTC.
const valuesSQL = `
SELECT ARRAY[coalesce(CASE WHEN f0 THEN 't' WHEN NOT f0 THEN 'f' END, '-'), coalesce(f1::text, '-'),
	coalesce(f2::text, '-'), pg_temp.utc(f3), pg_temp.utc(f4), pg_temp.utc(f5), coalesce(f6, '-')]
FROM stripe.thing WHERE id = 'x'`

const utcSQL = `
CREATE FUNCTION pg_temp.utc(at timestamptz) RETURNS text LANGUAGE sql AS $$
  SELECT coalesce(rtrim(rtrim(to_char(at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.US'), '0'), '.') || 'Z', '-')
$$`

// readAs returns the columns of the object x in a session with other settings.
func (b *bench) readAs(t *testing.T, style string) (got []string) {
	t.Helper()
	tx, err := b.Pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = tx.Rollback(context.Background()) }()
	if _, err = tx.Exec(t.Context(), utcSQL+"; SET LOCAL datestyle = '"+style+"'; SET LOCAL timezone = 'Asia/Tokyo'; "+
		"SET LOCAL standard_conforming_strings = off"); err == nil {
		err = tx.QueryRow(t.Context(), valuesSQL).Scan(&got)
	}
	if err != nil {
		t.Fatalf("%s: %v", style, err)
	}
	return got
}

func TestUpdate_newFields_keepWhatExists(t *testing.T) {
	t.Parallel()
	b := newBench(t, "stripe", "stripe", "shop", "shopify")
	b.put(t, "stripe", "thing", "1", `{"b": 1, "late": null}`)
	b.put(t, "shop", "thing", "1", `{"b": 1}`)
	b.create(t, views.Request{Source: "stripe"})
	b.create(t, views.Request{Source: "shop"})
	b.create(t, views.Request{Source: "stripe", ObjectType: "thing", Indexes: []string{"b"}})
	b.Exec(t, `CREATE VIEW public.mine AS SELECT id, b + 1 AS more FROM stripe.thing`)
	before := b.layout(t, "stripe.thing")
	b.put(t, "stripe", "thing", "2", `{"b": "text now", "a": true, "late": "x"}`)
	b.put(t, "stripe", "other", "1", `{}`) // which has no view
	done, err := views.Update(t.Context(), b.owner, views.Request{Actor: me})
	if err != nil || len(done) != 1 {
		t.Fatalf("%d views, %v; want one", len(done), err)
	}
	equal(t, "columns", append(before, "a boolean", "late text"), b.layout(t, "stripe.thing"))
	if notes := strings.Join(done[0].Notes, "\n"); !strings.Contains(notes, "column b is bigint") {
		t.Errorf("notes %q do not name the column that does not fit", notes)
	}
	equal(t, "values", []string{`{"a": null, "b": 1, "id": "1", "late": null, "more": 2}`,
		`{"a": true, "b": null, "id": "2", "late": "x", "more": null}`}, b.rows(t, `SELECT v.id, v.b, v.a, v.late,
		(SELECT state ->> 'b' FROM stripe.thing s WHERE s.id = v.id AND v.b IS NOT NULL)::int + 1 AS more
		FROM stripe.thing v ORDER BY v.id`))
	equal(t, "what the update left", []string{"2", ""}, b.QueryStrings(t,
		`SELECT coalesce(more::text, '') FROM public.mine ORDER BY id`))
	equal(t, "index", []string{"b"}, b.list(t, "stripe")[0].Indexes)
	done, err = views.Update(t.Context(), b.owner, views.Request{Source: "stripe", Actor: me})
	if err != nil || len(done) != 1 || len(done[0].Added) > 0 {
		t.Errorf("again: %+v, %v; want the note only", done, err)
	}
	equal(t, "audit", []string{"views create shop.thing", "views create stripe.thing", "views create stripe.thing",
		"views update stripe.thing"}, b.QueryStrings(t, `SELECT action || ' ' || target FROM audit ORDER BY 1`))
}

// While an update reads the sample of one view, readers of the others do not wait.
func TestUpdate_readsSample_locksNoView(t *testing.T) {
	t.Parallel()
	b := newBench(t, "stripe", "stripe")
	b.put(t, "stripe", "first", "1", `{}`)
	b.put(t, "stripe", "second", "1", `{}`)
	b.create(t, views.Request{Source: "stripe"})
	b.put(t, "stripe", "first", "1", `{"new": true}`)
	b.put(t, "stripe", "second", "1", `{"new": "wait"}`)
	b.Exec(t, `CREATE OR REPLACE FUNCTION as_numeric(field text) RETURNS numeric LANGUAGE plpgsql IMMUTABLE AS $$
		BEGIN PERFORM pg_advisory_xact_lock(4711) WHERE field = 'wait'; RETURN NULL; END $$`)
	holds := testkit.OpenTx(t, b.Pool, `SELECT pg_advisory_xact_lock(4711)`)
	ended := make(chan error, 1)
	go func() {
		_, err := views.Update(t.Context(), b.owner, views.Request{Actor: me})
		ended <- err
	}()
	testkit.Eventually(t, time.Minute, func() error {
		if len(b.QueryStrings(t, `SELECT pid::text FROM pg_stat_activity WHERE $1 = ANY(pg_blocking_pids(pid))`,
			holds.Conn().PgConn().PID())) == 0 {
			return errors.New("the update reads no sample yet")
		}
		return nil
	})
	equal(t, "locks of views", []string{"0"}, b.QueryStrings(t, `SELECT count(*)::text FROM pg_locks
		WHERE relation IN ('stripe.first'::regclass, 'stripe.second'::regclass) AND mode = 'AccessExclusiveLock'`))
	testkit.Must(t, holds.Rollback(t.Context()))
	testkit.Must(t, <-ended)
	equal(t, "columns", []string{"new boolean"}, b.layout(t, "stripe.first")[len(b.layout(t, "stripe.first"))-1:])
}

func (b *bench) list(t *testing.T, source string) []views.View {
	t.Helper()
	found, err := views.List(t.Context(), b.Role(t, "operator"), source)
	if err != nil {
		t.Fatal(err)
	}
	return found
}

func TestCreate_schemas_areSafe(t *testing.T) {
	t.Parallel()
	sources := []string{"a-b", "a_b", "public", "pg_x", "mirror", "postern", "user", "taken", "0"}
	var named []string
	for _, s := range sources {
		named = append(named, s, "stripe")
	}
	b := newBench(t, named...)
	b.Exec(t, `CREATE SCHEMA taken`)
	for source, want := range map[string]string{"a-b": "a_b", "public": "source_public", "pg_x": "source_pg_x",
		"mirror": "source_mirror", "postern": "source_postern", "user": "user", "0": "_0"} {
		b.put(t, source, "thing", "1", `{"of": "`+source+`"}`)
		equal(t, source, want, b.create(t, views.Request{Source: source})["thing"].Schema)
		equal(t, source, []string{`{"of": "` + source + `"}`}, b.rows(t, `SELECT "of" FROM "`+want+`".thing`))
	}
	b.put(t, "a_b", "thing", "1", `{"of": "a_b"}`)
	if schema := b.create(t, views.Request{Source: "a_b"})["thing"].Schema; !strings.HasPrefix(schema, "a_b_") {
		t.Errorf("the second source of one name has schema %s", schema)
	}
	b.put(t, "taken", "thing", "1", `{}`)
	for _, schema := range []string{"", "public", "pg_temp", "A", `"`, "mirror", "user"} {
		if _, err := views.Create(t.Context(), b.owner, views.Request{Source: "taken", Schema: schema}); !errors.Is(err,
			events.ErrInvalid) {
			t.Errorf("schema %q of another owner: %v", schema, err)
		}
	}
	equal(t, "chosen", "mine", b.create(t, views.Request{Source: "taken", Schema: "mine"})["thing"].Schema)
	equal(t, "again", "mine", b.create(t, views.Request{Source: "taken"})["thing"].Schema)
	for what, r := range map[string]views.Request{"source": {Source: "none"},
		"type": {Source: "user", ObjectType: "none"}} {
		if _, err := views.Create(t.Context(), b.owner, r); !errors.Is(err, events.ErrNotFound) {
			t.Errorf("unknown %s: %v", what, err)
		}
	}
}

func TestCreate_rights_areThoseOfReaders(t *testing.T) {
	t.Parallel()
	b := newBench(t, "stripe", "stripe")
	b.put(t, "stripe", "thing", "1", `{"name": "Ada", "at": "2024-01-01T00:00:00Z"}`)
	b.create(t, views.Request{Source: "stripe"})
	b.put(t, "stripe", "thing", "1", "") // as a redaction does
	equal(t, "redacted", []string{`{"at": null, "id": "1", "name": null, "state": null}`},
		b.rows(t, `SELECT id, name, at, state FROM stripe.thing`))
	equal(t, "deleted", []string{`{"deleted": false}`}, b.rows(t, `SELECT deleted FROM stripe.thing`))
	b.Exec(t, `UPDATE objects SET version_at = -9223372036854775808`) // as a rebuild that empties the object
	equal(t, "emptied", []string{`{"typed": true, "deleted": true, "redacted": false}`}, b.rows(t, `SELECT o.deleted,
		o.redacted, v.deleted AS typed FROM stripe.thing v JOIN mirror.objects o ON o.object_id = v.id`))
	b.Exec(t, `UPDATE objects SET refetch_after = 1`) // as an event without the state of a new object
	equal(t, "waiting for its refetch", []string{`{"typed": false, "deleted": false}`}, b.rows(t, `SELECT o.deleted,
		v.deleted AS typed FROM stripe.thing v JOIN mirror.objects o ON o.object_id = v.id`))
	for role, statements := range map[string][]string{
		"reader":    {"DELETE FROM stripe.thing", "CREATE VIEW stripe.mine AS SELECT 1", "DROP VIEW stripe.thing"},
		"operator":  {"UPDATE stripe.thing SET revision = 1", "CREATE TABLE stripe.mine ()"},
		"processor": {"SELECT * FROM stripe.thing"}, "gateway": {"SELECT * FROM stripe.thing"},
	} {
		for _, sql := range statements {
			_, err := b.Role(t, role).Exec(t.Context(), sql)
			if code := postgres.Code(err); code != "42501" && code != "55000" { // or: the view takes no changes
				t.Errorf("%s: %s: %v", role, sql, err)
			}
		}
	}
	equal(t, "owners", []string{"postern_maintenance"}, b.QueryStrings(t, `SELECT DISTINCT relowner::regrole::text
		FROM pg_class WHERE relnamespace = 'stripe'::regnamespace`))
}

func TestCreate_loginWithoutCreate_saysWhatToRun(t *testing.T) {
	t.Parallel()
	b := newBench(t, "stripe", "stripe")
	b.put(t, "stripe", "thing", "1", `{}`)
	b.Exec(t, `DO $$ BEGIN CREATE ROLE no_create LOGIN IN ROLE postern_maintenance; EXCEPTION WHEN duplicate_object THEN
		END $$`)
	cfg := b.Pool.Config()
	cfg.ConnConfig.User = "no_create"
	cfg.ConnConfig.RuntimeParams["role"] = "postern_maintenance"
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	const create = `CREATE SCHEMA "stripe" AUTHORIZATION postern_maintenance`
	_, err = views.Create(t.Context(), pool, views.Request{Source: "stripe", Actor: me})
	if err == nil || !strings.Contains(err.Error(), create+";") {
		t.Fatalf("got %v; want the statement for an administrator", err)
	}
	b.Exec(t, create)
	done, err := views.Create(t.Context(), pool, views.Request{Source: "stripe", Actor: me})
	if err != nil || len(done) != 1 {
		t.Errorf("after the statement: %v, %v", done, err)
	}
}

func TestCreate_indexes_serveQueries(t *testing.T) {
	t.Parallel()
	b := newBench(t, "stripe", "stripe")
	for i := range 500 {
		b.putMany(t, i)
	}
	b.create(t, views.Request{Source: "stripe", ObjectType: "it's"})
	columns := []string{"id", "customer", "created", "at", "price", "size"}
	b.create(t, views.Request{Source: "stripe", ObjectType: "it's", Indexes: columns})
	equal(t, "indexes", columns, b.list(t, "stripe")[0].Indexes)
	b.Exec(t, `ANALYZE objects`)
	for condition, order := range map[string]string{"id = '7'": "", "customer = 'cus_7'": "",
		"created > '2023-11-14T22:20:00Z'": "created", "at < '2024-01-01T00:00:05Z'": "at", "price BETWEEN 5 AND 7": "",
		"size IN (7, 8)": ""} {
		sql := "SELECT * FROM stripe.it_s WHERE " + condition
		if order != "" {
			sql += " ORDER BY " + order + " LIMIT 3"
		}
		plan := strings.Join(b.QueryStrings(t, "EXPLAIN "+sql), "\n")
		if !strings.Contains(plan, "objects_view_1_") || strings.Contains(plan, "Sort") {
			t.Errorf("%s uses no index:\n%s", sql, plan)
		}
	}
	// A value that does not fit into an index stops no transaction that applies.
	var long strings.Builder
	for i := range 200 {
		fmt.Fprintf(&long, "%x", sha256.Sum256([]byte{byte(i)}))
	}
	b.put(t, "stripe", "it's", "long", fmt.Sprintf(`{"customer": "%s", "price": 0.%s}`, &long,
		strings.NewReplacer("a", "1", "b", "2", "c", "3", "d", "4", "e", "5", "f", "6").Replace(long.String())))
	equal(t, "a long text", []string{`{"same": true, "customer": null}`}, b.rows(t, `SELECT customer,
		state ->> 'customer' = $1 AS same FROM stripe.it_s WHERE id = 'long'`, long.String()))
	for _, column := range []string{"none", "nested", "flag", "state", "deleted"} {
		if _, err := views.Create(t.Context(), b.owner, views.Request{Source: "stripe", ObjectType: "it's",
			Indexes: []string{column}}); !errors.Is(err, events.ErrInvalid) {
			t.Errorf("an index on %s: %v", column, err)
		}
	}
	// An index that a killed command left is created again.
	b.Exec(t, `UPDATE pg_index SET indisvalid = false WHERE indexrelid = (SELECT min(indexrelid::oid) FROM pg_index
		WHERE indrelid = 'objects'::regclass AND starts_with(indexrelid::regclass::text, 'objects_view_'))`)
	equal(t, "indexes without the invalid one", columns[1:], b.list(t, "stripe")[0].Indexes)
	b.create(t, views.Request{Source: "stripe", ObjectType: "it's", Indexes: []string{"id"}})
	slices.Sort(columns)
	got := b.list(t, "stripe")[0].Indexes
	slices.Sort(got)
	equal(t, "indexes again", columns, got)
}

// putMany stores the n-th of many objects.
func (b *bench) putMany(t *testing.T, n int) {
	t.Helper()
	state := fmt.Sprintf(`{"customer": "cus_%d", "created": %d, "at": "2024-01-01T00:%02d:%02dZ", "price": %d.5,
		"size": %d, "nested": {}, "flag": true, "filler": "%s"}`, n, 1_700_000_000+n, n/60, n%60, n, n,
		strings.Repeat("x", 1000))
	b.Exec(t, putSQL, b.sources.Number["stripe"], "", "it's", fmt.Sprint(n), state)
}

func TestDrop_views_leaveNothing(t *testing.T) {
	t.Parallel()
	b := newBench(t, "stripe", "stripe", "shop", "shopify")
	for _, source := range []string{"stripe", "shop"} {
		for _, objectType := range []string{"one", "two"} {
			b.put(t, source, objectType, "1", `{"a": "x"}`)
			b.create(t, views.Request{Source: source, ObjectType: objectType, Indexes: []string{"a", "id"}})
		}
	}
	const remaining = `
		SELECT c.oid::regclass::text FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
			WHERE n.nspname IN ('stripe', 'shop')
		UNION ALL SELECT nspname FROM pg_namespace WHERE nspname IN ('stripe', 'shop')
		UNION ALL SELECT 'index ' || split_part(relname, '_', 3) FROM pg_class
			WHERE starts_with(relname, 'objects_view') ORDER BY 1`
	drop := func(source, objectType string) error {
		_, err := views.Drop(t.Context(), b.owner, views.Request{Source: source, ObjectType: objectType,
			Actor: me})
		return err
	}
	b.Exec(t, `CREATE VIEW public.mine AS SELECT id FROM stripe.two`)
	if err := drop("stripe", ""); !errors.Is(err, events.ErrInvalid) || !strings.Contains(err.Error(), "mine depends") {
		t.Errorf("a view that is used: %v", err)
	}
	if n := len(b.list(t, "stripe")); n != 2 {
		t.Errorf("%d views after a refused drop, want 2", n)
	}
	b.Exec(t, `DROP VIEW public.mine`)
	if err := errors.Join(drop("stripe", "one"), drop("stripe", "two"), drop("shop", "two")); err != nil {
		t.Error(err)
	}
	shop := fmt.Sprintf("index %d", b.sources.Number["shop"])
	equal(t, "what remains", []string{shop, shop, "shop", "shop.one"}, b.QueryStrings(t, remaining))
	for _, r := range [][]string{{"stripe", ""}, {"shop", "two"}, {"none", ""}} {
		if err := drop(r[0], r[1]); !errors.Is(err, events.ErrNotFound) {
			t.Errorf("drop %v again: %v", r, err)
		}
	}
}
