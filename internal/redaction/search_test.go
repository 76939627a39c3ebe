package redaction_test

import (
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/redaction"
)

// What is neither JSON nor a form is looked through for the value as it stands; what that does not find is unread, never silently without it.
func TestSearchWithoutAPath(t *testing.T) {
	t.Parallel()
	const none, found, unread = "none", "found", "unread"
	for text, want := range map[string]string{
		`{"object": {"customer": {"email": "` + email + `"}}`:            found, // cut
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
		`{"other": {"email": "` + email + `"}}`: none, // it can be read, and is not there
		`a=b&email=` + strings.Replace(email, "@", "%40", 1):                                 none,
		`object=%7B%22customer%22%3A%7B%22email%22%3A%22ada.lovelace%40example.org%22%7D%7D`: found, // a field that is JSON
		`{"object": "{\"customer\":{\"email\":\"` + email + `\"}}"}`:                         found,
		`{"object": "` + email + `"}`:                                                        none,
		`object.customer.email=ada.lovelace%40example.org&bad=%zz`:                           found,
	} {
		f, err := redaction.NewFind("$.object.customer.email", email)
		if err != nil {
			t.Fatal(err)
		}
		hit, blind := redaction.Search([]redaction.Find{f}, []byte(text))
		if got := map[[2]bool]string{{false, false}: none, {true, false}: found, {false, true}: unread}[[2]bool{hit, blind}]; got != want {
			t.Errorf("%s: %s, want %s", text, got, want)
		}
	}
	short, err := redaction.NewFind("$.id", "12345")
	if err != nil {
		t.Fatal(err)
	}
	if hit, blind := redaction.Search([]redaction.Find{short}, []byte(`<n>12345</n>`)); hit || !blind {
		t.Error("a short number is looked for without a path")
	}
}

// A preview and a run count what cannot be read; what stands there as it is goes.
func TestUnreadIsCounted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.event(t, "other", 1, "somebody@else.org")
	b.store(t, "hers", []byte(`{"object": {"customer": {"email": "`+email+`"}}`), "cut")
	first := b.store(t, "hers", []byte(`<order/>`), "xml")[0]
	b.store(t, "other", []byte(`{"cut`), "k1")
	b.store(t, "hers", []byte(`{"cut`), "cut") // conflicts
	b.exec(t, `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes) VALUES ($1, 'r', '', '', now(), '{}', $2, 99), ($1, 'r', '', '', now(), '{}', '{"cut', 99)`,
		b.source, []byte(`{"object": {"customer": {"email": "`+email+`"}, "rest": "cut`))
	order := b.byEmail(t, email)
	if look, err := redaction.Look(t.Context(), b.operator, &order, nil); err != nil || look.Events != 1 || look.Unread != 1 || look.FirstUnread != first {
		t.Errorf("%+v, %v", look, err)
	}
	h := b.do(t, order)
	if h.Counts[redaction.CountEvents] != 1 || h.Counts[redaction.CountUnread] != 2 || h.Counts[redaction.CountRejections] != 1 {
		t.Errorf("%v", h.Counts)
	}
	if left := b.holding(t, "lovelace"); len(left) > 0 {
		t.Errorf("left in %v", left)
	}
}

// Strangers write bodies.
func FuzzSearch(f *testing.F) {
	for _, s := range []string{`{"a": "` + email + `"`, `<a>` + email + `</a>`, `a=%zz&b=\u00`, "\\", `\u`, "\xff" + email, `{"a": "{\"b\": 1}"}`} {
		f.Add([]byte(s))
	}
	find, err := redaction.NewFind("$.a.b", email)
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, body []byte) {
		if hit, blind := redaction.Search([]redaction.Find{find}, body); hit && blind {
			t.Errorf("%q is both", body)
		}
		if hit, _ := redaction.Search([]redaction.Find{find}, append(append([]byte("<"), body...), " "+email...)); !hit {
			t.Errorf("%q hides the value", body)
		}
	})
}
