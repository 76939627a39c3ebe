package objectscan_test

import (
	"net/http"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
	"github.com/postern-gateway/postern/internal/testkit/shopifyfake"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

// newEnvWithManyOrphans makes 90 orphans of type "aaa", and each kind of difference among the
// things.
func newEnvWithManyOrphans(t *testing.T) *reconciled.Env {
	t.Helper()
	b := reconciled.NewMirroredEnv(t, 220, reconciled.LivingObjects)
	addUnknownObjects(t, b, "aaa", "gone_", 90)
	addEachDrift(t, b)
	b.API.RespondTo(b.FoundResponse(`{"things":[]}`), "/aaas")
	b.API.RespondTo(b.MissingResponse(), "/aaa/*")
	return b
}

// A type with many orphans does not stop the following types. They are scanned, repaired and
// completed. Then the run asks for approval, and executes what is approved.
func TestObjectScan_typeAwaitingApproval_blocksNoOtherType(t *testing.T) {
	t.Parallel()
	b := newEnvWithManyOrphans(t)
	b.StartTwoTypes(t)
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	waitForApprovalRequest(t, b, run, "90 of 90 living objects of type aaa are in the mirror")
	if wrong := b.Differences(t); len(wrong) > 1 || b.TypeCompleteUntil(t).IsZero() { // one is newer than the list
		t.Errorf("things are complete until %s, and %q", b.TypeCompleteUntil(t), wrong)
	}
	b.Approve(t, run, "they are gone")
	r, want := b.WaitForEnd(t, run), driftCounts(95)
	want[reconcile.Processed], want[objectscan.Orphans] = 111, 91
	reconciled.WantExactCounts(t, r, want)
	reconciled.WantRunDone(t, r)
	reconciled.WantValue(t, b, "", `SELECT detail FROM runs`)
	reconciled.WantValue(t, b, 90, `SELECT count(*) FROM objects WHERE object_type = 'aaa' AND deleted`)
}

// Wherever its process ends, the run asks once for all types, and deletes nothing before the
// approval. Each type may delete as many objects as were reported.
func TestObjectScan_severalTypesNeedApproval_askOnce(t *testing.T) {
	t.Parallel()
	b := newEnvWithManyOrphans(t)
	addUnknownObjects(t, b, "thing", "gone_", 40)
	b.StartRunner(t, "one", 0, map[string]runs.Executor{
		reconcile.Job: reconciled.KillRepeatedly(t, b.RunnerReading(reconciled.TwoTypes{}))})
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	waitForApprovalRequest(t, b, run,
		"90 of 90 living objects of type aaa, 41 of 61 living objects of type thing are in the mirror")
	const deletedSQL = `SELECT count(*) FROM objects WHERE object_type = $1 AND deleted AND object_id <> 'obj_2'`
	reconciled.WantValue(t, b, 0, deletedSQL, "thing")
	addUnknownObjects(t, b, "thing", "more_", 50) // fewer than were approved of aaa
	b.Approve(t, run, "they are gone")
	r := b.WaitForRun(t, run, reconciled.EndedOrAwaitsApproval)
	if r.Status != runs.AwaitingApproval ||
		!strings.HasPrefix(r.Detail, "91 of 111 living objects of type thing are in the mirror") {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	reconciled.WantValue(t, b, 90, deletedSQL, "aaa")
	reconciled.WantValue(t, b, 0, deletedSQL, "thing")
	b.Approve(t, run, "they are gone")
	reconciled.WantCounts(t, b.WaitForEnd(t, run), reconciled.Counts{objectscan.Orphans: 181})
}

// A type whose list fails is skipped, and does not stop the request for approval of another type.
func TestObjectScan_otherTypeFails_stillAsksForApproval(t *testing.T) {
	t.Parallel()
	b := newEnvWithManyOrphans(t)
	b.API.RespondTo(reconciled.ErrorResponse(http.StatusBadGateway), "/list")
	b.StartTwoTypes(t)
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	waitForApprovalRequest(t, b, run, "90 of 90 living objects of type aaa are in the mirror")
	b.Approve(t, run, "they are gone")
	reconciled.WantCounts(t, b.WaitForEnd(t, run), reconciled.Counts{objectscan.Orphans: 90, objectscan.NotListable: 1})
	if report := b.Report(t, run); !strings.Contains(report.Types[1].Reason, "502") ||
		!b.TypeCompleteUntil(t).IsZero() {
		t.Errorf("%+v", report)
	}
}

// A few tombstones of each of many types add up. Beyond twenty, if they are more than one percent
// of the objects in the run, the rest needs approval.
func TestObjectScan_tombstonesOfManyTypes_areAddedUp(t *testing.T) {
	t.Parallel()
	b := reconciled.NewStripeEnv(t, "", stripefake.Options{Seed: 29})
	b.Fake.Create("", "customer", nil)
	var all []string
	for range 15 {
		for _, objectType := range []string{"application_fee", "charge", "invoice", "subscription"} {
			all = append(all, b.Fake.Create("", objectType, nil))
		}
	}
	b.Deliver(t, reconciled.LoseNone)
	b.Fake.Advance(2 * time.Minute)
	for _, id := range all {
		b.Fake.DeleteWithoutEvent("", id)
	}
	b.Fake.Advance(2 * time.Minute)
	r := b.RunOnce(t, b.APIAt(b.Fake.URL), reconcile.Params{Scope: reconcile.Objects})
	const deleted = `SELECT object_type || ' ' || count(*) FROM objects WHERE deleted GROUP BY object_type ORDER BY 1`
	if got := b.DB.QueryStrings(t, deleted); r.Status != runs.AwaitingApproval ||
		strings.Count(r.Detail, "15 of 15 living objects of type") != 3 ||
		!slices.Equal(got, []string{"application_fee 15"}) {
		t.Errorf("%s, deleted are %q: %s", r.Status, got, r.Detail)
	}
	b.Approve(t, r.ID, "they are gone")
	stop := b.StartRunner(t, "two", 1,
		map[string]runs.Executor{reconcile.Job: b.Runner(t, b.APIAt(b.Fake.URL), reconciled.SameCaller).Execute})
	defer stop()
	r = b.WaitForRun(t, r.ID, reconciled.EndedOrAwaitsApproval)
	if got := b.DB.QueryStrings(t, deleted); r.Status != runs.Done || len(got) != 4 {
		t.Errorf("approved, %s, deleted are %q: %s", r.Status, got, r.Detail)
	}
}

// An approval of deletes is no approval of the key. If the key can no longer be verified, the run
// asks for that first, and again for each other key. Each approval is stored separately.
func TestObjectScan_tombstoneApproval_approvesNoKey(t *testing.T) {
	t.Parallel()
	b := reconciled.NewMirroredEnv(t, 230, reconciled.LivingOptions(40))
	var shown atomic.Bool
	shown.Store(true)
	r := b.RunnerWithoutEvents(t, 0, func(id string) bool { return shown.Load() && id >= "obj_30" && id <= "obj_39" })
	keyed := func(key string) {
		r.Sources.Replace(b.SourceWith(func(s *providerapi.Source) {
			s.Reader, s.API = reconciled.WithoutEvents{ObjectLister: sim.Provider{}},
				&provider.API{Concurrency: 2, Key: provider.Secret{Name: "api.key", Value: []byte(key)}}
		}))
	}
	keyed("key_of_ours")
	b.StartReconciler(t, r)
	run := b.StartRun(t, reconcile.Params{Scope: reconcile.Objects})
	wantApprovalRequest(t, b, run, 0, "of 40 living objects of type thing are in the mirror and missing")
	shown.Store(false)
	refetches := b.RefetchCount(t)
	b.Approve(t, run, "they are gone")
	wantApprovalRequest(t, b, run, 1, "nothing shows that the key")
	keyed("key_of_others")
	b.Approve(t, run, "the key is right")
	wantApprovalRequest(t, b, run, 2, "nothing shows that the key")
	b.WantRows(t, `SELECT object_id FROM objects WHERE deleted`)
	if made := b.RefetchCount(t) - refetches; made != 0 {
		t.Errorf("with a key that was not approved %d refetches were made", made)
	}
	b.Approve(t, run, "this one too")
	got := b.WaitForEnd(t, run)
	if got.Status != runs.Done || got.Counts[objectscan.Orphans] != 30 || len(got.Approvals) != 3 {
		t.Fatalf("%s %v, %+v: %s", got.Status, got.Counts, got.Approvals, got.Detail)
	}
	for i, want := range []struct{ subject, message, reason string }{
		{"tombstones", "30 of 40 living objects of type thing", "they are gone"},
		{"key ", "nothing shows that the key", "the key is right"},
		{"key ", "nothing shows that the key", "this one too"},
	} {
		a := got.Approvals[i]
		if !strings.HasPrefix(a.Subject, want.subject) || !strings.Contains(a.Message, want.message) ||
			a.Reason != want.reason || a.Actor != "me" || a.At.IsZero() || strings.Contains(a.Subject, "key_of") {
			t.Errorf("approval %d is %+v, want %+v", i, a, want)
		}
	}
	if got.Approvals[1].Subject == got.Approvals[2].Subject {
		t.Errorf("two keys have one approval: %s", got.Approvals[1].Subject)
	}
}

// A configured type whose list is not in the schema is skipped like a rejected one. A run for this
// type alone reports the remedy.
func TestObjectScan_configuredListMissing_isSkipped(t *testing.T) {
	t.Parallel()
	ended := func(r *runs.Run) bool { return r.Status.Ended() || r.ConsecutiveFailures > 5 }
	for _, bulk := range [][]string{nil, {"gift_card"}} {
		b := reconciled.NewShopifyEnv(t, shopifyfake.Options{Seed: 3}, reconciled.ObjectSet{Name: "product", N: 10})
		b.API.Bulk = bulk
		b.API.Types = map[string]provider.APIType{"gift_card": {Get: "gift_cards/{id}.json", List: "giftCardz"}}
		b.StartReconciler(t, b.Runner(t))
		r := b.WaitForRun(t, startScan(t, b, ""), ended)
		if r.Status != runs.Done || r.Counts[objectscan.NotListable] != 1 || r.Counts[reconcile.Missing] == 0 ||
			r.Counts[objectscan.Unrepaired] != 0 {
			t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
		}
		reconciled.WantRunFailed(t, b.WaitForRun(t, startScan(t, b, "gift_card"), ended), "api.types.TYPE.list")
	}
}

// A run ends with a remedy if the control call of a configured API does not exist.
func TestReconcile_controlCallMissing_failsTheRun(t *testing.T) {
	t.Parallel()
	b := reconciled.NewRESTEnv(t, "control: /me", "control: /things/missing")
	b.Fake.Set("a", "one", time.Second)
	b.Deliver(t, b.Fake.Events())
	b.Fake.Set("a", "", time.Second) // it is deleted
	b.Fake.Advance(time.Minute)
	b.StartReconciler(t, b.Runner)
	for _, o := range []reconcile.Params{{Scope: reconcile.Objects},
		{Scope: reconcile.Object, Type: "thing", ID: "a"}} {
		r := b.WaitForRun(t, b.StartRun(t, o), reconciled.EndedOrDeferred)
		reconciled.WantRunFailed(t, r, "does not find the resource that checks the key")
	}
	reconciled.WantNone(t, b.DB.QueryStrings(t, `SELECT object_id FROM objects WHERE deleted`))
}

// A type whose list keeps failing is skipped. The other types are complete, this one is not. A run
// for this type alone fails. During an outage of the whole API the run is tried again.
func TestObjectScan_lastingListFailure_skipsTheType(t *testing.T) {
	t.Parallel()
	for name, params := range map[string]reconcile.Params{"all": {Scope: reconcile.Objects},
		"one": {Scope: reconcile.Objects, Type: "deployment"}} {
		for _, down := range []bool{false, true} {
			t.Run(name+map[bool]string{true: ", down"}[down], func(t *testing.T) {
				t.Parallel()
				f := reconciled.NewGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-3 * time.Hour)}, nil)
				f.Fake.OpenIssue(0)
				f.Fake.Advance(time.Minute)
				requested := false
				f.StartThrough(t, reconciled.InterceptingCaller{Caller: f.APISource.Caller,
					Intercept: func(c provider.Call) *providerapi.Response {
						isList := strings.HasSuffix(c.Path, "/deployments")
						if requested = requested || isList; isList || down && requested {
							return reconciled.ErrorResponse(http.StatusInternalServerError)
						}
						return nil
					}})
				got := f.WaitForRun(t, f.StartRun(t, params), reconciled.EndedOrDeferred)
				complete := reconciled.QueryOne[string](t, f.Env, reconciled.CompleteSQL)
				if down {
					if got.Status.Ended() {
						t.Errorf("%s: %s", got.Status, got.Detail)
					}
					return
				}
				if params.Type == "" {
					reconciled.WantCounts(t, got, reconciled.Counts{objectscan.NotListable: 1})
				} else {
					reconciled.WantRunFailed(t, got, "deployment", "500")
				}
				if strings.Contains(complete, "deployment") ||
					strings.Contains(complete, "type issue") != (params.Type == "") {
					t.Errorf("complete are %s", complete)
				}
			})
		}
	}
}

// waitForApprovalRequest waits until a run awaits approval with the given words, and checks that no
// object of type "aaa" is deleted.
func waitForApprovalRequest(t *testing.T, b *reconciled.Env, run int64, words ...string) {
	t.Helper()
	r := b.WaitForRun(t, run, reconciled.EndedOrAwaitsApproval)
	for _, w := range words {
		if r.Status != runs.AwaitingApproval || !strings.Contains(r.Detail, w) {
			t.Errorf("%s: %s; want %q", r.Status, r.Detail, w)
		}
	}
	reconciled.WantValue(t, b, 0, `SELECT count(*) FROM objects WHERE object_type = 'aaa' AND deleted`)
}

// wantApprovalRequest waits until a run with a number of approvals awaits another one with the
// given words.
func wantApprovalRequest(t *testing.T, b *reconciled.Env, run int64, approvals int, words string) {
	t.Helper()
	r := b.WaitForRun(t, run, func(r *runs.Run) bool {
		return r.Status.Ended() || r.Status == runs.AwaitingApproval && len(r.Approvals) == approvals
	})
	if r.Status != runs.AwaitingApproval || !strings.Contains(r.Detail, words) {
		t.Fatalf("%s, want %q: %s", r.Status, words, r.Detail)
	}
}
