package reconcile_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
)

// mirrorRow is an object of the mirror.
type mirrorRow struct {
	at, seen                int64
	deleted, final, pending bool
	title, hash             string
}

func (f *githubEnv) mirrorRow(t *testing.T, objectType, id string) (r mirrorRow) {
	t.Helper()
	err := f.DB.Pool.QueryRow(t.Context(), `SELECT encode(state_hash, 'hex'), version_at, version_seen, deleted,
		version_final, ambiguous OR refetch_after <> 0, coalesce(state ->> 'title', '') FROM objects
		WHERE source = $1 AND object_type = $2 AND object_id = $3`, f.Source, objectType, id).Scan(&r.hash, &r.at,
		&r.seen, &r.deleted, &r.final, &r.pending, &r.title)
	if err != nil {
		t.Fatalf("%s %s: %v", objectType, id, err)
	}
	return r
}

// refetch refetches an object.
func (f *githubEnv) refetch(t *testing.T, objectType, id string) *runs.Run {
	t.Helper()
	return f.runToEnd(t, reconcile.Params{Scope: reconcile.Object, Type: objectType, ID: id})
}

// wantRefetchFailure refetches an object, which must fail with the words.
func (f *githubEnv) wantRefetchFailure(t *testing.T, objectType, id, words string) {
	t.Helper()
	if r := f.refetch(t, objectType, id); r.Status != runs.Failed || !strings.Contains(r.Detail, words) {
		t.Errorf("%s: %q, want %q", r.Status, r.Detail, words)
	}
}

// A refetch after a webhook finds the same state for each type, though the API has more and fewer
// fields.
func TestRefetch_githubUnchanged_leavesMirrorUnchanged(t *testing.T) {
	t.Parallel()
	f := newGitHubEnv(t, githubfake.Options{Seed: 6, Start: time.Now().Add(-2 * time.Hour), Comments: 10}, nil)
	f.fake.RunSteps(60)
	f.fake.Advance(time.Hour)
	f.deliver(t)
	f.fake.Advance(time.Minute) // after the time range of the last event
	f.startThrough(t, f.source.Caller)
	refetched := map[string]int{}
	for _, o := range f.fake.CurrentObjects() {
		if o.Body == nil || refetched[o.Type] == 2 {
			continue
		}
		refetched[o.Type]++
		before := f.mirrorRow(t, o.Type, o.ID)
		if r := f.refetch(t, o.Type, o.ID); r.Status != runs.Done {
			t.Errorf("%s %s: %s: %s", o.Type, o.ID, r.Status, r.Detail)
		}
		after := f.mirrorRow(t, o.Type, o.ID)
		if commented := o.Type == "issue" && after.at > before.at; commented { // a comment has no event of its issue
			continue
		}
		if after.hash != before.hash || after.at != before.at || after.seen == 0 || after.pending {
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
	f := newGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-2 * time.Hour)}, nil)
	changed, deleted, renamed := f.fake.OpenIssue(0), f.fake.OpenIssue(0), f.fake.OpenIssue(0)
	f.deliver(t)
	f.fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
	f.fake.Advance(10 * time.Second)
	f.fake.Edit(changed)
	f.fake.Delete(deleted)
	f.fake.Advance(10 * time.Second)
	f.startThrough(t, f.source.Caller)
	before := f.mirrorRow(t, "issue", changed)
	f.refetch(t, "issue", changed)
	if now := f.mirrorRow(t, "issue", changed); now.title == before.title || now.at <= before.at || now.seen == 0 {
		t.Errorf("%+v, before the refetch %+v", now, before)
	}
	f.refetch(t, "issue", deleted)
	if now := f.mirrorRow(t, "issue", deleted); !now.deleted || now.final {
		t.Errorf("%+v, and it was deleted", now)
	}
	f.fake.Rename("samovar")
	f.fake.Edit(renamed)
	f.fake.Advance(10 * time.Second)
	before = f.mirrorRow(t, "issue", renamed)
	f.refetch(t, "issue", renamed)
	if now := f.mirrorRow(t, "issue", renamed); now.title == before.title || now.deleted {
		t.Errorf("%+v, before the refetch %+v", now, before)
	}
}

