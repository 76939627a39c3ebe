package refetch_test

import (
	"bytes"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
)

// A refetch of an object of a configured API updates the mirror: a changed object, a missing one,
// and an unknown one.
func TestRefetch_configuredAPI_updatesTheMirror(t *testing.T) {
	t.Parallel()
	b := reconciled.NewRESTEnv(t)
	b.Fake.Set("a/1", "old", time.Second)
	b.Fake.Set("b", "stays", time.Second)
	b.Deliver(t, b.Fake.Events())
	if wrong := b.ThingDifferences(t); len(wrong) > 0 {
		t.Fatalf("before any loss: %v", wrong)
	}
	b.Fake.Set("a/1", "new", time.Second)
	b.Fake.Set("b", "", time.Second)
	b.Fake.Set("c", "unheard of", time.Second)
	b.Fake.Advance(time.Minute)
	if wrong := b.ThingDifferences(t); len(wrong) != 3 {
		t.Fatalf("before the refetches: %v", wrong)
	}
	b.StartReconciler(t, b.Runner)
	for _, id := range []string{"a/1", "b", "c"} {
		reconciled.WantCounts(t, b.WantDone(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: id}),
			reconciled.Counts{reconcile.Missing: 1})
	}
	reconciled.WantNone(t, b.ThingDifferences(t))
	if n := b.Fake.RequestCount("/me"); n != 1 {
		t.Errorf("%d control calls, want one for the missing object", n)
	}
	b.Deliver(t, b.Fake.Events()) // the lost webhooks arrive late
	reconciled.WantNone(t, b.ThingDifferences(t))
	if body := reconciled.QueryOne[[]byte](t, b.Env, `SELECT body FROM events WHERE event_type = 'postern.refetch'
		AND object_id = 'a/1'`); !bytes.Contains(body, []byte(`"object":{"data":{"thing":{"changed":`)) {
		t.Errorf("the log has %s, and not the response byte for byte", body)
	}
}

// A request for an object of a source with a pinned account need not contain the account.
func TestRefetch_pinnedAccount_needsNoName(t *testing.T) {
	t.Parallel()
	b := reconciled.NewRESTEnv(t, "provider: hmac", "provider: hmac\n    account: shop_1")
	b.Fake.Set("a", "one", time.Second)
	b.Deliver(t, b.Fake.Events())
	b.StartReconciler(t, b.Runner)
	for _, account := range []string{"", "shop_1"} {
		b.Fake.Set("a", "requested by "+account, time.Second)
		b.Fake.Advance(time.Minute)
		b.WantDone(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: "a", Account: account})
	}
	reconciled.WantValue(t, b.Env, 1, `SELECT count(*) FROM objects`)
	reconciled.WantNone(t, b.ThingDifferences(t))
}

// A rejected response, or a response about another object, is not appended. No message shows the
// key.
func TestRefetch_configuredAPIRejects_appendsNothing(t *testing.T) {
	t.Parallel()
	b := reconciled.NewRESTEnv(t, `get: "/things/{id}"`, `get: "/things/a?id={id}"`)
	b.Fake.Set("a", "one", time.Second)
	b.StartReconciler(t, b.Runner)
	for what, o := range map[string]reconcile.Params{
		"source things, other: the API has no call that reads objects of this type": {Type: "other", ID: "a"},
		"source things, thing: the API has no call that reads objects of this type": {Type: "thing", ID: "a",
			Account: "somebody"},
	} {
		o.Scope = reconcile.Object
		b.WantFailure(t, o, what)
	}
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: "z"})
	b.WaitForRun(t, run, func(r *runs.Run) bool {
		return strings.Contains(r.Detail, `the API returned one whose key is "a"`)
	})
	reconciled.WantValue(t, b.Env, 0, `SELECT count(*) FROM events`)
}

// With a wrong key, or a wrong path of objects, no object is believed to be missing.
func TestRefetch_configurationMistake_deletesNothing(t *testing.T) {
	t.Parallel()
	for slip, edits := range map[string][]string{
		"answered 401: the key is wrong":                      {"X-Api-Key: {key}", "X-Api-Key: x{key}"},
		"answered 404 without saying that the object is miss": {`get: "/things/{id}"`, `get: "/thing/{id}"`},
	} {
		t.Run(slip, func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewRESTEnv(t, edits...)
			b.Fake.Set("a", "one", time.Second)
			b.Deliver(t, b.Fake.Events())
			b.StartReconciler(t, b.Runner)
			run := b.StartRun(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: "a"})
			b.WaitForRun(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, slip) })
			reconciled.WantNone(t, b.ThingDifferences(t))
		})
	}
}
