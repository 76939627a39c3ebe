package reconcile_test

import (
	"fmt"
	"net/http"
	"regexp"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// newQuietStripeEnv makes a number of invoices with the last event forty days ago. One invoice was
// deleted since; it returns its id.
func newQuietStripeEnv(t *testing.T, invoices int) (b *stripeEnv, gone string) {
	t.Helper()
	b = newStripeEnv(t, "", stripefake.Options{Seed: 27})
	for range invoices {
		gone = b.fake.Create("", "invoice", nil)
	}
	b.deliver(t, loseNone)
	b.fake.Advance(time.Minute)
	b.fake.DeleteWithoutEvent("", gone)
	b.fake.Advance(40 * 24 * time.Hour)
	return b, gone
}

// If nothing can verify the key, a refetch is retried with the remedy. An operator who names the
// object accepts the result.
func TestAccountCheck_nothingToCheck_reportsTheRemedy(t *testing.T) {
	t.Parallel()
	b, gone := newQuietStripeEnv(t, 1)
	b.DB.Exec(t, `UPDATE objects SET refetch_after = 1`)
	startRefetcher(t, b.runner(t, b.apiAt(b.fake.URL), sameCaller), "one")
	b.waitForRequestError(t, "change anything in the account that sends a webhook")
	wantNone(t, b.deletedObjects(t))
	wantRunDone(t, b.runOnce(t, b.apiAt(b.fake.URL), reconcile.Params{Scope: reconcile.Object, Type: "invoice",
		ID: gone}))
	if deleted := b.deletedObjects(t); len(deleted) != 1 || deleted[0] != gone {
		t.Errorf("deleted are %q, not %s", deleted, gone)
	}
}

// A dry run with an unverified key of another account fails.
func TestObjectScan_dryRunWithOtherAccountKey_fails(t *testing.T) {
	t.Parallel()
	b, _ := newQuietStripeEnv(t, 5)
	otherKeyAPI := b.apiAt(serve(t, b.otherAccountAPI(t, "invoice", 3).ServeHTTP))
	r := b.runOnce(t, otherKeyAPI, reconcile.Params{Scope: reconcile.Objects, Type: "invoice", DryRun: true})
	wantRunFailed(t, r, "nothing shows that the key")
}

func loseNone(int) bool { return false }
func loseAll(int) bool  { return true }

// addUndeliveredEvent adds an event without a webhook, for example of a type that is not
// subscribed.
func (b *stripeEnv) addUndeliveredEvent(t *testing.T) {
	t.Helper()
	b.fake.Create("", "charge", nil)
	b.deliver(t, loseAll)
	b.fake.Advance(time.Minute)
}

// deletedObjects returns the objects that are deleted in the mirror.
func (b *stripeEnv) deletedObjects(t *testing.T) []string {
	t.Helper()
	return b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE deleted`)
}

// A scan with missing objects verifies the key with an event of a webhook, whether or not the
// newest event is in the log.
func TestAccountCheck_newestEventNotInLog_isEnough(t *testing.T) {
	t.Parallel()
	calls := map[bool]int{}
	for _, received := range []bool{true, false} {
		b := newStripeEnv(t, "", stripefake.Options{Seed: 27})
		var all []string
		for range 30 {
			all = append(all, b.fake.Create("", "invoice", nil))
		}
		b.deliver(t, loseNone)
		b.fake.Advance(3 * time.Hour)
		for _, id := range all[:3] {
			b.fake.DeleteWithoutEvent("", id)
		}
		if !received {
			b.addUndeliveredEvent(t)
		}
		r := b.runOnce(t, b.apiAt(b.fake.URL), reconcile.Params{Scope: reconcile.Objects, Type: "invoice"})
		if r.Status != runs.Done || r.Counts[objectscan.Orphans] != 3 || r.Counts[objectscan.Repaired] != 3 ||
			len(b.deletedObjects(t)) != 3 {
			t.Errorf("webhook received %t: %s %v, deleted are %q: %s", received, r.Status, r.Counts,
				b.deletedObjects(t), r.Detail)
		}
		if complete := b.DB.QueryStrings(t, `SELECT subject FROM watermarks`); len(complete) != 1 {
			t.Errorf("webhook received %t: complete are %q", received, complete)
		}
		calls[received] = len(b.fake.Requests())
	}
	if calls[false] != calls[true] {
		t.Errorf("%d calls where the newest event is not in the log, %d where it is", calls[false], calls[true])
	}
}

// If the last webhook is too old for that, an existing object verifies the key.
func TestAccountCheck_oldWebhooksOnly_usesAnObject(t *testing.T) {
	t.Parallel()
	b, gone := newQuietStripeEnv(t, 5)
	b.addUndeliveredEvent(t)
	wantCounts(t, b.runOnce(t, b.apiAt(b.fake.URL), reconcile.Params{Scope: reconcile.Objects, Type: "invoice"}),
		counts{objectscan.Repaired: 1})
	if deleted := b.deletedObjects(t); len(deleted) != 1 || deleted[0] != gone {
		t.Errorf("deleted are %q, not %s", deleted, gone)
	}
}

// If nothing verifies the key, a scan asks for approval. Once an operator has approved the key,
// missing objects count as deleted.
func TestObjectScan_accountCheckImpossible_needsApproval(t *testing.T) {
	t.Parallel()
	const objects = 5
	b, _ := newQuietStripeEnv(t, objects)
	for _, o := range b.fake.CurrentObjects() {
		if o.Type == "invoice" && o.Body != nil {
			b.fake.DeleteWithoutEvent("", o.ID)
		}
	}
	b.addUndeliveredEvent(t)
	api := b.apiAt(b.fake.URL)
	requested := b.runOnce(t, api, reconcile.Params{Scope: reconcile.Objects, Type: "invoice"})
	if requested.Status != runs.AwaitingApproval { // because all objects are missing
		t.Fatalf("%s: %s", requested.Status, requested.Detail)
	}
	wantNone(t, b.deletedObjects(t))
	b.approve(t, requested.ID, "they are gone")
	b.startReconciler(t, b.runner(t, api, sameCaller))
	wantCounts(t, b.waitForEnd(t, requested.ID), counts{objectscan.Orphans: objects, objectscan.Repaired: objects})
}

var invoicePath = regexp.MustCompile(`^/v1/invoices/[^/]+$`)

// A key that becomes another account's during a scan deletes nothing, even if it was verified at
// the start of the scan.
func TestObjectScan_keyChangesAccount_writesNoTombstones(t *testing.T) {
	t.Parallel()
	b := newStripeEnv(t, "", stripefake.Options{Seed: 27})
	var gone string
	for range 30 {
		gone = b.fake.Create("", "invoice", nil)
	}
	b.deliver(t, loseNone)
	b.fake.Advance(3 * time.Hour)
	b.fake.DeleteWithoutEvent("", gone)
	theirs := b.otherAccountAPI(t, "invoice", 10)
	var changed atomic.Bool
	api := b.apiAt(serve(t, func(w http.ResponseWriter, r *http.Request) {
		if changed.Load() || invoicePath.MatchString(r.URL.Path) {
			changed.Store(true)
			theirs.ServeHTTP(w, r)
			return
		}
		b.fake.ServeHTTP(w, r)
	}))
	r := b.runOnce(t, api, reconcile.Params{Scope: reconcile.Objects, Type: "invoice"})
	if r.Status != runs.Failed || !strings.Contains(r.Detail, otherAccountKey) || len(b.deletedObjects(t)) > 0 ||
		!changed.Load() {
		t.Errorf("%s, deleted are %q: %s", r.Status, b.deletedObjects(t), r.Detail)
	}
}

// copyAsTypes copies the things of the mirror as objects of other types, which the API does not
// read and the latest webhooks are about.
func (b *testEnv) copyAsTypes(t *testing.T, types ...string) {
	t.Helper()
	for _, typ := range types {
		b.DB.Exec(t, `INSERT INTO objects SELECT (o).*
			FROM (SELECT jsonb_populate_record(o, jsonb_build_object('object_type', $1::text)) AS o FROM objects o
				WHERE object_type = 'thing') o`, typ)
	}
	b.DB.Exec(t, `UPDATE objects o SET last_event_id = CASE WHEN o.object_type = 'thing' THEN w.oldest ELSE w.newest END
		FROM (SELECT min(id) AS oldest, max(id) AS newest FROM events WHERE origin = 'webhook') w`)
}

// wantAwaitsApproval checks that a scan with a wrong key changes nothing and awaits approval with
// the given words.
func (b *testEnv) wantAwaitsApproval(t *testing.T, words string) {
	t.Helper()
	run := b.startRun(t, reconcile.Params{Scope: reconcile.Objects})
	r := b.WaitForRun(t, run, endedOrAwaitsApproval)
	if r.Status != runs.AwaitingApproval || !strings.Contains(r.Detail, words) {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	wrong := b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE deleted OR object_id LIKE 'theirs%'`)
	if len(wrong) > 0 || !b.typeCompleteUntil(t).IsZero() {
		t.Errorf("complete until %s, deleted or of another account are %q", b.typeCompleteUntil(t), wrong)
	}
}

