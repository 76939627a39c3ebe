package objectscan_test

import (
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/reconciled"
)

// A refetch after a webhook finds the same state for each type, though the API has more and fewer
// fields.
func TestRefetch_githubUnchanged_leavesMirrorUnchanged(t *testing.T) {
	t.Parallel()
	f := reconciled.NewGitHubEnv(t, githubfake.Options{Seed: 6, Start: time.Now().Add(-2 * time.Hour), Comments: 10},
		nil)
	f.Fake.RunSteps(60)
	f.Fake.Advance(time.Hour)
	f.Deliver(t)
	f.Fake.Advance(time.Minute) // after the time range of the last event
	f.StartThrough(t, f.APISource.Caller)
	refetched := map[string]int{}
	for _, o := range f.Fake.CurrentObjects() {
		if o.Body == nil || refetched[o.Type] == 2 {
			continue
		}
		refetched[o.Type]++
		before := mirrorRow(t, f, o.Type, o.ID)
		reconciled.WantRunDone(t, f.Refetch(t, o.Type, o.ID))
		after := mirrorRow(t, f, o.Type, o.ID)
		if commented := o.Type == "issue" && after.At > before.At; commented { // a comment has no event of its issue
			continue
		}
		if after.Hash != before.Hash || after.At != before.At || after.Seen == 0 || after.Pending {
			t.Errorf("%s %s: %+v, before the refetch %+v", o.Type, o.ID, after, before)
		}
	}
	for _, objectType := range []string{"issue", "pull_request", "release", "repository", "issue_comment"} {
		if refetched[objectType] == 0 {
			t.Errorf("no %s was refetched", objectType)
		}
	}
}

// A refetch finds changes without a webhook: another state, a delete, and the new address of a
// renamed repository. Such a delete is not final.
func TestRefetch_githubLostWebhooks_updatesMirror(t *testing.T) {
	t.Parallel()
	f := reconciled.NewGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-2 * time.Hour)}, nil)
	changed, deleted, renamed := f.Fake.OpenIssue(0), f.Fake.OpenIssue(0), f.Fake.OpenIssue(0)
	f.Deliver(t)
	f.Fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
	f.Fake.Advance(10 * time.Second)
	f.Fake.Edit(changed)
	f.Fake.Delete(deleted)
	f.Fake.Advance(10 * time.Second)
	f.StartThrough(t, f.APISource.Caller)
	before := mirrorRow(t, f, "issue", changed)
	f.Refetch(t, "issue", changed)
	if now := mirrorRow(t, f, "issue", changed); now.Title == before.Title || now.At <= before.At || now.Seen == 0 {
		t.Errorf("%+v, before the refetch %+v", now, before)
	}
	f.Refetch(t, "issue", deleted)
	if now := mirrorRow(t, f, "issue", deleted); !now.Deleted || now.Final {
		t.Errorf("%+v, and it was deleted", now)
	}
	f.Fake.Rename("samovar")
	f.Fake.Edit(renamed)
	f.Fake.Advance(10 * time.Second)
	before = mirrorRow(t, f, "issue", renamed)
	f.Refetch(t, "issue", renamed)
	if now := mirrorRow(t, f, "issue", renamed); now.Title == before.Title || now.Deleted {
		t.Errorf("%+v, before the refetch %+v", now, before)
	}
}

// A missing object is believed only if the key could see it. Another object in the response is an
// error. An object that is not in the mirror has no address.
func TestRefetch_githubMissingWithoutAccess_isNotBelieved(t *testing.T) {
	t.Parallel()
	f := reconciled.NewGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-2 * time.Hour)}, nil)
	hidden, transferred := f.Fake.OpenIssue(0), f.Fake.OpenIssue(0)
	repository := f.Fake.CurrentObjects()[0].ID
	f.Deliver(t)
	f.Fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
	f.Fake.Advance(10 * time.Second)
	f.Fake.Transfer(transferred)
	f.StartThrough(t, f.APISource.Caller)
	wantRefetchFailure(t, f, "issue", transferred, "the object was transferred")
	f.Fake.SetFaults(githubfake.Faults{SeesNothing: true})
	wantRefetchFailure(t, f, "issue", hidden, "would be in too, so it does not count as deleted")
	wantRefetchFailure(t, f, "repository", repository, "nothing shows which, so it does not count as deleted")
	f.Fake.SetFaults(githubfake.Faults{})
	wantRefetchFailure(t, f, "issue", "12345", "has no call that reads objects of this type")
	reconciled.WantValue(t, f.Env, 0, `SELECT count(*) FROM objects WHERE deleted`)
	f.Fake.SetWebhooks(githubfake.Webhooks{})
	f.Fake.Delete(repository)
	f.Deliver(t)
	reconciled.WantRunDone(t, f.Refetch(t, "repository", repository))
	if !mirrorRow(t, f, "repository", repository).Deleted {
		t.Error("the repository is not deleted")
	}
}

// A scan does not delete an object that the key may no longer see. It reports the object.
func TestObjectScan_githubMissingWithoutAccess_isNotBelieved(t *testing.T) {
	t.Parallel()
	f := reconciled.NewGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-2 * time.Hour)},
		func(api *provider.API) { api.Repositories = api.Repositories[1:] })
	seen, id := f.Fake.OpenIssue(1), f.Fake.OpenIssue(0)
	first := f.Fake.CurrentObjects()[0].ID
	f.Deliver(t)
	f.Fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
	f.Fake.Delete(first)
	f.Fake.Delete(seen)
	f.Fake.Advance(time.Minute)
	f.StartThrough(t, f.APISource.Caller)
	for objectType, orphans := range map[string]int64{"issue": 1, "repository": 0} {
		r := f.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: objectType, Full: true})
		reconciled.WantCounts(t, r, reconciled.Counts{objectscan.Unrepaired: 1, objectscan.Orphans: orphans})
	}
	if !mirrorRow(t, f, "issue", seen).Deleted {
		t.Error("a missing object in a readable repository is not deleted")
	}
	if mirrorRow(t, f, "issue", id).Deleted || mirrorRow(t, f, "repository", first).Deleted {
		t.Error("an object that the key does not see is deleted")
	}
}

