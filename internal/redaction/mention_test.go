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

func TestNewMention_values_areWholeTokensInAnyEscaping(t *testing.T) {
	t.Parallel()
	const id, number = "cus_1", "7890123456"
	for text, want := range map[string]map[string]bool{
		`{"customer": "cus_1"}`:                                             {id: true, "cus_12": false, "cus_": false},
		`{"customer": "cus_12"}`:                                            {id: false, "cus_12": true},
		`{"a": "xcus_1", "b": "cus_1x", "c": "a_cus_1"}`:                    {id: false},
		`{"url": "/v1/customers/cus_1/sources"}`:                            {id: true},
		`{"cus_1": {"name": "Ada"}}`:                                        {id: true},
		`{"customer": "CUS_1"}`:                                             {id: true},
		`{"customer": "cus\u005f1"}`:                                        {id: true},
		`{"a": "cus_1", "a": 2}`:                                            {id: true}, // of members with one name, a reader may take either
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
		"{\"text\": \"\xe9ada.lovelace@example.org\"}":                      {email: false}, // é, as Latin-1 has it
		`{"text": "\ud835\udc00ada.lovelace@example.org"}`:                  {email: false}, // a letter beyond the first 65,536
	} {
		for value, want := range want {
			f, err := redaction.NewMention(value)
			if len(value) < 5 {
				if err == nil {
					t.Errorf("%q is taken", value)
				}
				continue
			}
			must(t, err)
			if got, _ := redaction.Search([]redaction.Find{f}, []byte(text)); got != want {
				t.Errorf("%s mentions %s: %t", text, value, got)
			}
			if strings.Contains(mustJSON(t, f), value) {
				t.Errorf("the value stands in %s", mustJSON(t, f))
			}
		}
	}
	for _, value := range []string{"", "  ", "ada", "12345", "1999999"} {
		if _, err := redaction.NewMention(value); err == nil {
			t.Errorf("%q is taken, which may stand for anything", value)
		}
	}
}

func TestNameOf_values_idsStayAndPersonalOnesAreDigests(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]string{
		"cus_1": "cus_1", "7890123456": "7890123456", "gid://shopify/Customer/7": "gid://shopify/Customer/7",
		"0b5a3f62-6a0f-4a8e-9a39-6a3b3f0f7a11": "0b5a3f62-6a0f-4a8e-9a39-6a3b3f0f7a11",
		email:                                  "sha256:6d2a7e3a", " ADA.Lovelace@example.org": "sha256:6d2a7e3a", "+15550100": "sha256:", "ada": "sha256:", "ada_lovelace": "sha256:", "cus_NffrFeUfNVhHib": "cus_NffrFeUfNVhHib",
	} {
		if got := redaction.NameOf(value); !strings.HasPrefix(got, want[:min(len(want), 7)]) || strings.HasPrefix(want, "sha256:") != strings.HasPrefix(got, "sha256:") ||
			!strings.HasPrefix(want, "sha256:") && got != want {
			t.Errorf("%s is named %s, want %s", value, got, want)
		}
	}
	if redaction.NameOf(email) != redaction.NameOf(" ADA.Lovelace@example.org") {
		t.Error("the digest depends on case")
	}
}

// TestPeople_NameOf_numberOfNoObject_isADigest: it may be a telephone number, and the audit is for good.
func TestPeople_NameOf_numberOfNoObject_isADigest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.object(t, "customer", "7890123456", `{"id": 7890123456}`)
	people, err := redaction.PeopleOf(t.Context(), b.operator, []int32{b.source}, []string{"7890123456", "4915550100123", "cus_1a"})
	must(t, err)
	for value, want := range map[string]string{"7890123456": "7890123456", "4915550100123": "sha256:", "cus_1a": "cus_1a"} {
		if got := people.NameOf(value); !strings.HasPrefix(got, want) {
			t.Errorf("%s is named %s, want %s", value, got, want)
		}
	}
}

// byMentions is the order that erases who has these values.
func (b *testBundle) byMentions(t *testing.T, include []string, values ...string) redaction.Order {
	t.Helper()
	o := redaction.Order{Include: include}
	for _, value := range values {
		f, err := redaction.NewMention(value)
		must(t, err)
		o.Finds = append(o.Finds, f)
	}
	sources, err := redaction.Sources(t.Context(), b.operator)
	if err == nil {
		o.People, err = redaction.PeopleOf(t.Context(), b.operator, sources, values)
	}
	must(t, err)
	return o
}