// A missing object is believed only if the key could see it. Another object in the response is an
// error. An object that is not in the mirror has no address.
func TestRefetch_githubMissingWithoutAccess_isNotBelieved(t *testing.T) {
	t.Parallel()
	f := newGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-2 * time.Hour)}, nil)
	hidden, transferred := f.fake.OpenIssue(0), f.fake.OpenIssue(0)
	repository := f.fake.CurrentObjects()[0].ID
	f.deliver(t)
	f.fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
	f.fake.Advance(10 * time.Second)
	f.fake.Transfer(transferred)
	f.startThrough(t, f.source.Caller)
	if r := f.refetch(t, "issue", transferred); r.Status != runs.Failed ||
		!strings.Contains(r.Detail, "the object was transferred") {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	f.fake.SetFaults(githubfake.Faults{SeesNothing: true})
	f.wantRefetchFailure(t, "issue", hidden, "would be in too, so it does not count as deleted")
	f.wantRefetchFailure(t, "repository", repository, "nothing shows which, so it does not count as deleted")
	f.fake.SetFaults(githubfake.Faults{})
	if r := f.refetch(t, "issue", "12345"); r.Status != runs.Failed ||
		!strings.Contains(r.Detail, "by id or with known data") {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	wantValue(t, f.testEnv, 0, `SELECT count(*) FROM objects WHERE deleted`)
	f.fake.SetWebhooks(githubfake.Webhooks{})
	f.fake.Delete(repository)
	f.deliver(t)
	if r := f.refetch(t, "repository", repository); r.Status != runs.Done ||
		!f.mirrorRow(t, "repository", repository).deleted {
		t.Errorf("%s: %s; %+v", r.Status, r.Detail, f.mirrorRow(t, "repository", repository))
	}
}

// objectDifferences returns the objects that differ in the mirror. The delete of a comment is
// reported by its own event only.
func (f *githubEnv) objectDifferences(t *testing.T) (wrong []string) {
	t.Helper()
	for _, o := range f.fake.CurrentObjects() {
		var title, updated string
		var deleted, pending bool
		err := f.DB.Pool.QueryRow(t.Context(), `SELECT coalesce(state ->> 'title', state ->> 'name', state ->> 'body',
			''), coalesce(state ->> 'updated_at', ''), deleted, ambiguous OR refetch_after <> 0
			FROM objects WHERE source = $1 AND object_type = $2 AND object_id = $3`, f.Source, o.Type,
			o.ID).Scan(&title, &updated, &deleted, &pending)
		if err != nil && o.Body != nil || err == nil && (pending || deleted != (o.Body == nil) || !deleted &&
			(!strings.Contains(string(o.Body), fmt.Sprintf("%q", title)) ||
				!strings.Contains(string(o.Body), fmt.Sprintf("%q", updated)))) {
			wrong = append(wrong, fmt.Sprintf("%s %s: %v: %q of %s, deleted %t, pending %t; it is %s", o.Type, o.ID,
				err, title, updated, deleted, pending, o.Body))
		}
	}
	return wrong
}

// A webhook was added late and lost half of its deliveries. A scan makes the mirror equal to
// GitHub, including unknown pull requests and issues with new comments. A second scan costs its
// pages only.
func TestObjectScan_github_makesMirrorEqual(t *testing.T) {
	t.Parallel()
	f := newGitHubEnv(t, githubfake.Options{Seed: 8, Start: time.Now().Add(-2 * time.Hour), Objects: 60, Comments: 20,
		Webhooks: githubfake.Webhooks{LostUnacknowledged: 100}}, nil)
	f.fake.RunSteps(150)
	f.fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 50})
	f.fake.RunSteps(300)
	f.deliver(t)
	f.fake.Advance(time.Minute)
	f.startThrough(t, f.source.Caller)
	if wrong := f.objectDifferences(t); len(wrong) < 20 {
		t.Fatalf("%d objects differ: the test is too easy", len(wrong))
	}
	r := f.runToEnd(t, reconcile.Params{Scope: reconcile.Objects})
	if r.Status != runs.Done || r.Counts[reconcile.Missing] == 0 || r.Counts[objectscan.MirrorOlder] == 0 ||
		r.Counts[objectscan.Orphans] == 0 || r.Counts[objectscan.Unrepaired] != 0 {
		t.Errorf("%s with %v: %s", r.Status, r.Counts, r.Detail)
	}
	wantNone(t, f.objectDifferences(t))
	before := len(f.fake.Requests())
	again := f.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Full: true})
	// pages of two repositories, control calls, and further pages
	if n := len(f.fake.Requests()) - before; again.Status != runs.Done ||
		again.Counts[objectscan.Equal] != again.Counts[reconcile.Processed] || again.Counts[reconcile.Processed] < 60 ||
		n > int(3*f.listedTypes()+3) {
		t.Errorf("again, with %d calls: %s with %v: %s", n, again.Status, again.Counts, again.Detail)
	}
}

// A scan does not delete an object that the key may no longer see. It reports the object.
func TestObjectScan_githubMissingWithoutAccess_isNotBelieved(t *testing.T) {
	t.Parallel()
	f := newGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-2 * time.Hour)},
		func(api *provider.API) { api.Repositories = api.Repositories[1:] })
	seen, id := f.fake.OpenIssue(1), f.fake.OpenIssue(0)
	first := f.fake.CurrentObjects()[0].ID
	f.deliver(t)
	f.fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
	f.fake.Delete(first)
	f.fake.Delete(seen)
	f.fake.Advance(time.Minute)
	f.startThrough(t, f.source.Caller)
	for objectType, orphans := range map[string]int64{"issue": 1, "repository": 0} {
		r := f.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: objectType, Full: true})
		wantCounts(t, r, counts{objectscan.Unrepaired: 1, objectscan.Orphans: orphans})
	}
	if !f.mirrorRow(t, "issue", seen).deleted {
		t.Error("a missing object in a readable repository is not deleted")
	}
	if f.mirrorRow(t, "issue", id).deleted || f.mirrorRow(t, "repository", first).deleted {
		t.Error("an object that the key does not see is deleted")
	}
}

