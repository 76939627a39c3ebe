package redaction_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
)

func TestNewMentionMatcher_values_areWholeTokensInAnyEscaping(t *testing.T) {
	t.Parallel()
	const id, number = "cus_1", "7890123456"
	for text, want := range map[string]map[string]bool{
		`{"customer": "cus_1"}`:                          {id: true, "cus_12": false, "cus_": false},
		`{"customer": "cus_12"}`:                         {id: false, "cus_12": true},
		`{"a": "xcus_1", "b": "cus_1x", "c": "a_cus_1"}`: {id: false},
		`{"url": "/v1/customers/cus_1/sources"}`:         {id: true},
		`{"cus_1": {"name": "Ada"}}`:                     {id: true},
		`{"customer": "CUS_1"}`:                          {id: true},
		`{"customer": "cus\u005f1"}`:                     {id: true},
		// for repeated member names, a reader may take either one
		`{"a": "cus_1", "a": 2}`:                                            {id: true},
		`{"customer": 7890123456}`:                                          {number: true, "78901234": false},
		`{"customer": 78901234567}`:                                         {number: false},
		`{"id": "gid://shopify/Customer/7890123456"}`:                       {number: true},
		`{"mail": "ADA.Lovelace@example.org"}`:                              {email: true},
		`{"mail": "ada.lovelace\u0040example.org"}`:                         {email: true},
		`{"mail": "x.ada.lovelace@example.org"}`:                            {email: false},
		`{"mail": "jane+ada.lovelace@example.org"}`:                         {email: false},
		`{"mail": "ada.lovelace@example.org.au"}`:                           {email: false},
		`{"text": "Ask ada.lovelace@example.org."}`:                         {email: true},
		`{"text": "\nada.lovelace@example.org\n"}`:                          {email: true},
		`{"json": "{\"mail\":\"ada.lovelace\\u0040example.org\"}"}`:         {email: true},
		`{"url": "https://x.example/?mail=ada.lovelace%40example.org&a=1"}`: {email: true},
		`a=b&mail=ada.lovelace%40example.org`:                               {email: true},
		`note=hello+ada.lovelace%40example.org`:                             {email: true},
		`mail=jane%2Bada.lovelace%40example.org`:                            {email: false},
		`payload=%7B%22mail%22%3A%22ada.lovelace%5Cu0040example.org%22%7D`:  {email: true},
		`<mail>ada.lovelace&#64;example.org</mail>`:                         {email: true},
		`{"cut": "ada.lovelace@example.org`:                                 {email: true},
		``:                                                                  {email: false},
		"{\"text\": \"“ada.lovelace@example.org”\"}":                        {email: true},
		`{"text": "\u201cada.lovelace@example.org\u201d"}`:                  {email: true},
		`{"text": "\u00a0ada.lovelace@example.org\u200b"}`:                  {email: true},
		`{"text": "\ud83d\ude00ada.lovelace@example.org"}`:                  {email: true},
		"{\"text\": \"❤\ufe0fada.lovelace@example.org…\"}":                  {email: true},
		"{\"text\": \"éada.lovelace@example.org\"}":                         {email: false},
		"{\"text\": \"e\u0301ada.lovelace@example.org\"}":                   {email: false},
		// é, as Latin-1 has it
		"{\"text\": \"\xe9ada.lovelace@example.org\"}": {email: false},
		// a letter beyond the first 65,536
		`{"text": "\ud835\udc00ada.lovelace@example.org"}`: {email: false},
	} {
		for value, want := range want {
			f, err := redaction.NewMentionMatcher(value)
			if len(value) < 5 {
				if err == nil {
					t.Errorf("%q is accepted", value)
				}
				continue
			}
			must(t, err)
			if got, _ := redaction.Search([]redaction.ValueMatcher{f}, []byte(text)); got != want {
				t.Errorf("%s mentions %s: %t", text, value, got)
			}
			if strings.Contains(mustJSON(t, f), value) {
				t.Errorf("the value is in %s", mustJSON(t, f))
			}
		}
	}
	for _, value := range []string{"", "  ", "ada", "12345", "1999999"} {
		if _, err := redaction.NewMentionMatcher(value); err == nil {
			t.Errorf("%q is accepted, which may mean anything", value)
		}
	}
}