// put stores an event about an object of a type.
func (b *testBundle) put(t *testing.T, objectType, object, headers, body string) int64 {
	t.Helper()
	b.n++
	d := events.Delivery{Source: b.source, ReceivedAt: time.Now().UTC(), Origin: events.OriginWebhook, Headers: []byte(headers), Verification: []byte(`{}`),
		Body: []byte(body), Events: []provider.Event{{Key: fmt.Sprint("put", b.n), Type: objectType + ".updated", ObjectType: objectType, ObjectID: object,
			Fingerprint: provider.BodyFingerprint([]byte(body))}}}
	receipts, err := events.Append(t.Context(), b.db.Role(t, "gateway"), []events.Delivery{d})
	must(t, err)
	return receipts[0][0].ID
}

// object has an object in the mirror whose event retention has dropped.
func (b *testBundle) object(t *testing.T, objectType, object, state string) {
	t.Helper()
	b.event(t, object, 1, "")
	b.exec(t, `UPDATE objects SET object_type = $1, state = $3::jsonb WHERE object_id = $2`, objectType, object, state)
	b.exec(t, `DELETE FROM outcomes WHERE object_id = $1`, object)
}

// eventOf stores an event whose id names nobody, and applies it.
func (b *testBundle) eventOf(t *testing.T, object string, at int64, address string) {
	t.Helper()
	b.n++
	text := strings.Replace(string(body(object, at, address)), fmt.Sprint(object, at, address), fmt.Sprint("evt_", b.n), 1)
	b.apply(t, 0, b.store(t, object, []byte(text), fmt.Sprint("k", b.n))...)
}

// life has mentions of a person wherever something may mention one.
func (b *testBundle) life(t *testing.T) {
	t.Helper()
	b.eventOf(t, "cus_1a", 1, email)
	b.eventOf(t, "in_1", 1, email)
	b.eventOf(t, "in_1", 2, "somebody@else.org") // its state does not mention her any more
	b.event(t, "other", 1, "somebody@else.org")
	b.put(t, "charge", "ch_1", `{}`, `{"customer": "cus_1a", "amount": 7}`)
	b.put(t, "charge", "ch_2", `{"X-Customer": "cus_1a"}`, `{"amount": 7}`)
	b.put(t, "charge", "ch_3", `{"X-Customer": "cus_1ab"}`, `{"amount": 7}`)
	b.object(t, "subscription", "sub_1", `{"customer": "cus_1a", "note": "ada.lovelace@example.org"}`)
	b.exec(t, `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes) VALUES
		($1, 'r', '', '', now(), '{"From": "`+email+`"}', 'x', 1), ($1, 'r', '', '', now(), '{}', 'mail=ada.lovelace%40example.org', 1), ($1, 'r', '', '', now(), '{}', 'not hers', 1)`, b.source)
	b.store(t, "other", body("other", 99, email), "k4") // a conflict
	// An effect of another object mentions her, one that was planned of hers, and one that does not.
	b.exec(t, `INSERT INTO effects (key, rule_version, rule, source, account, object_type, object_id, event_id, run, facts, state, reason, destination, due, planned_at, updated_at)
		VALUES ('facts', 1, 'r', $1, '', 'thing', 'other', 0, 0, '{"new": {"mail": "`+email+`"}}', 'done', '', 'd', NULL, now(), now()),
		('step', 1, 'r', $1, '', 'thing', 'other', 0, 0, '{}', 'failed', '', 'd', now(), now(), now()),
		('not', 1, 'r', $1, '', 'thing', 'other', 0, 0, '{"new": {"mail": "somebody@else.org"}}', 'done', '', 'd', NULL, now(), now())`, b.source)
	b.exec(t, `INSERT INTO effect_steps (effect, step, place, state, destination, request, fingerprint, attempts, reserved_at)
		SELECT effect, 's', 0, 'done', 'd', '{"body": "to=ada.lovelace%40example.org"}', '', 1, now() FROM effects WHERE key = 'step'`)
	b.exec(t, `INSERT INTO effect_holds (source, account, object_type, object_id, state, deleted, there, exact_hash, held_at)
		VALUES ($1, '', 'thing', 'held', '{"mail": "`+email+`"}', false, true, '', now())`, b.source)
	b.exec(t, `INSERT INTO hints (source, account, object_type, object_id, reason, made_at, due, after, error) VALUES
		($1, '', 'thing', 'cus_1a', 'doubt', now(), now(), 0, ''), ($1, '', 'thing', 'other', 'doubt', now(), now(), 0, 'no such mail: `+email+`')`, b.source)
	b.exec(t, `INSERT INTO runs (run, job, asked, who, reason, status, detail, counts, made_at, ended_at, updated_at) OVERRIDING SYSTEM VALUE
		VALUES (9000, 'reconcile', '{}', '', '', 'done', '', '{}', now(), now(), now())`)
	b.exec(t, `INSERT INTO drifts (run, source, account, object_type, object_id, kind, fields, reason) VALUES (9000, $1, '', 'thing', 'other', 'behind', '[{"after": "`+email+`"}]', ''),
		(9000, $1, '', 'thing', 'others', 'behind', '[{"after": 1}]', 'kept')`, b.source)
	b.exec(t, `INSERT INTO sweeps (run, source, account, object_type, phase, began, updated_at) VALUES (9000, $1, '', 'thing', 'proposed', now(), now())`, b.source)
	b.exec(t, `INSERT INTO ghosts (run, object_type, object_id, date, elapsed_us, body) VALUES
		(9000, 'thing', 'gone', now(), 1, '{"mail": "`+email+`", "deleted": true}'), (9000, 'thing', 'others', now(), 1, '{"deleted": true}'), (9000, 'thing', 'cus_1a', now(), 1, NULL)`)
}

