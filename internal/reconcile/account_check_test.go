package reconcile_test

import (
	"bytes"
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// runOnce executes a run in one process, and returns it when it has ended or awaits an approval.
func (b *stripeEnv) runOnce(t *testing.T, api *provider.API, o reconcile.Params) *runs.Run {
	t.Helper()
	o.Source = b.Source
	stop := b.startReconciler(t, b.runner(t, api, sameCaller))
	defer stop()
	run := b.startRun(t, o)
	return b.WaitForRun(t, run, endedOrAwaitsApproval)
}

// otherIDs serves a fake with ids that no other fake has.
func otherIDs(f *stripefake.Fake) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		r.URL.Path = strings.NewReplacer("Fake", "None", "Else", "Fake").Replace(r.URL.Path)
		answer := httptest.NewRecorder()
		f.ServeHTTP(answer, r)
		w.Header().Set("Date", answer.Header().Get("Date"))
		w.WriteHeader(answer.Code)
		_, _ = w.Write(bytes.ReplaceAll(answer.Body.Bytes(), []byte("Fake"), []byte("Else")))
	})
}

// otherAccountAPI is the API for a key of another account, which has a number of objects of a type.
func (b *stripeEnv) otherAccountAPI(t *testing.T, objectType string, n int) http.Handler {
	t.Helper()
	other := stripefake.New(t, stripefake.Options{Seed: 22, Start: b.fake.Now()})
	for range n {
		other.Create("", objectType, nil)
	}
	other.Advance(2 * time.Minute)
	return otherIDs(other)
}

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
			b := newStripeEnv(t, "", stripefake.Options{Seed: 21, LiveMode: c.live})
			for range c.objects {
				b.fake.Create("", "customer", nil)
			}
			b.deliver(t, loseNone)
			b.fake.Create("", "customer", nil) // without a webhook
			b.fake.Advance(2 * time.Minute)
			otherKeyAPI := b.apiAt(serve(t, b.otherAccountAPI(t, "customer", c.fill).ServeHTTP))
			if c.live { // the same account, whose test mode looks empty
				otherKeyAPI = b.apiAt(b.fake.URL)
			}
			for _, o := range []reconcile.Params{{Scope: reconcile.Events}, {Scope: reconcile.Events, DryRun: true},
				{Scope: reconcile.Objects}, {Scope: reconcile.Objects, Type: "customer", DryRun: true},
				{Scope: reconcile.Object, Type: "customer", ID: "cus_Fake000001"}} {
				if c.live && o.Scope == reconcile.Object {
					continue // the key's mode is used for a single object
				}
				wantRunFailed(t, b.runOnce(t, otherKeyAPI, o), c.want)
			}
			b.wantNothingChanged(t)
			if c.live {
				return
			}
			for _, o := range []reconcile.Params{{Scope: reconcile.Objects, Type: "customer"},
				{Scope: reconcile.Events}} {
				wantCounts(t, b.runOnce(t, b.apiAt(b.fake.URL), o), counts{reconcile.Missing: 1})
			}
		})
	}
}

// The latest events of the mode that the key does not read are ignored. An event of its own mode
// verifies the key.
func TestAccountCheck_otherModeEvents_areIgnored(t *testing.T) {
	t.Parallel()
	b := newStripeEnv(t, "", stripefake.Options{Seed: 23})
	b.fake.RunSteps(20)
	b.deliver(t, loseNone)
	for i := range 50 {
		b.appendWebhook(t, fmt.Sprintf(`{"id":"evt_live_%d","object":"event","type":"balance.available","created":%d,`+
			`"livemode":true,"data":{"object":{"object":"balance"}}}`, i, b.fake.Now().Unix()))
	}
	b.fake.Advance(2 * time.Minute)
	wantRunDone(t, b.runOnce(t, b.apiAt(b.fake.URL), reconcile.Params{Scope: reconcile.Events}))
}