func TestAuditName_values_idsStayAndPersonalOnesAreDigests(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"cus_1": "cus_1", "7890123456": "7890123456", "gid://shopify/Customer/7": "gid://shopify/Customer/7",
		"0b5a3f62-6a0f-4a8e-9a39-6a3b3f0f7a11": "0b5a3f62-6a0f-4a8e-9a39-6a3b3f0f7a11",
		email:                                  "sha256:6d2a7e3a", " ADA.Lovelace@example.org": "sha256:6d2a7e3a",
		"+15550100": "sha256:", "ada": "sha256:", "ada_lovelace": "sha256:", "cus_NffrFeUfNVhHib": "cus_NffrFeUfNVhHib",
	} {
		if got := redaction.AuditName(value); !strings.HasPrefix(got, want[:min(len(want), 7)]) ||
			strings.HasPrefix(want, "sha256:") != strings.HasPrefix(got, "sha256:") ||
			!strings.HasPrefix(want, "sha256:") && got != want {
			t.Errorf("%s has the name %s, want %s", value, got, want)
		}
	}
	if redaction.AuditName(email) != redaction.AuditName(" ADA.Lovelace@example.org") {
		t.Error("the digest depends on upper and lower case")
	}
}

// A number that is no object's id may be a telephone number, and the audit is permanent.
func TestPersonIdentifiersAuditName_numberOfNoObject_isDigest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.putObject(t, "customer", "7890123456", `{"id": 7890123456}`)
	people, err := redaction.PersonIdentifiersOf(t.Context(), b.operator, []int32{b.source},
		[]string{"7890123456", "4915550100123", "cus_1a"})
	must(t, err)
	for value, want := range map[string]string{"7890123456": "7890123456", "4915550100123": "sha256:",
		"cus_1a": "cus_1a"} {
		if got := people.AuditName(value); !strings.HasPrefix(got, want) {
			t.Errorf("%s has the name %s, want %s", value, got, want)
		}
	}
}

// byMentions returns parameters that redact a person with these values.
func (b *fixture) byMentions(t *testing.T, include []string, values ...string) redaction.Params {
	t.Helper()
	o := redaction.Params{Include: include}
	for _, value := range values {
		f, err := redaction.NewMentionMatcher(value)
		must(t, err)
		o.Matchers = append(o.Matchers, f)
	}
	sources, err := redaction.Sources(t.Context(), b.operator)
	if err == nil {
		o.Persons, err = redaction.PersonIdentifiersOf(t.Context(), b.operator, sources, values)
	}
	must(t, err)
	return o
}

// put stores an event about an object of a type.
func (b *fixture) put(t *testing.T, objectType, object, headers, body string) int64 {
	t.Helper()
	b.n++
	return b.appendDelivery(t, events.Delivery{Source: b.source, ReceivedAt: time.Now().UTC(),
		Origin: events.OriginWebhook, Headers: []byte(headers), Body: []byte(body), Events: []provider.Event{{
			Key: fmt.Sprint("put", b.n), Type: objectType + ".updated", ObjectType: objectType, ObjectID: object}}})[0]
}

// putObject stores an object in the mirror whose event is in a dropped partition.
func (b *fixture) putObject(t *testing.T, objectType, object, state string) {
	t.Helper()
	b.event(t, object, 1, "")
	b.exec(t, `UPDATE objects SET object_type = $1, state = $3::jsonb WHERE object_id = $2`, objectType, object, state)
	b.exec(t, `DELETE FROM outcomes WHERE object_id = $1`, object)
}