func TestRedact_mentions_clearAllThatMentionsThePerson(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.life(t)
	for _, table := range []string{"drifts", "effect_holds", "effect_steps", "effects", "event_conflicts", "events_", "ghosts", "hints", "objects", "rejections"} {
		if !strings.Contains(strings.Join(b.holding(t, "lovelace"), " "), table) {
			t.Fatalf("nothing in %s mentions her: %v", table, b.holding(t, "lovelace"))
		}
	}
	order := b.byMentions(t, nil, email, "cus_1a")
	look, err := redaction.Look(t.Context(), b.operator, &order, nil)
	must(t, err)
	want := []redaction.TypeCount{{Type: "charge", Events: 2}, {Type: "subscription", Objects: 1, Example: "sub_1"}, {Type: "thing", Objects: 2, Events: 2, Example: "cus_1a"}}
	if diff := cmp.Diff(want, look.Types); diff != "" || look.Events != 4 || len(look.SharedTypes) > 0 {
		t.Errorf("the preview: %+v %s", look, diff)
	}
	kept := [5]int64{look.Rejections, look.Conflicts, look.Effects, look.Refetches, look.Differences}
	if want := [5]int64{2, 1, 3, 2, 1}; kept != want {
		t.Errorf("the preview counts %v beside events and objects, want %v", kept, want)
	}
	h := b.do(t, order)
	if left := append(b.holding(t, "lovelace"), b.holding(t, "X-Customer\": \"cus_1a\"")...); len(left) > 0 {
		t.Errorf("left in %v", left)
	}
	if h.Counts[redaction.CountEvents] != 4 || h.Counts[redaction.CountRejections] != 2 || h.Counts[redaction.CountConflicts] != 1 {
		t.Errorf("counts %v", h.Counts)
	}
	for sql, want := range map[string][]string{
		`SELECT key || ' ' || state FROM effects ORDER BY key`:                                          {"facts done", "not done", "step rejected"},
		`SELECT key FROM effects WHERE facts IS NOT NULL`:                                               {"not"},
		`SELECT object_id || ' ' || error FROM hints`:                                                   {"other "},
		`SELECT object_id FROM ghosts ORDER BY 1`:                                                       {"cus_1a", "others"},
		`SELECT object_id || ' ' || reason FROM drifts WHERE fields <> '[]'`:                            {"others kept"},
		`SELECT event_id FROM mirror.events WHERE NOT redacted AND object_type = 'charge'`:              {"put7"},
		`SELECT object_id FROM mirror.objects WHERE redacted ORDER BY 1`:                                {"cus_1a", "sub_1"},
		`SELECT object_id FROM mirror.objects WHERE NOT redacted AND state IS NOT NULL ORDER BY 1`:      {"in_1", "other"},
		`SELECT count(*)::text FROM event_conflicts WHERE body <> '' OR headers <> '{}'`:                {"0"},
		`SELECT (asked ? 'finds')::text FROM redactions UNION SELECT (asked ? 'finds')::text FROM runs`: {"false"},
	} {
		equal(t, sql, want, b.rows(t, sql))
	}
	h = b.do(t, order)
	for name, n := range h.Counts {
		if n != 0 && name != redaction.CountSeen {
			t.Errorf("a second run counts %d as %s", n, name)
		}
	}
	if look, err := redaction.Look(t.Context(), b.operator, &order, nil); err != nil || look.Events != 0 || look.Objects != 0 ||
		look.Rejections+look.Conflicts+look.Effects+look.Refetches+look.Differences != 0 {
		t.Errorf("a preview afterwards: %+v, %v", look, err)
	}
}

