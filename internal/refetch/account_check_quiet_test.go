package refetch_test

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
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// newQuietStripeEnv makes a number of invoices with the last event forty days ago. One invoice was
// deleted since; it returns its id.
func newQuietStripeEnv(t *testing.T, invoices int) (b *reconciled.StripeEnv, gone string) {
	t.Helper()
	b = reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 27})
	for range invoices {
		gone = b.Fake.Create("", "invoice", nil)
	}
	b.Deliver(t, reconciled.LoseNone)
	b.Fake.Advance(time.Minute)
	b.Fake.DeleteWithoutEvent("", gone)
	b.Fake.Advance(40 * 24 * time.Hour)
	return b, gone
}

// If nothing can verify the key, a refetch is retried with the remedy. An operator who names the
// object accepts the result.
func TestAccountCheck_nothingToCheck_reportsTheRemedy(t *testing.T) {
	t.Parallel()
	b, gone := newQuietStripeEnv(t, 1)
	b.DB.Exec(t, `UPDATE objects SET refetch_after = 1`)
	reconciled.StartRefetcher(t, b.Runner(t, b.APIAt(b.Fake.URL), reconciled.SameCaller), "one")
	b.WaitForRequestError(t, "change anything in the account that sends a webhook")
	b.WantRows(t, deletedSQL)
	reconciled.WantRunDone(t,
		b.RunOnce(t, b.APIAt(b.Fake.URL), reconcile.Params{Scope: reconcile.Object, Type: "invoice", ID: gone}))
	b.WantRows(t, deletedSQL, gone)
}

// A scan with missing objects verifies the key with an event of a webhook, whether or not the
// newest event is in the log.
func TestAccountCheck_newestEventNotInLog_isEnough(t *testing.T) {
	t.Parallel()
	calls := map[bool]int{}
	for _, received := range []bool{true, false} {
		b := reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 27})
		var all []string
		for range 30 {
			all = append(all, b.Fake.Create("", "invoice", nil))
		}
		b.Deliver(t, reconciled.LoseNone)
		b.Fake.Advance(3 * time.Hour)
		for _, id := range all[:3] {
			b.Fake.DeleteWithoutEvent("", id)
		}
		if !received {
			addUndeliveredEvent(t, b)
		}
		r := b.RunOnce(t, b.APIAt(b.Fake.URL), reconcile.Params{Scope: reconcile.Objects, Type: "invoice"})
		reconciled.WantCounts(t, r, reconciled.Counts{objectscan.Orphans: 3, objectscan.Repaired: 3})
		reconciled.WantValue(t, b.Env, 3, deletedCountSQL)
		reconciled.WantValue(t, b.Env, 1, `SELECT count(*) FROM watermarks`)
		calls[received] = len(b.Fake.Requests())
	}
	if calls[false] != calls[true] {
		t.Errorf("%d calls where the newest event is not in the log, %d where it is", calls[false], calls[true])
	}
}

// If the last webhook is too old for that, an existing object verifies the key. A dry run with an
// unverified key of another account fails.
func TestAccountCheck_oldWebhooksOnly_usesAnObject(t *testing.T) {
	t.Parallel()
	b, gone := newQuietStripeEnv(t, 5)
	otherKeyAPI := b.APIAt(reconciled.Serve(t, b.OtherAccountAPI(t, "invoice", 3).ServeHTTP))
	r := b.RunOnce(t, otherKeyAPI, reconcile.Params{Scope: reconcile.Objects, Type: "invoice", DryRun: true})
	reconciled.WantRunFailed(t, r, "nothing shows that the key")
	addUndeliveredEvent(t, b)
	reconciled.WantCounts(t, b.RunOnce(t, b.APIAt(b.Fake.URL),
		reconcile.Params{Scope: reconcile.Objects, Type: "invoice"}), reconciled.Counts{objectscan.Repaired: 1})
	b.WantRows(t, deletedSQL, gone)
}