// putEvent stores an event with an id that identifies no person, and applies it.
func (b *fixture) putEvent(t *testing.T, object string, at int64, address string) {
	t.Helper()
	b.n++
	text := strings.Replace(string(body(object, at, address)), fmt.Sprint(object, at, address), fmt.Sprint("evt_", b.n),
		1)
	b.apply(t, 0, b.store(t, object, []byte(text), fmt.Sprint("k", b.n))...)
}

// putMentions stores mentions of a person in every table that may have them.
func (b *fixture) putMentions(t *testing.T) {
	t.Helper()
	b.putEvent(t, "cus_1a", 1, email)
	b.putEvent(t, "in_1", 1, email)
	b.putEvent(t, "in_1", 2, "somebody@else.org") // its state does not mention the person any more
	b.event(t, "other", 1, "somebody@else.org")
	b.put(t, "charge", "ch_1", `{}`, `{"customer": "cus_1a", "amount": 7}`)
	b.put(t, "charge", "ch_2", `{"X-Customer": "cus_1a"}`, `{"amount": 7}`)
	b.put(t, "charge", "ch_3", `{"X-Customer": "cus_1ab"}`, `{"amount": 7}`)
	b.putObject(t, "subscription", "sub_1", `{"customer": "cus_1a", "note": "ada.lovelace@example.org"}`)
	b.exec(t, `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes) VALUES
		($1, 'r', '', '', now(), '{"From": "`+email+
		`"}', 'x', 1), ($1, 'r', '', '', now(), '{}', 'mail=ada.lovelace%40example.org', 1), ($1, 'r', '', '', `+
		`now(), '{}', 'not hers', 1)`, b.source)
	b.store(t, "other", body("other", 99, email), "k4") // a conflict
	// One effect of another object mentions the person, one was planned for the person's object,
	// and one does neither.
	b.exec(t, `INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run,
		template_data, state, reason, destination, due, planned_at, updated_at)
		VALUES ('facts', 1, 'r', $1, '', 'thing', 'other', 0, 0, '{"new": {"mail": "`+
		email+`"}}', 'done', '', 'd', NULL, now(), now()),
		('step', 1, 'r', $1, '', 'thing', 'other', 0, 0, '{}', 'failed', '', 'd', now(), now(), now()),
		('not', 1, 'r', $1, '', 'thing', 'other', 0, 0, '{"new": {"mail": "somebody@else.org"}}', 'done', '', `+
		`'d', NULL, now(), now())`, b.source)
	b.exec(t, `INSERT INTO effect_steps (effect, step, position, state, destination, request, fingerprint, attempts,
		reserved_at)
		SELECT effect, 's', 0, 'done', 'd', '{"body": "to=ada.lovelace%40example.org"}', '', 1, now() FROM effects
			WHERE key = 'step'`)
	b.exec(t, `INSERT INTO effect_baselines (source, account, object_type, object_id, state, deleted, existed,
		exact_hash, recorded_at)
		VALUES ($1, '', 'thing', 'held', '{"mail": "`+email+`"}', false, true, '', now())`, b.source)
	b.exec(t, `INSERT INTO refetch_requests (source, account, object_type, object_id, reason, requested_at, due,
		start_after, error) VALUES
		($1, '', 'thing', 'cus_1a', 'doubt', now(), now(), 0, ''), ($1, '', 'thing', 'other', 'doubt', now(), now(), 0,
			'no such mail: `+email+`')`, b.source)
	b.exec(t, `INSERT INTO runs (run, job, params, actor, reason, status, detail, counts, created_at, ended_at,
		updated_at) OVERRIDING SYSTEM VALUE
		VALUES (9000, 'reconcile', '{}', '', '', 'done', '', '{}', now(), now(), now())`)
	b.exec(t, `INSERT INTO drifts (run, source, account, object_type, object_id, kind, fields, reason)
		VALUES (9000, $1, '', 'thing', 'other', 'mirror_older', '[{"after": "`+email+`"}]', ''),
		(9000, $1, '', 'thing', 'others', 'mirror_older', '[{"after": 1}]', 'kept')`, b.source)
	b.exec(t, `INSERT INTO object_scans (run, source, account, object_type, phase, started_at, updated_at)
		VALUES (9000, $1, '', 'thing', 'awaiting_approval', now(), now())`, b.source)
	b.exec(t, `INSERT INTO orphans (run, object_type, object_id, missing_at, elapsed_us, body) VALUES
		(9000, 'thing', 'gone', now(), 1, '{"mail": "`+email+
		`", "deleted": true}'), (9000, 'thing', 'others', now(), 1, '{"deleted": true}'), (9000, 'thing', `+
		`'cus_1a', now(), 1, NULL)`)
}