// TestRedact_mentionInHeadersOfABodilessConflict_isCleared: a body may be empty where a header tells who sent it.
func TestRedact_mentionInHeadersOfABodilessConflict_isCleared(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.event(t, "other", 1, "somebody@else.org")
	b.exec(t, `INSERT INTO event_conflicts (source, event, event_id, event_type, account, fingerprint, received_at, headers, verification, body)
		SELECT source, id, event_id, event_type, account, '', now(), '{"From": "`+email+`"}', '{}', '' FROM events`)
	h := b.do(t, b.byMentions(t, nil, email))
	if left := b.holding(t, "lovelace"); len(left) > 0 || h.Counts[redaction.CountConflicts] != 1 {
		t.Errorf("left in %v, counts %v", left, h.Counts)
	}
}

// deaths ends a run at its next statement after so many.
type deaths struct {
	left atomic.Int64
	die  context.CancelFunc
}

func (d *deaths) TraceQueryStart(ctx context.Context, _ *pgx.Conn, _ pgx.TraceQueryStartData) context.Context {
	if d.left.Add(-1) == 0 {
		d.die()
	}
	return ctx
}

func (d *deaths) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// TestRedact_mentions_killedAtManyStatements_goOn has a process die at its 4th statement, the next at its 6th, and so on until
// one comes to the end.
func TestRedact_mentions_killedAtManyStatements_goOn(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.life(t)
	b.ask(t, b.byMentions(t, nil, email, "cus_1a"))
	config := b.pool.Config()
	trace := new(deaths)
	config.ConnConfig.Tracer = trace
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	died := 0
	for n := int64(4); ; n += 2 {
		h := taken(t, b.pool, "test", time.Minute, redaction.Job)
		ctx, die := context.WithCancel(t.Context())
		trace.die = die
		trace.left.Store(n)
		_, err = (&redaction.Runner{Pool: pool, Processor: b.proc}).Carry(ctx, h, slog.New(slog.DiscardHandler))
		die()
		if err == nil {
			break
		}
		died++
		b.exec(t, `UPDATE checkpoints SET leased_until = now() - interval '1 s' WHERE job = 'redact'`)
	}
	b.gone(t, "lovelace")
	if died < 10 {
		t.Errorf("only %d processes died", died)
	}
	b.says(t, "4", `SELECT events::text FROM redactions`)
}