// If nothing verifies the key, a scan asks for approval. Once an operator has approved the key,
// missing objects count as deleted.
func TestObjectScan_accountCheckImpossible_needsApproval(t *testing.T) {
	t.Parallel()
	const objects = 5
	b, _ := newQuietStripeEnv(t, objects)
	for _, o := range b.Fake.CurrentObjects() {
		if o.Type == "invoice" && o.Body != nil {
			b.Fake.DeleteWithoutEvent("", o.ID)
		}
	}
	addUndeliveredEvent(t, b)
	api := b.APIAt(b.Fake.URL)
	requested := b.RunOnce(t, api, reconcile.Params{Scope: reconcile.Objects, Type: "invoice"})
	if requested.Status != runs.AwaitingApproval { // because all objects are missing
		t.Fatalf("%s: %s", requested.Status, requested.Detail)
	}
	b.WantRows(t, deletedSQL)
	b.Approve(t, requested.ID, "they are gone")
	b.StartReconciler(t, b.Runner(t, api, reconciled.SameCaller))
	reconciled.WantCounts(t, b.WaitForEnd(t, requested.ID), reconciled.Counts{objectscan.Orphans: objects,
		objectscan.Repaired: objects})
}

var invoicePath = regexp.MustCompile(`^/v1/invoices/[^/]+$`)

// A key that becomes another account's during a scan deletes nothing, even if it was verified at
// the start of the scan.
func TestObjectScan_keyChangesAccount_writesNoTombstones(t *testing.T) {
	t.Parallel()
	b := reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 27})
	var gone string
	for range 30 {
		gone = b.Fake.Create("", "invoice", nil)
	}
	b.Deliver(t, reconciled.LoseNone)
	b.Fake.Advance(3 * time.Hour)
	b.Fake.DeleteWithoutEvent("", gone)
	theirs := b.OtherAccountAPI(t, "invoice", 10)
	var changed atomic.Bool
	api := b.APIAt(reconciled.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		if changed.Load() || invoicePath.MatchString(r.URL.Path) {
			changed.Store(true)
			theirs.ServeHTTP(w, r)
			return
		}
		b.Fake.ServeHTTP(w, r)
	}))
	r := b.RunOnce(t, api, reconcile.Params{Scope: reconcile.Objects, Type: "invoice"})
	reconciled.WantRunFailed(t, r, otherAccountKey)
	b.WantRows(t, deletedSQL)
	if !changed.Load() {
		t.Error("the scan requested no invoice")
	}
}

// Objects of types that the API does not read are no samples, however many and new they are.
// Without other objects nothing verifies the key.
func TestAccountCheck_unreadableTypes_areIgnored(t *testing.T) {
	t.Parallel()
	for _, onlyUnreadable := range []bool{false, true} {
		t.Run(fmt.Sprintf("only unreadable types %t", onlyUnreadable), func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewMirroredEnv(t, 230, reconciled.LivingOptions(5))
			copyAsTypes(t, b, "wa", "wb", "wc", "wd")
			words := "the API knows none of the 3 objects"
			if onlyUnreadable {
				b.DB.Exec(t, `DELETE FROM objects WHERE object_type = 'thing'`)
				words = "reads none of the mirror's object types"
			}
			b.StartReconciler(t, b.RunnerWithoutEvents(t, 3, noObject))
			wantAwaitsApproval(t, b, words)
		})
	}
}

// With the right key an object of the one readable type verifies it, even if webhooks were about
// other types only.
func TestAccountCheck_refetchedObject_isEnough(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 230, reconciled.LivingOptions(5))
	r := b.RunnerWithoutEvents(t, 0, noObject)
	b.API.InterceptWith(nil) // the key of this account
	b.StartReconciler(t, r)
	b.Scan(t, reconcile.Params{})
	if n := b.RefetchCount(t); n != 5 {
		t.Fatalf("%d refetches", n)
	}
	b.Deliver(t, b.API.History.Events[:1])
	b.DB.Exec(t, `INSERT INTO objects SELECT (o).*
		FROM (SELECT jsonb_populate_record(o, jsonb_build_object('object_type', 'wa', 'last_event_id', (SELECT max(id)
			FROM events WHERE origin = 'webhook'))) AS o FROM objects o) o`)
	b.DB.Exec(t, `UPDATE objects SET last_event_id = (SELECT min(id) FROM events WHERE origin = 'reconcile')
		WHERE object_type = 'thing'`)
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	if scanned := b.WaitForRun(t, run, reconciled.EndedOrAwaitsApproval); scanned.Status != runs.Done ||
		scanned.Counts[objectscan.Equal] != 5 {
		t.Errorf("%s %v: %s", scanned.Status, scanned.Counts, scanned.Detail)
	}
}