// An event that has just happened may not be listed yet, and one near the end of the retention may
// not be listed any more. If the API does not know such an event, the check uses an object instead.
func TestAccountCheck_eventTooNewOrTooOld_isIgnored(t *testing.T) {
	t.Parallel()
	b := newEmptyEnv(t, 235, livingOptions(2))
	last := b.api.history.Events[len(b.api.history.Events)-1]
	b.deliver(t, []sim.Event{last})
	b.api.respondTo(b.missingResponse(), "/event/*")
	r := b.runner()
	r.Limits.ListDelay, r.Limits.Overlap = 30*time.Second, time.Minute
	b.startReconciler(t, r)
	for _, c := range []struct {
		age  time.Duration
		want runs.Status
	}{{10 * time.Second, runs.Done}, {40 * time.Second, runs.Failed}, {r.Limits.EventRetention - 30*time.Second,
		runs.Done}} {
		b.api.setTime(b.onlyEventTime(t).Add(c.age))
		if r := b.waitForEnd(t, b.startRun(t, reconcile.Params{Scope: reconcile.Objects})); r.Status != c.want {
			t.Errorf("with an event %s ago: %s: %s", c.age, r.Status, r.Detail)
		}
	}
}

// Four events that the API does not know do not fail a run if a fifth verifies the key. Five do.
func TestAccountCheck_fiveUnknownEvents_failTheRun(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 237, livingOptions(4))
	unknown := map[string]bool{}
	b.api.intercept = func(c provider.Call) (*providerapi.Response, error) {
		if key, ok := strings.CutPrefix(c.Path, "/event/"); ok && unknown[key] {
			return b.missingResponse(), nil
		}
		return nil, nil
	}
	b.startReconciler(t, b.runner())
	newest := b.DB.QueryStrings(t, `SELECT event_id FROM events ORDER BY id DESC LIMIT 6`)
	for n, want := range map[int]runs.Status{4: runs.Done, 5: runs.Failed} {
		b.api.mu.Lock()
		clear(unknown)
		for _, key := range newest[:n] {
			unknown[key] = true
		}
		b.api.mu.Unlock()
		if r := b.runToEnd(t, reconcile.Params{Scope: reconcile.Events}); r.Status != want {
			t.Errorf("with %d unknown events: %s: %s", n, r.Status, r.Detail)
		}
	}
}

