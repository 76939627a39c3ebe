package refetch_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// A key of another account, empty or not, and a key of the other mode fail a run before it appends,
// deletes or moves a watermark. With the right key the run succeeds.
func TestAccountCheck_otherAccountKey_failsTheRun(t *testing.T) {
	t.Parallel()
	const theirs, mode = "its key is of another account", "the key reads the other"
	for name, c := range map[string]struct {
		objects int
		live    bool
		other   stripefake.Options
		fill    int
		want    string
	}{
		"empty, over 5 objects":         {objects: 5, want: theirs},
		"another, over 30 objects":      {objects: 30, fill: 50, want: theirs},
		"of test mode, over 5 existing": {objects: 5, live: true, want: mode},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 21, LiveMode: c.live})
			for range c.objects {
				b.Fake.Create("", "customer", nil)
			}
			b.Deliver(t, reconciled.LoseNone)
			b.Fake.Create("", "customer", nil) // without a webhook
			b.Fake.Advance(2 * time.Minute)
			otherKeyAPI := b.APIAt(reconciled.Serve(t, b.OtherAccountAPI(t, "customer", c.fill).ServeHTTP))
			if c.live { // the same account, whose test mode looks empty
				otherKeyAPI = b.APIAt(b.Fake.URL)
			}
			for _, o := range []reconcile.Params{{Scope: reconcile.Events}, {Scope: reconcile.Events, DryRun: true},
				{Scope: reconcile.Objects}, {Scope: reconcile.Objects, Type: "customer", DryRun: true},
				{Scope: reconcile.Object, Type: "customer", ID: "cus_Fake000001"}} {
				if c.live && o.Scope == reconcile.Object {
					continue // the key's mode is used for a single object
				}
				reconciled.WantRunFailed(t, b.RunOnce(t, otherKeyAPI, o), c.want)
			}
			b.WantNothingChanged(t)
			if c.live {
				return
			}
			for _, o := range []reconcile.Params{{Scope: reconcile.Objects, Type: "customer"},
				{Scope: reconcile.Events}} {
				reconciled.WantCounts(t, b.RunOnce(t, b.APIAt(b.Fake.URL), o), reconciled.Counts{reconcile.Missing: 1})
			}
		})
	}
}

// The latest events of the mode that the key does not read are ignored. An event of its own mode
// verifies the key.
func TestAccountCheck_otherModeEvents_areIgnored(t *testing.T) {
	t.Parallel()
	b := reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 23})
	b.Fake.RunSteps(20)
	b.Deliver(t, reconciled.LoseNone)
	for i := range 50 {
		appendWebhook(t, b, fmt.Sprintf(`{"id":"evt_live_%d","object":"event","type":"balance.available","created":%d,`+
			`"livemode":true,"data":{"object":{"object":"balance"}}}`, i, b.Fake.Now().Unix()))
	}
	b.Fake.Advance(2 * time.Minute)
	reconciled.WantRunDone(t, b.RunOnce(t, b.APIAt(b.Fake.URL), reconcile.Params{Scope: reconcile.Events}))
}

// An event that has just happened may not be listed yet, and one near the end of the retention may
// not be listed any more. If the API does not know such an event, the check uses an object instead.
func TestAccountCheck_eventTooNewOrTooOld_isIgnored(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 235, reconciled.LivingOptions(2))
	last := b.API.History.Events[len(b.API.History.Events)-1]
	b.Deliver(t, []sim.Event{last})
	b.API.RespondTo(b.MissingResponse(), "/event/*")
	r := b.Runner()
	r.Limits.ListDelay, r.Limits.Overlap = 30*time.Second, time.Minute
	b.StartReconciler(t, r)
	for _, c := range []struct {
		age  time.Duration
		want runs.Status
	}{{10 * time.Second, runs.Done}, {40 * time.Second, runs.Failed}, {r.Limits.EventRetention - 30*time.Second,
		runs.Done}} {
		b.API.SetTime(reconciled.QueryOne[time.Time](t, b, `SELECT coalesce(occurred_at, received_at) FROM events
			WHERE origin = 'webhook'`).Add(c.age))
		if r := b.WaitForEnd(t, b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})); r.Status != c.want {
			t.Errorf("with an event %s ago: %s: %s", c.age, r.Status, r.Detail)
		}
	}
}