// Objects of types that the API does not read are no samples, however many and new they are.
// Without other objects nothing verifies the key.
func TestAccountCheck_unreadableTypes_areIgnored(t *testing.T) {
	t.Parallel()
	for _, onlyUnreadable := range []bool{false, true} {
		t.Run(fmt.Sprintf("only unreadable types %t", onlyUnreadable), func(t *testing.T) {
			t.Parallel()
			b := newMirroredEnv(t, 230, livingOptions(5))
			b.copyAsTypes(t, "wa", "wb", "wc", "wd")
			words := "the API knows none of the 3 objects"
			if onlyUnreadable {
				b.DB.Exec(t, `DELETE FROM objects WHERE object_type = 'thing'`)
				words = "reads none of the mirror's object types"
			}
			b.startReconciler(t, b.runnerWithoutEvents(t, 3, noObject))
			b.wantAwaitsApproval(t, words)
		})
	}
}

// With the right key an object of the one readable type verifies it, even if webhooks were about
// other types only.
func TestAccountCheck_refetchedObject_isEnough(t *testing.T) {
	t.Parallel()
	b := newEmptyEnv(t, 230, livingOptions(5))
	r := b.runnerWithoutEvents(t, 0, noObject)
	b.api.interceptWith(nil) // the key of this account
	b.startReconciler(t, r)
	b.scan(t, reconcile.Params{})
	if n := b.refetchCount(t); n != 5 {
		t.Fatalf("%d refetches", n)
	}
	b.deliver(t, b.api.history.Events[:1])
	b.DB.Exec(t, `INSERT INTO objects SELECT (o).*
		FROM (SELECT jsonb_populate_record(o, jsonb_build_object('object_type', 'wa', 'last_event_id', (SELECT max(id)
			FROM events WHERE origin = 'webhook'))) AS o FROM objects o) o`)
	b.DB.Exec(t, `UPDATE objects SET last_event_id = (SELECT min(id) FROM events WHERE origin = 'reconcile')
		WHERE object_type = 'thing'`)
	run := b.startRun(t, reconcile.Params{Scope: reconcile.Objects})
	if scanned := b.WaitForRun(t, run, endedOrAwaitsApproval); scanned.Status != runs.Done ||
		scanned.Counts[objectscan.Equal] != 5 {
		t.Errorf("%s %v: %s", scanned.Status, scanned.Counts, scanned.Detail)
	}
}

