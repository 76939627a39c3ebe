package redaction_test

import (
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/redaction"
)

// A body that is neither JSON nor a form is searched for the literal value. If that finds nothing,
// the body counts as unread.
func TestSearch_unparsableBody_findsLiteralValue(t *testing.T) {
	t.Parallel()
	const none, found, unread = "none", "found", "unread"
	for text, want := range map[string]string{
		`{"object": {"customer": {"email": "` + email + `"}}`:            found, // cut off
		`{"email": "Ada.Lovelace\u0040example.org", "rest": "cu`:         found,
		`{"text": "\nada.lovelace@example.org\n`:                         found,
		`<order><email>` + email + `</email></order>`:                    found,
		`<order><email>ada.lovelace&#64;example.org</email></order>`:     found,
		`mail ada.lovelace@example.org.`:                                 found,
		email:                                                            found,
		`<order><email>jane.` + email + `</email></order>`:               unread,
		`<order><email>x` + email + `</email></order>`:                   unread,
		`<order><email>` + email + `.au</email></order>`:                 unread,
		`<order><email>YWRhLmxvdmVsYWNlQGV4YW1wbGUub3Jn</email></order>`: unread,
		`cut \u00`:                              unread,
		`cut \`:                                 unread,
		``:                                      none,
		`{"other": {"email": "` + email + `"}}`: none, // it can be parsed, and does not match
		`a=b&email=` + strings.Replace(email, "@", "%40", 1): none,
		// a field that contains JSON
		`object=%7B%22customer%22%3A%7B%22email%22%3A%22ada.lovelace%40example.org%22%7D%7D`: found,
		`{"object": "{\"customer\":{\"email\":\"` + email + `\"}}"}`:                         found,
		`{"object": "` + email + `"}`:                                                        none,
		`object.customer.email=ada.lovelace%40example.org&bad=%zz`:                           found,
	} {
		f, err := redaction.NewValueMatcher("$.object.customer.email", email)
		must(t, err)
		hit, unreadable := redaction.Search([]redaction.ValueMatcher{f}, []byte(text))
		if got := map[[2]bool]string{{false, false}: none, {true, false}: found,
			{false, true}: unread}[[2]bool{hit, unreadable}]; got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	short, err := redaction.NewValueMatcher("$.id", "12345")
	must(t, err)
	if hit, unreadable := redaction.Search([]redaction.ValueMatcher{short}, []byte(`<n>12345</n>`)); hit ||
		!unreadable {
		t.Error("a short number is searched without a path")
	}
}

// A preview and a run count bodies that cannot be read. Literal values in them are cleared.
func TestBuildPreview_unreadableBodies_areCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.event(t, "other", 1, "somebody@else.org")
	b.store(t, "hers", []byte(`{"object": {"customer": {"email": "`+email+`"}}`), "cut")
	first := b.store(t, "hers", []byte(`<order/>`), "xml")[0]
	b.store(t, "other", []byte(`{"cut`), "k1")
	b.store(t, "hers", []byte(`{"cut`), "cut") // conflicts
	b.exec(t, `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
		VALUES ($1, 'r', '', '', now(), '{}', $2, 99), ($1, 'r', '', '', now(), '{}', '{"cut', 99)`,
		b.source, []byte(`{"object": {"customer": {"email": "`+email+`"}, "rest": "cut`))
	params := b.byEmail(t, email)
	if preview := b.wantPreview(t, params, 1, 0); preview.Unread != 1 || preview.FirstUnread != first {
		t.Errorf("%+v", preview)
	}
	h := b.run(t, params)
	wantCounts(t, h, map[string]int64{redaction.CountEvents: 1, redaction.CountUnread: 2, redaction.CountRejections: 1})
	b.wantGone(t, "lovelace")
}

// Search handles any bytes and finds a literal value in any text.
func FuzzSearch(f *testing.F) {
	for _, s := range []string{`{"a": "` + email + `"`, `<a>` + email + `</a>`, `a=%zz&b=\u00`, "\\", `\u`,
		"\xff" + email, `{"a": "{\"b\": 1}"}`} {
		f.Add([]byte(s))
	}
	find, err := redaction.NewValueMatcher("$.a.b", email)
	must(f, err)
	f.Fuzz(func(t *testing.T, body []byte) {
		if hit, unreadable := redaction.Search([]redaction.ValueMatcher{find}, body); hit && unreadable {
			t.Errorf("%q is both", body)
		}
		if hit, _ := redaction.Search([]redaction.ValueMatcher{find},
			append(append([]byte("<"), body...), " "+email...)); !hit {
			t.Errorf("%q hides the value", body)
		}
	})
}

// A preview counts existing objects only: no misspelt name, and no object that only outcomes
// mention.
func TestBuildPreview_missingObjects_areNotCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	id := b.event(t, "hers", 1, email)
	for _, c := range []struct {
		params          redaction.Params
		events, objects int64
	}{
		{redaction.Params{Objects: []redaction.Object{b.thing("hers")}}, 1, 1},
		{redaction.Params{Objects: []redaction.Object{b.thing("Hers")}}, 0, 0},
		{redaction.Params{Objects: []redaction.Object{{Source: b.source, Account: "another", Type: "thing",
			ID: "hers"}}}, 0, 0},
		{redaction.Params{Events: []int64{id}}, 1, 1},
		{b.byEmail(t, email), 1, 1},
	} {
		b.wantPreview(t, c.params, c.events, c.objects)
	}
	b.exec(t, `DELETE FROM objects`)
	b.wantPreview(t, redaction.Params{Events: []int64{id}}, 1, 0) // only an outcome mentions the object
}

// A refetched object is at another place than in events, possibly as the only member of another
// object. The path is that of events.
func TestMatchesRefetched_bodies(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path, value, object string
		want                bool
	}{
		{"$.data.object.email", email, `{"email": "Ada.Lovelace@example.org", "id": "cus_1"}`, true},
		{"$.email", email, `{"email": "` + email + `", "id": "cus_1"}`, true},
		{"$.customer.email", email, `{"order": {"id": 7, "customer": {"email": "` + email + `"}}}`, true},
		{"$.customer.email", email, `{"data": {"order": {"id": 7, "customer": {"email": "` + email + `"}}}}`, true},
		{"$.data.object.lines[*].email", email, `{"id": 7, "lines": [{"email": "x"}, {"email": "` + email + `"}]}`,
			true},
		{"$.data.object.email", email, `{"customer": {"email": "` + email + `"}, "id": 7}`, false}, // elsewhere
		{"$.data.object.email", email, `{"name": "` + email + `", "id": 7}`, false},
		{"$.customer.id", "7", `{"id": 7, "customer": {"id": 8}}`, false}, // a matcher of that number
		{"$.customer.id", "7", `{"id": 8, "customer": {"id": 7}}`, true},
		{"$.id", "7", `{"id": 7, "customer": {"id": 8}}`, true},
		{"$.email", email, `null`, false},
	} {
		f, err := redaction.NewValueMatcher(c.path, c.value)
		must(t, err)
		if got := redaction.MatchesRefetched([]redaction.ValueMatcher{f},
			[]byte(`{"schema": 1, "object_id": "x", "object": `+c.object+`}`)); got != c.want {
			t.Errorf("%s in %s: %t", c.path, c.object, got)
		}
	}
}

// A redaction also clears refetches of the person's objects, and the states that came from them.
func TestRedact_refetchedObject_isCleared(t *testing.T) {
	t.Parallel()
	b := setup(t)
	find, err := redaction.NewValueMatcher("$.data.object.customer.email", email)
	must(t, err)
	for _, address := range []string{email, "other@else.org"} {
		b.refetch(t, "of "+address, address, false)
	}
	states := func() []string {
		return b.rows(t, `SELECT coalesce(state->'customer'->>'email', 'nothing') FROM objects ORDER BY object_id`)
	}
	if got := states(); len(got) != 2 || got[0] != email {
		t.Fatalf("%q", got)
	}
	params := redaction.Params{Source: b.source, Matchers: []redaction.ValueMatcher{find}}
	b.wantPreview(t, params, 1, 1)
	b.run(t, params)
	if got := states(); got[0] != "nothing" || got[1] != "other@else.org" {
		t.Errorf("%q", got)
	}
	b.db.WantRows(t, 1, "events WHERE body IS NULL")
}