// onlyEventTime returns the time of the only event in the log.
func (b *testEnv) onlyEventTime(t *testing.T) (at time.Time) {
	t.Helper()
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT coalesce(occurred_at, received_at) FROM events
		WHERE origin = 'webhook'`).Scan(&at); err != nil {
		t.Fatal(err)
	}
	return at
}

// The key of a source without any webhook cannot be checked: the listed events are appended.
func TestAccountCheck_emptyMirror_isFilled(t *testing.T) {
	t.Parallel()
	b := newStripeEnv(t, "", stripefake.Options{Seed: 24})
	b.fake.RunSteps(20)
	b.fake.Advance(2 * time.Minute)
	wantCounts(t, b.runOnce(t, b.apiAt(b.fake.URL), reconcile.Params{Scope: reconcile.Events}),
		counts{reconcile.Missing: 20})
}

// withoutEvents is a provider that lists objects and no events.
type withoutEvents struct{ provider.ObjectLister }

// runnerWithoutEvents makes a runner whose API lists no events. The API is of another account: its
// list has a number of other objects. Of the mirror's objects it knows those that exists accepts.
func (b *testEnv) runnerWithoutEvents(t *testing.T, others int, exists func(id string) bool) *reconcile.Runner {
	t.Helper()
	r := b.runnerWith(func(s *providerapi.Source) { s.Reader = withoutEvents{sim.Provider{}} })
	b.api.intercept = func(c provider.Call) (*providerapi.Response, error) {
		id, named := strings.CutPrefix(c.Path, "/things/")
		switch {
		case c.Path == "/list":
			list := make([]string, others)
			for i := range list {
				list[i] = fmt.Sprintf(`{"id":"theirs_%d","answer":%s}`, i,
					b.api.history.StoredRefetch("obj_1", sim.Refetch{Began: b.api.now.UnixMicro()}).Body)
			}
			return b.response(provider.Found, fmt.Appendf(nil, `{"things":[%s]}`, strings.Join(list, ","))), nil
		case named && !exists(id):
			return b.missingResponse(), nil
		case strings.HasPrefix(id, "theirs"):
			return b.response(provider.Found,
				b.api.history.StoredRefetch("obj_1", sim.Refetch{Began: b.api.now.UnixMicro()}).Body), nil
		}
		return nil, nil
	}
	return r
}

func noObject(string) bool { return false }

// livingOptions are options for histories with existing objects only.
func livingOptions(n int) sim.Options {
	return sim.Options{Objects: n, Changes: 3, Contents: 4, Unit: 1_000_000, Gap: 2_000_000}
}

// Without events the check uses objects. A scan with a key that knows none of them appends, deletes
// and completes nothing before an operator has approved it.
func TestObjectScan_otherAccountKey_asksForApproval(t *testing.T) {
	t.Parallel()
	for _, c := range []struct{ objects, others int }{{1, 0}, {5, 50}, {30, 0}} {
		t.Run(fmt.Sprintf("%d objects, %d others", c.objects, c.others), func(t *testing.T) {
			t.Parallel()
			b := newMirroredEnv(t, 230, livingOptions(c.objects))
			b.startReconciler(t, b.runnerWithoutEvents(t, c.others, noObject))
			run := b.startRun(t, reconcile.Params{Scope: reconcile.Objects})
			r := b.WaitForRun(t, run, endedOrAwaitsApproval)
			if r.Status != runs.AwaitingApproval ||
				!strings.Contains(r.Detail, fmt.Sprintf("the API knows none of the %d objects", min(3, c.objects))) {
				t.Errorf("%s: %s", r.Status, r.Detail)
			}
			if deleted := b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE deleted`); len(deleted) > 0 ||
				b.refetchCount(t) != 0 || !b.typeCompleteUntil(t).IsZero() {
				t.Errorf("%d refetches, complete until %s, deleted are %q", b.refetchCount(t), b.typeCompleteUntil(t),
					deleted)
			}
			b.approve(t, run, "they are gone")
			if c.objects > 20 { // this needs another approval, because they are many
				if r := b.WaitForRun(t, run, func(r *runs.Run) bool {
					return r.Status.Ended() || strings.Contains(r.Detail, "30 of 80 living") ||
						strings.Contains(r.Detail, "30 of 30 living")
				}); r.Status != runs.AwaitingApproval {
					t.Errorf("%s: %s", r.Status, r.Detail)
				}
				return
			}
			wantExactCounts(t, b.waitForEnd(t, run),
				nonzero(counts{reconcile.Processed: int64(c.objects + c.others), reconcile.Missing: int64(c.others),
					objectscan.Orphans: int64(c.objects), objectscan.Repaired: int64(c.objects + c.others)}))
		})
	}
}

// nonzero removes counts of 0, and the clock skew of a fake.
func nonzero(counts map[string]int64) map[string]int64 {
	delete(counts, reconcile.SkewSeconds)
	for name, n := range counts {
		if n == 0 {
			delete(counts, name)
		}
	}
	return counts
}