func TestRedact_mentions_clearAllThatMentionsThePerson(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.putMentions(t)
	for _, table := range []string{"drifts", "effect_baselines", "effect_steps", "effects", "event_conflicts",
		"events_", "orphans", "refetch_requests", "objects", "rejections"} {
		if !strings.Contains(strings.Join(b.tablesWith(t, "lovelace"), " "), table) {
			t.Fatalf("%s has no mention: %v", table, b.tablesWith(t, "lovelace"))
		}
	}
	params := b.byMentions(t, nil, email, "cus_1a")
	preview, err := redaction.BuildPreview(t.Context(), b.operator, &params, nil)
	must(t, err)
	want := []redaction.TypeCount{{Type: "charge", Events: 2}, {Type: "subscription", Objects: 1, Example: "sub_1"},
		{Type: "thing", Objects: 2, Events: 2, Example: "cus_1a"}}
	if diff := cmp.Diff(want, preview.Types); diff != "" || preview.Events != 4 || len(preview.SharedTypes) > 0 {
		t.Errorf("the preview: %+v %s", preview, diff)
	}
	kept := [5]int64{preview.Rejections, preview.Conflicts, preview.Effects, preview.Refetches, preview.Differences}
	if want := [5]int64{2, 1, 3, 2, 1}; kept != want {
		t.Errorf("the preview counts %v outside of events and objects, want %v", kept, want)
	}
	h := b.run(t, params)
	b.wantGone(t, "lovelace")
	b.wantGone(t, `X-Customer": "cus_1a"`)
	wantCounts(t, h, map[string]int64{redaction.CountEvents: 4, redaction.CountRejections: 2,
		redaction.CountConflicts: 1})
	for sql, want := range map[string][]string{
		`SELECT key || ' ' || state FROM effects ORDER BY key`: {"facts done",
			"not done", "step rejected"},
		`SELECT key FROM effects WHERE template_data IS NOT NULL`: {"not"},
		`SELECT object_id || ' ' || error FROM refetch_requests`:  {"other "},
		`SELECT object_id FROM orphans ORDER BY 1`: {"cus_1a",
			"others"},
		`SELECT object_id || ' ' || reason FROM drifts WHERE fields <> '[]'`:               {"others kept"},
		`SELECT event_id FROM mirror.events WHERE NOT redacted AND object_type = 'charge'`: {"put7"},
		`SELECT object_id FROM mirror.objects WHERE redacted ORDER BY 1`: {"cus_1a",
			"sub_1"},
		`SELECT object_id FROM mirror.objects WHERE NOT redacted AND state IS NOT NULL ORDER BY 1`: {"in_1",
			"other"},
		`SELECT count(*)::text FROM event_conflicts WHERE body <> '' OR headers <> '{}'`:                  {"0"},
		`SELECT (params ? 'finds')::text FROM redactions UNION SELECT (params ? 'finds')::text FROM runs`: {"false"},
	} {
		equal(t, sql, want, b.rows(t, sql))
	}
	h = b.run(t, params)
	for name, n := range h.Counts {
		if n != 0 && name != redaction.CountExamined {
			t.Errorf("a second run counts %d as %s", n, name)
		}
	}
	if p := b.wantPreview(t, params, 0, 0); p.Rejections+p.Conflicts+p.Effects+p.Refetches+p.Differences != 0 {
		t.Errorf("a later preview: %+v", p)
	}
}