func TestRedact_mentionsOfSharedObjects_stayUnlessIncluded(t *testing.T) {
	t.Parallel()
	const gid = "gid://shopify/Customer/"
	for name, tt := range map[string]struct {
		include []string
		values  []string
		// state of an invoice that names two persons, and whether it is cleared.
		state string
		want  bool
	}{
		"two customers":              {nil, []string{"cus_1a"}, `{"customers": ["cus_1a", "cus_2b"]}`, false},
		"two customers, included":    {[]string{"invoice"}, []string{"cus_1a"}, `{"customers": ["cus_1a", "cus_2b"]}`, true},
		"another type is included":   {[]string{"charge"}, []string{"cus_1a"}, `{"customers": ["cus_1a", "cus_2b"]}`, false},
		"both are looked for":        {nil, []string{"cus_1a", "cus_2b"}, `{"customers": ["cus_1a", "cus_2b"]}`, true},
		"one customer":               {nil, []string{"cus_1a"}, `{"customer": "cus_1a", "customer_id": 1, "mail": "shop@else.org"}`, true},
		"another address":            {nil, []string{email}, `{"mail": "` + email + `", "to": "somebody@else.org"}`, false},
		"an id, not an address":      {nil, []string{"cus_1a", email}, `{"customer": "cus_1a", "mail": "` + email + `"}`, true},
		"an id without a digit":      {nil, []string{"cus_1a"}, `{"customers": ["cus_1a", "cus_NffrFeUfNVhHib"]}`, false},
		"a member's name":            {nil, []string{"customer_17"}, `{"customer_id": "customer_17"}`, true},
		"an address in quotes":       {nil, []string{email}, `{"text": "“` + email + `”, she said"}`, true},
		"another global id":          {nil, []string{gid + "1"}, `{"customers": ["` + gid + `1", "` + gid + `2"]}`, false},
		"one global id":              {nil, []string{gid + "1"}, `{"customer": "` + gid + `1", "order": "gid://shopify/Order/2"}`, true},
		"a number of another person": {nil, []string{"7890123456"}, `{"customer": 7890123456, "payer": 7890123457}`, false},
		"a number of no person":      {nil, []string{"7890123456"}, `{"customer": 7890123456, "order": 5550123457}`, true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.object(t, "customer", "7890123456", `{"id": 7890123456}`)
			b.object(t, "customer", "7890123457", `{"id": 7890123457}`)
			b.object(t, "invoice", "in_1", tt.state)
			event := b.put(t, "invoice", "in_2", `{}`, tt.state)
			order := b.byMentions(t, tt.include, tt.values...)
			look, err := redaction.Look(t.Context(), b.operator, &order, nil)
			must(t, err)
			want := []redaction.TypeCount{}
			if !tt.want {
				want = []redaction.TypeCount{{Type: "invoice", Objects: 1, Events: 1, Example: "in_2"}}
			}
			equal(t, "the preview of what is shared", want, look.SharedTypes)
			h := b.do(t, order)
			got := b.rows(t, `SELECT (redacted AND (SELECT redacted FROM mirror.events WHERE id = $1))::text FROM mirror.objects WHERE object_id = 'in_1'`, event)[0]
			if got != fmt.Sprint(tt.want) || (h.Counts[redaction.CountShared] > 0) == tt.want {
				t.Errorf("the invoice is cleared: %s, want %t; counts %v", got, tt.want, h.Counts)
			}
		})
	}
}

// TestLook_object_countsWhatElseMentionsIt: who erases one object learns what else there is of the person.
func TestLook_object_countsWhatElseMentionsIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.life(t)
	look, err := redaction.Look(t.Context(), b.operator, &redaction.Order{Objects: []redaction.Object{{Source: b.source, Type: "thing", ID: "cus_1a"}}}, nil)
	must(t, err)
	want := []redaction.TypeCount{{Type: "charge", Events: 2, Example: "ch_1"}, {Type: "subscription", Objects: 1, Example: "sub_1"}}
	if diff := cmp.Diff(want, look.Others); diff != "" || look.Events != 1 || look.Objects != 1 {
		t.Errorf("%+v: %s", look, diff)
	}
}

// TestRedact_object_dropsItsRefetchRequest: its answer would bring back what was cleared.
func TestRedact_object_dropsItsRefetchRequest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.life(t)
	b.do(t, redaction.Order{Objects: []redaction.Object{{Source: b.source, Type: "thing", ID: "cus_1a"}}})
	equal(t, "", []string{"other"}, b.rows(t, `SELECT object_id FROM hints`))
}

// TestRedact_mentionsOfThePersonsOwnObject_clearIt although it names another person.
func TestRedact_mentionsOfThePersonsOwnObject_clearIt(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.object(t, "customer", "cus_1a", `{"id": "cus_1a", "referred_by": "cus_2b"}`)
	h := b.do(t, b.byMentions(t, nil, "cus_1a"))
	if diff := cmp.Diff([]string{"cus_1a"}, b.rows(t, `SELECT object_id FROM mirror.objects WHERE redacted`)); diff != "" {
		t.Errorf("counts %v: %s", h.Counts, diff)
	}
}

// TestLook_mentionsInALongDelivery_searchItsBodyOnce, not once for each of its events.
func TestLook_mentionsInALongDelivery_searchItsBodyOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	keys := make([]string, 100)
	for i := range keys {
		keys[i] = fmt.Sprint("part", i)
	}
	long := `{"pad": "` + strings.Repeat("x", 100<<10) + `", "mail": "`
	b.store(t, "other", []byte(long+`somebody@else.org"}`), keys[:50]...)
	b.store(t, "other", []byte(long+email+`"}`), keys[50:]...)
	config := b.operator.Config()
	trace := new(deaths)
	config.ConnConfig.Tracer = trace
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	order := b.byMentions(t, nil, email)
	look, err := redaction.Look(t.Context(), pool, &order, nil)
	if err != nil || look.Events != 50 || look.Looked != 100 {
		t.Errorf("%+v, %v", look, err)
	}
	if n := -trace.left.Load(); n > 60 {
		t.Errorf("%d statements for two bodies", n)
	}
}