// A draft release is hidden from a read-only key, though the list of releases is readable. Neither
// a refetch nor a scan deletes it. Missing public releases are deleted.
func TestObjectScan_githubDrafts_areNotDeleted(t *testing.T) {
	t.Parallel()
	f := reconciled.NewGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-2 * time.Hour)}, nil)
	draft, public, again := f.Fake.CreateDraft(0), f.Fake.CreateDraft(0), f.Fake.CreateDraft(1)
	f.Fake.Advance(10 * time.Second)
	f.Fake.Publish(public)
	f.Fake.Publish(again)
	f.Deliver(t)
	f.Fake.Advance(10 * time.Second)
	f.Fake.Unpublish(again)
	f.Deliver(t)
	f.Fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
	f.Fake.Delete(public)
	f.Fake.Advance(time.Minute)
	f.StartThrough(t, f.APISource.Caller)
	for _, id := range []string{draft, again} {
		wantRefetchFailure(t, f, "release", id, "nothing shows which, so it does not count as deleted")
	}
	r := f.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: "release", Full: true})
	reconciled.WantCounts(t, r, reconciled.Counts{objectscan.Unrepaired: 2, objectscan.Orphans: 1})
	if !mirrorRow(t, f, "release", public).Deleted {
		t.Error("a missing public release is not deleted")
	}
	if mirrorRow(t, f, "release", draft).Deleted || mirrorRow(t, f, "release", again).Deleted {
		t.Error("a draft that the key does not see is deleted")
	}
}

// For each other type that GitHub lists, a scan finds objects that were created, changed and
// deleted without webhooks, and moves the watermark. The next scan finds no difference.
func TestObjectScan_githubOtherTypes_makesMirrorEqual(t *testing.T) {
	t.Parallel()
	for kind, list := range map[string]string{"milestone": "/milestones?", "deployment": "/deployments?",
		"commit_comment": "/comments?", "pull_request_review_comment": "/pulls/comments?"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := reconciled.NewGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-4 * time.Hour)}, nil)
			var all []string
			for i := range 10 {
				all = append(all, f.Fake.CreateOfKind(i%2, kind))
				f.Fake.Advance(2 * time.Second)
			}
			f.Deliver(t)
			if wrong := f.ObjectDifferences(t); len(wrong) > 0 {
				t.Fatalf("after the webhooks %s", wrong)
			}
			f.Fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
			f.Fake.Edit(all[0])
			f.Fake.Edit(all[3])
			f.Fake.Delete(all[5])
			f.Fake.CreateOfKind(1, kind)
			f.Fake.Advance(2 * time.Hour)
			f.StartThrough(t, f.APISource.Caller)
			r := f.WantDone(t, reconcile.Params{Scope: reconcile.Objects, Type: kind})
			reconciled.WantExactCounts(t, r, reconciled.Counts{reconcile.Processed: 11, objectscan.Equal: 7,
				objectscan.MirrorOlder: 2, reconcile.Missing: 1, objectscan.Orphans: 1, objectscan.Repaired: 4})
			reconciled.WantNone(t, f.ObjectDifferences(t))
			reconciled.WantValue(t, f.Env, 1, `SELECT count(*) FROM watermarks WHERE subject = $1`, "type "+kind)
			f.Fake.Advance(2 * time.Hour)
			made, again := len(f.Fake.Requests()), reconciled.Counts{reconcile.Processed: 10, objectscan.Equal: 10}
			if kind == "pull_request_review_comment" {
				again = reconciled.Counts{} // only changes are requested
			}
			reconciled.WantExactCounts(t, f.RunToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: kind}), again)
			pages := 0
			for _, request := range f.Fake.Requests()[made:] {
				if strings.Contains(request, list) && strings.Contains(request, "since=") == (len(again) == 0) {
					pages++
				}
			}
			if pages != 2 || len(f.Fake.Requests()) != made+3 { // and the control call
				t.Errorf("the second scan requested %q", f.Fake.Requests()[made:])
			}
		})
	}
}

// githubRow is an object of the mirror.
type githubRow struct {
	At, Seen                int64
	Deleted, Final, Pending bool
	Title, Hash             string
}

func mirrorRow(t *testing.T, f *reconciled.GitHubEnv, objectType, id string) (r githubRow) {
	t.Helper()
	err := f.DB.Pool.QueryRow(t.Context(), `SELECT encode(state_hash, 'hex'), version_at, version_seen, deleted,
		version_final, ambiguous OR refetch_after <> 0, coalesce(state ->> 'title', '') FROM objects
		WHERE source = $1 AND object_type = $2 AND object_id = $3`, f.Source, objectType, id).Scan(&r.Hash, &r.At,
		&r.Seen, &r.Deleted, &r.Final, &r.Pending, &r.Title)
	if err != nil {
		t.Fatalf("%s %s: %v", objectType, id, err)
	}
	return r
}

// wantRefetchFailure refetches an object, which must fail with the words.
func wantRefetchFailure(t *testing.T, f *reconciled.GitHubEnv, objectType, id, words string) {
	t.Helper()
	reconciled.WantRunFailed(t, f.Refetch(t, objectType, id), words)
}
