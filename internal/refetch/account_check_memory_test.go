package refetch_test

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// checkedKeyEnv is a shop with a process that has verified its key in a refetch of a missing
// invoice. More invoices are missing.
type checkedKeyEnv struct {
	*reconciled.StripeEnv
	reconciler *reconcile.Runner
	// removed are missing invoices, and existing is one that exists.
	removed  []string
	existing string
	// stop ends the process.
	stop func()
	// handler serves the API's address.
	handler atomic.Pointer[http.Handler]
}

// newCheckedKeyEnv makes the first refetch, which looks up an event.
func newCheckedKeyEnv(t *testing.T) *checkedKeyEnv {
	t.Helper()
	b := &checkedKeyEnv{StripeEnv: reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 51})}
	for range 5 {
		b.removed = append(b.removed, b.Fake.Create("", "invoice", nil))
	}
	b.existing = b.Fake.Create("", "invoice", nil)
	b.Deliver(t, reconciled.LoseNone)
	b.Fake.Advance(2 * time.Minute)
	for _, id := range b.removed {
		b.Fake.DeleteWithoutEvent("", id)
	}
	var ours http.Handler = b.Fake
	b.handler.Store(&ours)
	b.reconciler = b.Runner(t, b.APIAt(reconciled.Serve(t, func(w http.ResponseWriter, r *http.Request) {
		(*b.handler.Load()).ServeHTTP(w, r)
	})), reconciled.SameCaller)
	b.stop = b.StartReconciler(t, b.reconciler)
	b.wantDeleted(t, b.removed[0], 1)
	return b
}

// refetch refetches an invoice, and returns the run and the number of samples that were looked up.
func (b *checkedKeyEnv) refetch(t *testing.T, id string) (r *runs.Run, samples int) {
	t.Helper()
	before := len(b.Fake.Requests())
	r = b.RunToEnd(t, reconcile.Params{Scope: reconcile.Object, Type: "invoice", ID: id})
	for _, call := range b.Fake.Requests()[before:] {
		if call.Path != "/v1/invoices/"+id && call.Path != "/v1/events" { // the object, and the control call
			samples++
		}
	}
	return r, samples
}

// wantDeleted refetches an invoice that must be deleted, with a number of looked up samples.
func (b *checkedKeyEnv) wantDeleted(t *testing.T, id string, samples int) {
	t.Helper()
	r, n := b.refetch(t, id)
	if deleted := b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE deleted`); r.Status != runs.Done ||
		n != samples || !slices.Contains(deleted, id) {
		t.Errorf("%s with %d samples, want %d; deleted are %q: %s", r.Status, n, samples, deleted, r.Detail)
	}
}

// wantKeyRejected refetches the existing invoice, which a key of another account must not delete.
func (b *checkedKeyEnv) wantKeyRejected(t *testing.T, why string) {
	t.Helper()
	r, _ := b.refetch(t, b.existing)
	if deleted := b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE deleted AND object_id = $1`,
		b.existing); r.Status != runs.Failed || !strings.Contains(r.Detail, why) || len(deleted) > 0 {
		t.Errorf("%s, deleted are %q: %s", r.Status, deleted, r.Detail)
	}
}

const otherAccountKey = "its key is of another account"

// A verified key is not checked again for a while.
func TestAccountCheck_verifiedKey_isRemembered(t *testing.T) {
	t.Parallel()
	b := newCheckedKeyEnv(t)
	b.wantDeleted(t, b.removed[1], 0)
	b.stop()
	b.reconciler.Limits.AccountCheckTTL = 0 // for later checks
	b.StartReconciler(t, b.reconciler)
	b.wantDeleted(t, b.removed[2], 0)
	b.reconciler.ResetAccountChecks()
	b.wantDeleted(t, b.removed[3], 1)
	b.wantDeleted(t, b.removed[4], 1)
}