// Four events that the API does not know do not fail a run if a fifth verifies the key. Five do.
func TestAccountCheck_fiveUnknownEvents_failTheRun(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 237, reconciled.LivingOptions(4))
	unknown := map[string]bool{}
	b.API.Intercept = func(c provider.Call) (*providerapi.Response, error) {
		if key, ok := strings.CutPrefix(c.Path, "/event/"); ok && unknown[key] {
			return b.MissingResponse(), nil
		}
		return nil, nil
	}
	b.StartReconciler(t, b.Runner())
	newest := b.DB.QueryStrings(t, `SELECT event_id FROM events ORDER BY id DESC LIMIT 6`)
	for n, want := range map[int]runs.Status{4: runs.Done, 5: runs.Failed} {
		b.API.Mu.Lock()
		clear(unknown)
		for _, key := range newest[:n] {
			unknown[key] = true
		}
		b.API.Mu.Unlock()
		if r := b.RunToEnd(t, reconcile.Params{Scope: reconcile.Events}); r.Status != want {
			t.Errorf("with %d unknown events: %s: %s", n, r.Status, r.Detail)
		}
	}
}

// The key of a source without any webhook cannot be checked: the listed events are appended.
func TestAccountCheck_emptyMirror_isFilled(t *testing.T) {
	t.Parallel()
	b := reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 24})
	b.Fake.RunSteps(20)
	b.Fake.Advance(2 * time.Minute)
	reconciled.WantCounts(t, b.RunOnce(t, b.APIAt(b.Fake.URL), reconcile.Params{Scope: reconcile.Events}),
		reconciled.Counts{reconcile.Missing: 20})
}

func noObject(string) bool { return false }

// deletedCountSQL counts the objects that are deleted in the mirror.
const deletedCountSQL = `SELECT count(*) FROM objects WHERE deleted`

// Without events the check uses objects. A scan with a key that knows none of them appends, deletes
// and completes nothing before an operator has approved it.
func TestObjectScan_otherAccountKey_asksForApproval(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ objects, others int }{{1, 0}, {5, 50}, {30, 0}} {
		t.Run(fmt.Sprintf("%d objects, %d others", c.objects, c.others), func(t *testing.T) {
			t.Parallel()
			b := reconciled.NewMirroredEnv(t, 230, reconciled.LivingOptions(c.objects))
			b.StartReconciler(t, b.RunnerWithoutEvents(t, c.others, noObject))
			run := wantAwaitsApproval(t, b, fmt.Sprintf("the API knows none of the %d objects", min(3, c.objects)))
			b.Approve(t, run, "they are gone")
			if c.objects > 20 { // this needs another approval, because they are many
				if r := b.WaitForRun(t, run, func(r *runs.Run) bool {
					return r.Status.Ended() || strings.Contains(r.Detail, "30 of 80 living") ||
						strings.Contains(r.Detail, "30 of 30 living")
				}); r.Status != runs.AwaitingApproval {
					t.Errorf("%s: %s", r.Status, r.Detail)
				}
				return
			}
			reconciled.WantExactCounts(t, b.WaitForEnd(t, run), reconciled.Nonzero(
				reconciled.Counts{reconcile.Processed: int64(c.objects + c.others), reconcile.Missing: int64(c.others),
					objectscan.Orphans: int64(c.objects), objectscan.Repaired: int64(c.objects + c.others)}))
		})
	}
}

// With an empty mirror a key needs no check. One existing object verifies it: a few missing objects
// then need no approval.
func TestAccountCheck_oneKnownObject_isEnough(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 231, reconciled.LivingOptions(5))
	b.StartReconciler(t, b.RunnerWithoutEvents(t, 3, func(id string) bool { return id == "obj_4" }))
	reconciled.WantExactCounts(t, b.Scan(t, reconcile.Params{}),
		reconciled.Counts{reconcile.Processed: 3, reconcile.Missing: 3, objectscan.Repaired: 3})
	b.Deliver(t, b.API.History.Events)
	// they come from a scan only, and are the newest
	b.DB.Exec(t, `UPDATE objects SET last_event_id = last_event_id + 1000 WHERE object_id LIKE 'theirs%'`)
	if r := b.Scan(t, reconcile.Params{}); r.Counts[objectscan.Orphans] != 4 || b.TypeCompleteUntil(t).IsZero() {
		t.Errorf("%s %v, complete until %s", r.Status, r.Counts, b.TypeCompleteUntil(t))
	}
	reconciled.WantValue(t, b, 4, deletedCountSQL)
}