// With an empty mirror a key needs no check. One existing object verifies it: a few missing objects
// then need no approval.
func TestAccountCheck_oneKnownObject_isEnough(t *testing.T) {
	t.Parallel()
	b := newEmptyEnv(t, 231, livingOptions(5))
	b.startReconciler(t, b.runnerWithoutEvents(t, 3, func(id string) bool { return id == "obj_4" }))
	wantExactCounts(t, b.scan(t, reconcile.Params{}), counts{reconcile.Processed: 3, reconcile.Missing: 3,
		objectscan.Repaired: 3})
	b.deliver(t, b.api.history.Events)
	// they come from a scan only, and are the newest
	b.DB.Exec(t, `UPDATE objects SET last_event_id = last_event_id + 1000 WHERE object_id LIKE 'theirs%'`)
	if r := b.scan(t, reconcile.Params{}); r.Counts[objectscan.Orphans] != 4 || b.typeCompleteUntil(t).IsZero() {
		t.Errorf("%s %v, complete until %s", r.Status, r.Counts, b.typeCompleteUntil(t))
	}
	if deleted := b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE deleted`); len(deleted) != 4 {
		t.Errorf("deleted are %q", deleted)
	}
}

// Objects that a scan with a wrong key has added to an empty mirror do not verify that key after
// webhooks of other objects arrived.
func TestAccountCheck_objectsFromWrongKey_areIgnored(t *testing.T) {
	t.Parallel()
	b := newEmptyEnv(t, 232, livingOptions(2)) // so few that the other account's objects are among the samples
	b.startReconciler(t, b.runnerWithoutEvents(t, 3, func(id string) bool { return strings.HasPrefix(id, "theirs") }))
	b.scan(t, reconcile.Params{})
	b.deliver(t, b.api.history.Events)
	run := b.startRun(t, reconcile.Params{Scope: reconcile.Objects})
	if r := b.WaitForRun(t, run, endedOrAwaitsApproval); r.Status != runs.AwaitingApproval {
		t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
	}
}

// A refetch without a result writes no tombstone if the key sees no other object either, unless an
// operator requested it.
func TestRefetch_otherAccountKey_writesNoTombstone(t *testing.T) {
	t.Parallel()
	b := newEmptyEnv(t, 233, eventTimeOptions)
	id := b.objectWithPendingRefetch(t)
	r := b.runnerWithoutEvents(t, 0, noObject)
	startRefetcher(t, r, "one")
	b.waitForRequestError(t,
		"The API reports thing "+id+" as missing too; without that proof it does not count as deleted")
	wantValue(t, b, 0, countRefetchesSQL)
	b.requestRefetch(t, "thing", id, "me", "it is gone")
	testkit.Eventually(t, time.Minute, func() error {
		if deleted := b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE deleted AND object_id = $1`,
			id); len(deleted) != 1 {
			return fmt.Errorf("deleted are %q", deleted)
		}
		return nil
	})
}

// The missing object itself is no sample. If the mirror has no other object, the response is
// believed.
func TestAccountCheck_onlyObjectMissing_isBelieved(t *testing.T) {
	t.Parallel()
	b := newMirroredEnv(t, 236, livingOptions(1))
	b.DB.Exec(t, `UPDATE objects SET refetch_after = 1`)
	startRefetcher(t, b.runnerWithoutEvents(t, 0, noObject), "one")
	testkit.Eventually(t, time.Minute, func() error {
		if deleted := b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE deleted`); len(deleted) != 1 {
			return fmt.Errorf("deleted are %q; errors of the requests: %q", deleted,
				b.DB.QueryStrings(t, `SELECT error FROM refetch_requests`))
		}
		return nil
	})
}

// Each account has a balance, and any account may have a plan called gold. If a key finds them,
// that does not verify it.
func TestAccountCheck_objectsOfEveryAccount_areIgnored(t *testing.T) {
	t.Parallel()
	b := newStripeEnv(t, "", stripefake.Options{Seed: 25})
	for range 5 {
		b.fake.Create("", "customer", nil)
	}
	b.deliver(t, loseNone)
	id := b.appendWebhook(t,
		fmt.Sprintf(`{"id":"evt_balance","object":"event","type":"balance.available","created":%d,"livemode":false,
		"data":{"object":{"object":"balance","livemode":false,"available":[]}}}`, b.fake.Now().Unix()))
	applied.Apply(t, b.Applier(t, nil), 0, []int64{id})
	b.fake.Advance(40 * 24 * time.Hour) // no event is listed any more
	otherKeyAPI := b.apiAt(serve(t, b.otherAccountAPI(t, "customer", 3).ServeHTTP))
	for _, what := range []string{reconcile.Events, reconcile.Objects} {
		if r := b.runOnce(t, otherKeyAPI, reconcile.Params{Scope: what}); r.Status != runs.AwaitingApproval ||
			!strings.Contains(r.Detail, "the API knows none of the 3 objects") {
			t.Errorf("%s with another account's key: %s %v: %s", what, r.Status, r.Counts, r.Detail)
		}
	}
	wantNone(t, b.DB.QueryStrings(t, `SELECT event_id FROM events WHERE origin <> 'webhook'`))
	wantRunDone(t, b.runOnce(t, b.apiAt(b.fake.URL), reconcile.Params{Scope: reconcile.Events}))
}