// A reset during a check makes the next refetch check again, because the order of both is unknown.
func TestAccountCheck_resetDuringCheck_checksAgain(t *testing.T) {
	t.Parallel()
	b := newCheckedKeyEnv(t)
	doubted := false
	for _, s := range b.Runner(t, b.APIAt(b.Fake.URL), func(c providerapi.Caller) providerapi.Caller {
		return reconciled.InterceptingCaller{Caller: c, Intercept: func(call provider.Call) *providerapi.Response {
			if strings.HasPrefix(call.Path, "/v1/events/") && !doubted {
				doubted = true
				b.reconciler.ResetAccountChecks()
			}
			return nil
		}}
	}).Sources.All() {
		b.reconciler.Sources.Replace(s)
	}
	b.wantDeleted(t, b.removed[1], 1)
	b.wantDeleted(t, b.removed[2], 1)
	b.wantDeleted(t, b.removed[3], 0)
}

// A rejected key and a key of another configuration are checked again.
func TestAccountCheck_changedKey_checksAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// spoil makes the key unusable, and restore makes it usable again. reason is part of the
		// error.
		spoil, restore func(t *testing.T, b *checkedKeyEnv)
		reason         string
	}{
		"rejected": {
			func(_ *testing.T, b *checkedKeyEnv) { b.Fake.SetFaults(stripefake.Faults{Revoked: true}) },
			func(t *testing.T, b *checkedKeyEnv) {
				b.Fake.SetFaults(stripefake.Faults{})
				b.DB.Exec(t, `UPDATE rate_budgets SET blocked_until = now()`) // otherwise calls are blocked for a while
			}, "api.key",
		},
		"of another configuration": {
			func(t *testing.T, b *checkedKeyEnv) {
				b.useAPI(t, reconciled.Serve(t, b.OtherAccountAPI(t, "invoice", 10).ServeHTTP))
			},
			func(t *testing.T, b *checkedKeyEnv) { b.useAPI(t, b.Fake.URL) }, otherAccountKey,
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newCheckedKeyEnv(t)
			c.spoil(t, b)
			b.wantKeyRejected(t, c.reason)
			c.restore(t, b)
			b.wantDeleted(t, b.removed[1], 1)
			b.wantDeleted(t, b.removed[2], 0)
		})
	}
}

// useAPI replaces the configuration with one for another API.
func (b *checkedKeyEnv) useAPI(t *testing.T, url string) {
	for _, s := range b.Runner(t, b.APIAt(url), reconciled.SameCaller).Sources.All() {
		b.reconciler.Sources.Replace(s)
	}
}

// Without events an object verifies the key, also for the next refetches. If it is missing itself,
// another one is used.
func TestAccountCheck_sampleObjectMissing_usesAnother(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 234, reconciled.LivingOptions(4))
	gone := map[string]bool{}
	var shows []string // the objects that were found
	r := b.RunnerWithoutEvents(t, 0, func(id string) bool { return !gone[id] })
	answers := b.API.Intercept
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		if id, ok := strings.CutPrefix(c.Path, "/things/"); ok && !gone[id] {
			shows = append(shows, id)
		}
		return answers(c)
	}
	b.StartReconciler(t, r)
	refetchMissing := func(id string) (found []string) {
		t.Helper()
		b.API.Mu.Lock()
		gone[id], shows = true, nil
		b.API.Mu.Unlock()
		reconciled.WantRunDone(t,
			b.WaitForEnd(t, b.StartRun(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: id})))
		b.API.Mu.Lock()
		defer b.API.Mu.Unlock()
		return shows
	}
	first := refetchMissing("obj_4")
	if len(first) != 1 {
		t.Fatalf("%q were used to verify the key", first)
	}
	second := refetchMissing(first[0])
	if len(second) != 1 || second[0] == first[0] {
		t.Fatalf("%q were used to verify the key; %s was used before and is missing", second, first)
	}
	rest := slices.DeleteFunc([]string{"obj_1", "obj_2", "obj_3"}, func(id string) bool {
		return id == first[0] || id == second[0]
	})
	if found := refetchMissing(rest[0]); len(found) != 0 {
		t.Errorf("%q were used to verify a verified key", found)
	}
}