// A 403 for objects does not verify the key.
func TestAccountCheck_rejectedObjects_areIgnored(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 230, reconciled.LivingOptions(5))
	r := b.RunnerWithoutEvents(t, 3, noObject)
	answer := b.API.Intercept
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		a, err := answer(c)
		if a != nil && a.Verdict.Kind == provider.Missing {
			a.Verdict = provider.Verdict{Kind: provider.Rejected, Detail: "answered 403: not yours"}
		}
		return a, err
	}
	b.StartReconciler(t, r)
	wantAwaitsApproval(t, b, "and rejects 1 of them")
	b.API.WantCalls(t, "/things/", 1)
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
			b := reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 13, LiveMode: true,
				Accounts:   []string{connected},
				Restricted: map[string][]string{key: {"charges", "events"}}})
			kept := b.Fake.Create(connected, "charge", nil)
			b.Deliver(t, reconciled.LoseNone)
			b.Fake.Advance(40 * 24 * time.Hour) // no live event is listed any more
			appendWebhook(t, b, fmt.Sprintf(
				`{"id":"evt_test_1","object":"event","type":"charge.succeeded","account":%q,"created":%d,`+
					`"livemode":false,"data":{"object":{"id":"ch_t","object":"charge","livemode":false}}}`,
				connected, b.Fake.Now().Add(-2*time.Hour).Unix()))
			api := b.APIAt(b.Fake.URL)
			if !ownKey {
				other := stripefake.New(t, stripefake.Options{Seed: 22, LiveMode: true, Start: b.Fake.Now(),
					Accounts: []string{connected}, Restricted: map[string][]string{key: {"charges", "events"}}})
				api = b.APIAt(reconciled.Serve(t, reconciled.OtherIDs(other).ServeHTTP))
			}
			api.Key = provider.Secret{Name: "api.key", Value: []byte(key)}
			for _, o := range []reconcile.Params{{Scope: reconcile.Events},
				{Scope: reconcile.Objects, Type: "charge"}} {
				o.Account = connected
				r := b.RunOnce(t, api, o)
				if ownKey && r.Status != runs.Done || !ownKey &&
					(r.Status != runs.Failed || !strings.Contains(r.Detail, "the key reads the other")) {
					t.Errorf("%s is %s: %s", o.Scope, r.Status, r.Detail)
				}
			}
			b.WantRows(t, `SELECT object_id || ' ' || deleted FROM objects`, kept+" false")
		})
	}
}

// addUndeliveredEvent adds an event without a webhook, for example of a type that is not
// subscribed.
func addUndeliveredEvent(t *testing.T, b *reconciled.StripeEnv) {
	t.Helper()
	b.Fake.Create("", "charge", nil)
	b.Deliver(t, reconciled.LoseAll)
	b.Fake.Advance(time.Minute)
}

// deletedSQL selects the objects that are deleted in the mirror.
const deletedSQL = `SELECT object_id FROM objects WHERE deleted`

// copyAsTypes copies the things of the mirror as objects of other types, which the API does not
// read and the latest webhooks are about.
func copyAsTypes(t *testing.T, b *reconciled.Env, types ...string) {
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
// the given words. It returns the run.
func wantAwaitsApproval(t *testing.T, b *reconciled.Env, words string) (run int64) {
	t.Helper()
	run = b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	r := b.WaitForRun(t, run, reconciled.EndedOrAwaitsApproval)
	if r.Status != runs.AwaitingApproval || !strings.Contains(r.Detail, words) {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	wrong := b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE deleted OR object_id LIKE 'theirs%'`)
	if len(wrong) > 0 || b.RefetchCount(t) != 0 || !b.TypeCompleteUntil(t).IsZero() {
		t.Errorf("%d refetches, complete until %s, deleted or of another account are %q", b.RefetchCount(t),
			b.TypeCompleteUntil(t), wrong)
	}
	return run
}

// appendWebhook appends a webhook without applying it.
func appendWebhook(t *testing.T, b *reconciled.StripeEnv, body string) (id int64) {
	t.Helper()
	d := &provider.Delivery{ReceivedAt: b.Fake.Now(), Body: []byte(body)}
	return applied.AppendDeliveries(t, b.Gateway, b.Sources[applied.SourceName], d)[0].ID
}