// A 403 for objects does not verify the key.
func TestAccountCheck_rejectedObjects_areIgnored(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 230, livingOptions(5))
	r := b.runnerWithoutEvents(t, 3, noObject)
	answer := b.api.intercept
	b.api.intercept = func(c provider.Call) (*providerapi.Response, error) {
		a, err := answer(c)
		if a != nil && a.Verdict.Kind == provider.Missing {
			a.Verdict = provider.Verdict{Kind: provider.Rejected, Detail: "answered 403: not yours"}
		}
		return a, err
	}
	b.startReconciler(t, r)
	b.wantAwaitsApproval(t, "and rejects 1 of them")
	b.api.wantCalls(t, "/things/", 1)
}

// A platform's live endpoint gets the events of both modes of an account. If the recent events are
// all of test mode, an object of live mode verifies a live key. A key of another account is not
// verified.
func TestAccountCheck_onlyOtherModeEvents_usesAnObject(t *testing.T) {
	t.Parallel()
	const connected, key = "acct_1", "rk_live_all"
	for _, ownKey := range []bool{true, false} {
		t.Run(fmt.Sprintf("own key %t", ownKey), func(t *testing.T) {
			t.Parallel()
			b := newStripeEnv(t, "", stripefake.Options{Seed: 13, LiveMode: true, Accounts: []string{connected},
				Restricted: map[string][]string{key: {"charges", "events"}}})
			kept := b.fake.Create(connected, "charge", nil)
			b.deliver(t, loseNone)
			b.fake.Advance(40 * 24 * time.Hour) // no live event is listed any more
			b.appendWebhook(t, fmt.Sprintf(
				`{"id":"evt_test_1","object":"event","type":"charge.succeeded","account":%q,"created":%d,`+
					`"livemode":false,"data":{"object":{"id":"ch_t","object":"charge","livemode":false}}}`,
				connected, b.fake.Now().Add(-2*time.Hour).Unix()))
			api := b.apiAt(b.fake.URL)
			if !ownKey {
				other := stripefake.New(t, stripefake.Options{Seed: 22, LiveMode: true, Start: b.fake.Now(),
					Accounts: []string{connected}, Restricted: map[string][]string{key: {"charges", "events"}}})
				api = b.apiAt(serve(t, otherIDs(other).ServeHTTP))
			}
			api.Key = provider.Secret{Name: "api.key", Value: []byte(key)}
			for _, o := range []reconcile.Params{{Scope: reconcile.Events},
				{Scope: reconcile.Objects, Type: "charge"}} {
				o.Account = connected
				r := b.runOnce(t, api, o)
				if ownKey && r.Status != runs.Done || !ownKey &&
					(r.Status != runs.Failed || !strings.Contains(r.Detail, "the key reads the other")) {
					t.Errorf("%s is %s: %s", o.Scope, r.Status, r.Detail)
				}
			}
			b.wantRows(t, `SELECT object_id || ' ' || deleted FROM objects`, kept+" false")
		})
	}
}

// appendWebhook appends a webhook without applying it.
func (b *stripeEnv) appendWebhook(t *testing.T, body string) (id int64) {
	t.Helper()
	d := &provider.Delivery{ReceivedAt: b.fake.Now(), Body: []byte(body)}
	return applied.AppendDeliveries(t, b.gateway, b.Sources[applied.SourceName], d)[0].ID
}
