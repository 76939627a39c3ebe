package redaction_test

import (
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/redaction"
)

// A look has the object elsewhere than events have it, perhaps in something that holds it alone. The path that is given is that of events.
func TestLooksAreSearched(t *testing.T) {
	t.Parallel()
	for _, c := range []struct {
		path, value, object string
		want                bool
	}{
		{"$.data.object.email", email, `{"email": "Ada.Lovelace@example.org", "id": "cus_1"}`, true},
		{"$.email", email, `{"email": "` + email + `", "id": "cus_1"}`, true},
		{"$.customer.email", email, `{"order": {"id": 7, "customer": {"email": "` + email + `"}}}`, true},
		{"$.customer.email", email, `{"data": {"order": {"id": 7, "customer": {"email": "` + email + `"}}}}`, true},
		{"$.data.object.lines[*].email", email, `{"id": 7, "lines": [{"email": "x"}, {"email": "` + email + `"}]}`, true},
		{"$.data.object.email", email, `{"customer": {"email": "` + email + `"}, "id": 7}`, false}, // elsewhere
		{"$.data.object.email", email, `{"name": "` + email + `", "id": 7}`, false},
		{"$.customer.id", "7", `{"id": 7, "customer": {"id": 8}}`, false}, // an order of that number
		{"$.customer.id", "7", `{"id": 8, "customer": {"id": 7}}`, true},
		{"$.id", "7", `{"id": 7, "customer": {"id": 8}}`, true},
		{"$.email", email, `null`, false},
	} {
		f, err := redaction.NewFind(c.path, c.value)
		if err != nil {
			t.Fatal(err)
		}
		if got := redaction.InLook([]redaction.Find{f}, []byte(`{"schema": 1, "object_id": "x", "object": `+c.object+`}`)); got != c.want {
			t.Errorf("%s in %s: %t", c.path, c.object, got)
		}
	}
}

// What a look says of somebody goes with the events that say it, and so does the state that the look has made.
func TestLooksAreRedacted(t *testing.T) {
	t.Parallel()
	b := setup(t)
	find, err := redaction.NewFind("$.data.object.customer.email", email)
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{email, "other@else.org"} {
		l := provider.Look{Snapshot: provider.Snapshot{ObjectType: "thing", ObjectID: "of " + address, Body: []byte(`{"unit": 1, "object": {"customer": {"email": "` + address + `"}}}`)}, Date: time.Now()}
		text, err := l.Encode()
		if err != nil {
			t.Fatal(err)
		}
		receipts, err := events.Append(t.Context(), b.db.Role(t, "gateway"), []events.Delivery{{Source: b.source, ReceivedAt: time.Now().UTC(), Origin: events.OriginReconcile, Headers: []byte(`{}`),
			Verification: []byte(`{}`), Body: text, Events: []provider.Event{{Key: "look of " + address, Type: provider.LookType, ObjectType: "thing", ObjectID: "of " + address}}}})
		if err != nil {
			t.Fatal(err)
		}
		b.apply(t, 0, receipts[0][0].ID)
	}
	states := func() []string {
		return b.rows(t, `SELECT coalesce(state->'customer'->>'email', 'nothing') FROM objects ORDER BY object_id`)
	}
	if got := states(); len(got) != 2 || got[0] != email {
		t.Fatalf("%q", got)
	}
	order := redaction.Order{Source: b.source, Finds: []redaction.Find{find}}
	if look, err := redaction.Look(t.Context(), b.operator, &order, nil); err != nil || look.Events != 1 || look.Objects != 1 {
		t.Errorf("%+v, %v", look, err)
	}
	b.do(t, order)
	if got := states(); got[0] != "nothing" || got[1] != "other@else.org" {
		t.Errorf("%q", got)
	}
	if n := b.rows(t, `SELECT count(*)::text FROM events WHERE body IS NULL`); n[0] != "1" {
		t.Errorf("%s events were cleared", n[0])
	}
}