// A draft release is hidden from a read-only key, though the list of releases is readable. Neither
// a refetch nor a scan deletes it. Missing public releases are deleted.
func TestObjectScan_githubDrafts_areNotDeleted(t *testing.T) {
	t.Parallel()
	f := newGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-2 * time.Hour)}, nil)
	draft, public, again := f.fake.CreateDraft(0), f.fake.CreateDraft(0), f.fake.CreateDraft(1)
	f.fake.Advance(10 * time.Second)
	f.fake.Publish(public)
	f.fake.Publish(again)
	f.deliver(t)
	f.fake.Advance(10 * time.Second)
	f.fake.Unpublish(again)
	f.deliver(t)
	f.fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
	f.fake.Delete(public)
	f.fake.Advance(time.Minute)
	f.startThrough(t, f.source.Caller)
	for _, id := range []string{draft, again} {
		f.wantRefetchFailure(t, "release", id, "nothing shows which, so it does not count as deleted")
	}
	r := f.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: "release", Full: true})
	wantCounts(t, r, counts{objectscan.Unrepaired: 2, objectscan.Orphans: 1})
	if !f.mirrorRow(t, "release", public).deleted {
		t.Error("a missing public release is not deleted")
	}
	if f.mirrorRow(t, "release", draft).deleted || f.mirrorRow(t, "release", again).deleted {
		t.Error("a draft that the key does not see is deleted")
	}
}

// A webhook that arrives just before a scan may be about a deleted object. An object that is not
// listed is therefore refetched, though its row is newer than the list.
func TestObjectScan_lateWebhookOfDeletedObject_writesTombstone(t *testing.T) {
	t.Parallel()
	f := newGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-2 * time.Hour)}, nil)
	id := f.fake.OpenIssue(0)
	f.fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
	f.fake.Delete(id)
	f.fake.Advance(time.Minute)
	f.deliver(t)
	f.startThrough(t, f.source.Caller)
	r := f.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: "issue", Full: true})
	wantCounts(t, r, counts{objectscan.Orphans: 1, objectscan.Repaired: 1})
	wantValue(t, f.testEnv, 1,
		`SELECT count(*) FROM objects WHERE object_type = 'issue' AND object_id = $1 AND deleted`, id)
}

// For each other type that GitHub lists, a scan finds objects that were created, changed and
// deleted without webhooks, and moves the watermark. The next scan finds no difference.
func TestObjectScan_githubOtherTypes_makesMirrorEqual(t *testing.T) {
	t.Parallel()
	for kind, list := range map[string]string{"milestone": "/milestones?", "deployment": "/deployments?",
		"commit_comment": "/comments?", "pull_request_review_comment": "/pulls/comments?"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := newGitHubEnv(t, githubfake.Options{Start: time.Now().Add(-4 * time.Hour)}, nil)
			var all []string
			for i := range 10 {
				all = append(all, f.fake.CreateOfKind(i%2, kind))
				f.fake.Advance(2 * time.Second)
			}
			f.deliver(t)
			if wrong := f.objectDifferences(t); len(wrong) > 0 {
				t.Fatalf("after the webhooks %s", wrong)
			}
			f.fake.SetWebhooks(githubfake.Webhooks{LostUnacknowledged: 100})
			f.fake.Edit(all[0])
			f.fake.Edit(all[3])
			f.fake.Delete(all[5])
			f.fake.CreateOfKind(1, kind)
			f.fake.Advance(2 * time.Hour)
			f.startThrough(t, f.source.Caller)
			r := f.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: kind})
			if r.Status != runs.Done {
				t.Errorf("%s: %s", r.Status, r.Detail)
			}
			wantExactCounts(t, r, counts{reconcile.Processed: 11, objectscan.Equal: 7, objectscan.MirrorOlder: 2,
				reconcile.Missing: 1, objectscan.Orphans: 1, objectscan.Repaired: 4})
			wantNone(t, f.objectDifferences(t))
			wantValue(t, f.testEnv, 1, `SELECT count(*) FROM watermarks WHERE subject = $1`, "type "+kind)
			f.fake.Advance(2 * time.Hour)
			made, again := len(f.fake.Requests()), counts{reconcile.Processed: 10, objectscan.Equal: 10}
			if kind == "pull_request_review_comment" {
				again = counts{} // only changes are requested
			}
			wantExactCounts(t, f.runToEnd(t, reconcile.Params{Scope: reconcile.Objects, Type: kind}), again)
			pages := 0
			for _, request := range f.fake.Requests()[made:] {
				if strings.Contains(request, list) && strings.Contains(request, "since=") == (len(again) == 0) {
					pages++
				}
			}
			if pages != 2 || len(f.fake.Requests()) != made+3 { // and the control call
				t.Errorf("the second scan requested %q", f.fake.Requests()[made:])
			}
		})
	}
}