// A conflict may have an empty body, and a header that identifies the person.
func TestRedact_mentionInHeadersOfABodilessConflict_isCleared(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.event(t, "other", 1, "somebody@else.org")
	b.exec(t, `INSERT INTO event_conflicts (source, event, event_id, event_type, account, fingerprint, received_at,
		headers, verification, body)
		SELECT source, id, event_id, event_type, account, '', now(), '{"From": "`+email+`"}', '{}', '' FROM events`)
	h := b.run(t, b.byMentions(t, nil, email))
	b.wantGone(t, "lovelace")
	wantCounts(t, h, map[string]int64{redaction.CountConflicts: 1})
}

// killer ends a run at the statement after a number of statements.
type killer struct {
	left atomic.Int64
	die  context.CancelFunc
}

func (d *killer) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	if d.left.Add(-1) == 0 {
		d.die()
	}
	return ctx
}

func (d *killer) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// tracedPool returns a pool like another one that counts its statements.
func tracedPool(t *testing.T, like *pgxpool.Pool) (*pgxpool.Pool, *killer) {
	t.Helper()
	config, trace := like.Config(), new(killer)
	config.ConnConfig.Tracer = trace
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	return pool, trace
}

// The first process dies at its 4th statement, the next at its 6th, and so on until one finishes.
func TestRedact_mentions_killedAtManyStatements_continue(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.putMentions(t)
	b.request(t, b.byMentions(t, nil, email, "cus_1a"))
	pool, trace := tracedPool(t, b.pool)
	died := 0
	for n := int64(4); ; n += 2 {
		h := leaseRun(t, b.pool, "test", time.Minute, redaction.Job)
		ctx, die := context.WithCancel(t.Context())
		trace.die = die
		trace.left.Store(n)
		_, err := (&redaction.Runner{Pool: pool, Applier: b.proc}).Execute(ctx, h, slog.New(slog.DiscardHandler))
		die()
		if err == nil {
			break
		}
		died++
		b.exec(t, `UPDATE checkpoints SET lease_until = now() - interval '1 s' WHERE job = 'redact'`)
	}
	b.wantGone(t, "lovelace")
	if died < 10 {
		t.Errorf("only %d processes died", died)
	}
	b.wantText(t, "4", `SELECT events::text FROM redactions`)
}