// Objects that a scan with a wrong key has added to an empty mirror do not verify that key after
// webhooks of other objects arrived.
func TestAccountCheck_objectsFromWrongKey_areIgnored(t *testing.T) {
	t.Parallel()
	// so few that the other account's objects are among the samples
	b := reconciled.NewEmptyEnv(t, 232, reconciled.LivingOptions(2))
	b.StartReconciler(t, b.RunnerWithoutEvents(t, 3, func(id string) bool { return strings.HasPrefix(id, "theirs") }))
	b.Scan(t, reconcile.Params{})
	b.Deliver(t, b.API.History.Events)
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	if r := b.WaitForRun(t, run, reconciled.EndedOrAwaitsApproval); r.Status != runs.AwaitingApproval {
		t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
	}
}

// A refetch without a result writes no tombstone if the key sees no other object either, unless an
// operator requested it.
func TestRefetch_otherAccountKey_writesNoTombstone(t *testing.T) {
	t.Parallel()
	b := reconciled.NewEmptyEnv(t, 233, reconciled.EventTimeOptions)
	id := b.ObjectWithPendingRefetch(t)
	r := b.RunnerWithoutEvents(t, 0, noObject)
	reconciled.StartRefetcher(t, r, "one")
	b.WaitForRequestError(t,
		"The API reports thing "+id+" as missing too; without the account check it does not count as deleted")
	reconciled.WantValue(t, b, 0, reconciled.CountRefetchesSQL)
	b.RequestRefetch(t, "thing", id, "me", "it is gone")
	reconciled.WaitForValue(t, b, 1, deletedCountSQL+` AND object_id = $1`, id)
}

// The missing object itself is no sample. If the mirror has no other object, the response is
// believed.
func TestAccountCheck_onlyObjectMissing_isBelieved(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 236, reconciled.LivingOptions(1))
	b.DB.Exec(t, `UPDATE objects SET refetch_after = 1`)
	reconciled.StartRefetcher(t, b.RunnerWithoutEvents(t, 0, noObject), "one")
	reconciled.WaitForValue(t, b, 1, deletedCountSQL)
}

// Each account has a balance, and any account may have a plan called gold. If a key finds them,
// that does not verify it.
func TestAccountCheck_objectsOfEveryAccount_areIgnored(t *testing.T) {
	t.Parallel()
	b := reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 25})
	for range 5 {
		b.Fake.Create("", "customer", nil)
	}
	b.Deliver(t, reconciled.LoseNone)
	id := appendWebhook(t, b,
		fmt.Sprintf(`{"id":"evt_balance","object":"event","type":"balance.available","created":%d,"livemode":false,
		"data":{"object":{"object":"balance","livemode":false,"available":[]}}}`, b.Fake.Now().Unix()))
	applied.Apply(t, b.Applier(t, nil), 0, []int64{id})
	b.Fake.Advance(40 * 24 * time.Hour) // no event is listed any more
	otherKeyAPI := b.APIAt(reconciled.Serve(t, b.OtherAccountAPI(t, "customer", 3).ServeHTTP))
	for _, what := range []string{reconcile.Events, reconcile.Objects} {
		if r := b.RunOnce(t, otherKeyAPI, reconcile.Params{Scope: what}); r.Status != runs.AwaitingApproval ||
			!strings.Contains(r.Detail, "the API knows none of the 3 objects") {
			t.Errorf("%s with another account's key: %s %v: %s", what, r.Status, r.Counts, r.Detail)
		}
	}
	reconciled.WantNone(t, b.DB.QueryStrings(t, `SELECT event_id FROM events WHERE origin <> 'webhook'`))
	reconciled.WantRunDone(t, b.RunOnce(t, b.APIAt(b.Fake.URL), reconcile.Params{Scope: reconcile.Events}))
}
