package reconcile_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// kept copies the mirror's things as objects of other types, which the API does not read and webhooks have told of last.
func (b *world) kept(t *testing.T, types ...string) {
	t.Helper()
	for _, typ := range types {
		b.DB.Exec(t, `INSERT INTO objects SELECT (o).* FROM (SELECT jsonb_populate_record(o, jsonb_build_object('object_type', $1::text)) AS o FROM objects o WHERE object_type = 'thing') o`, typ)
	}
	b.DB.Exec(t, `UPDATE objects o SET last_event_id = CASE WHEN o.object_type = 'thing' THEN w.oldest ELSE w.newest END FROM (SELECT min(id) AS oldest, max(id) AS newest FROM events WHERE origin = 'webhook') w`)
}

// held says what a sweep with a wrong key has done, which must be nothing, and asks that it waits for a person who reads some words.
func (b *world) held(t *testing.T, words string) {
	t.Helper()
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	r := b.Until(t, run, func(r *runs.Run) bool { return r.Status.Final() || r.Status == runs.Proposed })
	if r.Status != runs.Proposed || !strings.Contains(r.Detail, words) {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	if odd := b.DB.Rows(t, `SELECT object_id FROM objects WHERE deleted OR object_id LIKE 'theirs%'`); len(odd) > 0 || !b.proven(t).IsZero() {
		t.Errorf("proven until %s, deleted or foreign are %q", b.proven(t), odd)
	}
}

// Objects of types that the API does not read keep no others from being asked for, however many and new they are; where there are no others, nothing shows the key.
func TestTypesThatNobodyReadsAreNoWitnesses(t *testing.T) {
	t.Parallel()
	for _, alone := range []bool{false, true} {
		t.Run(fmt.Sprintf("alone %t", alone), func(t *testing.T) {
			t.Parallel()
			b := newWorld(t, 230, alive(5))
			b.deliver(t, b.api.h.Events)
			b.kept(t, "wa", "wb", "wc", "wd")
			words := "the API knows none of the 3 objects"
			if alone {
				b.DB.Exec(t, `DELETE FROM objects WHERE object_type = 'thing'`)
				words = "reads none of the types of objects that the mirror has"
			}
			b.carry(t, b.silently(t, 3, nothing))
			b.held(t, words)
		})
	}
}

// With the right key an object of the one type that is read shows it, also where webhooks have told of other types alone.
func TestALookedAtObjectIsAWitnessAmongTypesThatNobodyReads(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 230, alive(5))
	r := b.silently(t, 0, nothing)
	b.api.meets(nil) // it is the right key
	b.carry(t, r)
	b.sweep(t, reconcile.Order{})
	if n := b.looks(t); n != 5 {
		t.Fatalf("%d looks", n)
	}
	b.deliver(t, b.api.h.Events[:1])
	b.DB.Exec(t, `INSERT INTO objects SELECT (o).* FROM (SELECT jsonb_populate_record(o, jsonb_build_object('object_type', 'wa', 'last_event_id', (SELECT max(id) FROM events WHERE origin = 'webhook'))) AS o FROM objects o) o`)
	b.DB.Exec(t, `UPDATE objects SET last_event_id = (SELECT min(id) FROM events WHERE origin = 'reconcile') WHERE object_type = 'thing'`)
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	if swept := b.Until(t, run, func(r *runs.Run) bool { return r.Status.Final() || r.Status == runs.Proposed }); swept.Status != runs.Done || swept.Counts[reconcile.Equal] != 5 {
		t.Errorf("%s %v: %s", swept.Status, swept.Counts, swept.Detail)
	}
}

// An API that answers 403 for what another account has tells nothing of whose the key is.
func TestRefusedObjectsAreNoWitnesses(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 230, alive(5))
	b.deliver(t, b.api.h.Events)
	r := b.silently(t, 3, nothing)
	answer := b.api.fails
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		a, err := answer(c)
		if a != nil && a.Verdict.Kind == provider.Missing {
			a.Verdict = provider.Verdict{Kind: provider.Refused, Detail: "answered 403: not yours"}
		}
		return a, err
	}
	b.carry(t, r)
	b.held(t, "and refuses 1 of them")
	if n := b.api.made("/things/"); n != 1 {
		t.Errorf("%d objects of a refused type were asked for in one attempt", n)
	}
}

// A platform's live endpoint gets the events of both modes of an account. Where those of late are all of test mode, an object of live mode shows a live key, and a key of another account is shown by nothing.
func TestEventsOfTheOtherModeAreNotHeldAgainstAKey(t *testing.T) {
	t.Parallel()
	const connected, key = "acct_1", "rk_live_all"
	for _, right := range []bool{true, false} {
		t.Run(fmt.Sprintf("right %t", right), func(t *testing.T) {
			t.Parallel()
			b := newShop(t, "", stripefake.Options{Seed: 13, Live: true, Accounts: []string{connected}, Restricted: map[string][]string{key: {"charges", "events"}}})
			kept := b.fake.Create(connected, "charge", nil)
			b.deliver(t, func(int) bool { return false })
			b.fake.Advance(40 * 24 * time.Hour) // no live event is listed any more
			b.webhook(t, fmt.Sprintf(`{"id":"evt_test_1","object":"event","type":"charge.succeeded","account":%q,"created":%d,"livemode":false,"data":{"object":{"id":"ch_t","object":"charge","livemode":false}}}`,
				connected, b.fake.Now().Add(-2*time.Hour).Unix()))
			api := b.api(b.fake.URL)
			if !right {
				other := stripefake.New(t, stripefake.Options{Seed: 22, Live: true, Start: b.fake.Now(), Accounts: []string{connected}, Restricted: map[string][]string{key: {"charges", "events"}}})
				api = b.api(serve(t, renamed(other).ServeHTTP))
			}
			api.Key = provider.Secret{Name: "api.key", Value: []byte(key)}
			for _, o := range []reconcile.Order{{What: reconcile.Events}, {What: reconcile.Objects, Type: "charge"}} {
				o.Account = connected
				r := b.asked(t, api, o)
				if right && r.Status != runs.Done || !right && (r.Status != runs.Failed || !strings.Contains(r.Detail, "the key reads the other")) {
					t.Errorf("%s is %s: %s", o.What, r.Status, r.Detail)
				}
			}
			if now := b.DB.Rows(t, `SELECT object_id || ' ' || deleted FROM objects`); !slices.Equal(now, []string{kept + " false"}) {
				t.Errorf("the mirror has %q", now)
			}
		})
	}
}

// webhook appends what a webhook brought, and applies nothing of it.
func (b *shop) webhook(t *testing.T, body string) {
	t.Helper()
	d := provider.Delivery{ReceivedAt: b.fake.Now(), Body: []byte(body)}
	named, err := stripe.Stripe{}.Identify(b.config, &d)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := events.Append(t.Context(), b.DB.Role(t, "gateway"), []events.Delivery{{Source: b.Source, ReceivedAt: d.ReceivedAt, Origin: events.OriginWebhook, Headers: []byte(`{}`), Verification: []byte(`{}`),
		Body: d.Body, Events: named}}); err != nil {
		t.Fatal(err)
	}
}