func TestRedact_mentionsOfSharedObjects_stayUnlessIncluded(t *testing.T) {
	t.Parallel()
	const gid = "gid://shopify/Customer/"
	for name, tt := range map[string]struct {
		include []string
		values  []string
		// The state of an invoice, and whether it is cleared.
		state string
		want  bool
	}{
		"two customers": {nil, []string{"cus_1a"}, `{"customers": ["cus_1a", "cus_2b"]}`, false},
		"two customers, included": {[]string{"invoice"}, []string{"cus_1a"}, `{"customers": ["cus_1a", "cus_2b"]}`,
			true},
		"another type is included": {[]string{"charge"}, []string{"cus_1a"}, `{"customers": ["cus_1a", "cus_2b"]}`,
			false},
		"both are searched": {nil, []string{"cus_1a", "cus_2b"}, `{"customers": ["cus_1a", "cus_2b"]}`, true},
		"one customer": {nil, []string{"cus_1a"},
			`{"customer": "cus_1a", "customer_id": 1, "mail": "shop@else.org"}`, true},
		"another address": {nil, []string{email}, `{"mail": "` + email + `", "to": "somebody@else.org"}`,
			false},
		"an id, not an address": {nil, []string{"cus_1a", email}, `{"customer": "cus_1a", "mail": "` + email +
			`"}`, true},
		"an id without a digit": {nil, []string{"cus_1a"}, `{"customers": ["cus_1a", "cus_NffrFeUfNVhHib"]}`,
			false},
		"a member's name":      {nil, []string{"customer_17"}, `{"customer_id": "customer_17"}`, true},
		"an address in quotes": {nil, []string{email}, `{"text": "“` + email + `”, she said"}`, true},
		"another global id": {nil, []string{gid + "1"}, `{"customers": ["` + gid + `1", "` + gid + `2"]}`,
			false},
		"one global id": {nil, []string{gid + "1"}, `{"customer": "` + gid +
			`1", "order": "gid://shopify/Order/2"}`, true},
		"a number of another person": {nil, []string{"7890123456"}, `{"customer": 7890123456, "payer": 7890123457}`,
			false},
		"a number of no person": {nil, []string{"7890123456"}, `{"customer": 7890123456, "order": 5550123457}`,
			true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.putObject(t, "customer", "7890123456", `{"id": 7890123456}`)
			b.putObject(t, "customer", "7890123457", `{"id": 7890123457}`)
			b.putObject(t, "invoice", "in_1", tt.state)
			event := b.put(t, "invoice", "in_2", `{}`, tt.state)
			params := b.byMentions(t, tt.include, tt.values...)
			preview, err := redaction.BuildPreview(t.Context(), b.operator, &params, nil)
			must(t, err)
			want := []redaction.TypeCount{}
			if !tt.want {
				want = []redaction.TypeCount{{Type: "invoice", Objects: 1, Events: 1, Example: "in_2"}}
			}
			equal(t, "the preview of shared data", want, preview.SharedTypes)
			h := b.run(t, params)
			got := b.rows(t, `SELECT (redacted AND (SELECT redacted FROM mirror.events WHERE id = $1))::text
				FROM mirror.objects WHERE object_id = 'in_1'`, event)[0]
			if got != fmt.Sprint(tt.want) || (h.Counts[redaction.CountShared] > 0) == tt.want {
				t.Errorf("the invoice is cleared: %s, want %t; counts %v", got, tt.want, h.Counts)
			}
		})
	}
}

// The preview of a redaction of one object shows the other data that mentions it.
func TestBuildPreview_object_countsOtherMentions(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.putMentions(t)
	preview := b.wantPreview(t, redaction.Params{Objects: []redaction.Object{b.thing("cus_1a")}}, 1, 1)
	want := []redaction.TypeCount{{Type: "charge", Events: 2, Example: "ch_1"},
		{Type: "subscription", Objects: 1, Example: "sub_1"}}
	equal(t, "other mentions", want, preview.Others)
}

// The response to a refetch request would restore the cleared data.
func TestRedact_object_dropsItsRefetchRequest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.putMentions(t)
	b.run(t, redaction.Params{Objects: []redaction.Object{b.thing("cus_1a")}})
	equal(t, "", []string{"other"}, b.rows(t, `SELECT object_id FROM refetch_requests`))
}

// The person's own object is cleared although it names another person.
func TestRedact_mentionsOfThePersonsOwnObject_clearIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.putObject(t, "customer", "cus_1a", `{"id": "cus_1a", "referred_by": "cus_2b"}`)
	b.run(t, b.byMentions(t, nil, "cus_1a"))
	equal(t, "", []string{"cus_1a"}, b.rows(t, `SELECT object_id FROM mirror.objects WHERE redacted`))
}

// The body of a delivery is searched once, and not once for each of its events.
func TestBuildPreview_mentionsInLongDelivery_searchBodyOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	keys := make([]string, 100)
	for i := range keys {
		keys[i] = fmt.Sprint("part", i)
	}
	long := `{"pad": "` + strings.Repeat("x", 100<<10) + `", "mail": "`
	b.store(t, "other", []byte(long+`somebody@else.org"}`), keys[:50]...)
	b.store(t, "other", []byte(long+email+`"}`), keys[50:]...)
	pool, trace := tracedPool(t, b.operator)
	params := b.byMentions(t, nil, email)
	preview, err := redaction.BuildPreview(t.Context(), pool, &params, nil)
	if err != nil || preview.Events != 50 || preview.Examined != 100 {
		t.Errorf("%+v, %v", preview, err)
	}
	if n := -trace.left.Load(); n > 60 {
		t.Errorf("%d statements for two bodies", n)
	}
}
