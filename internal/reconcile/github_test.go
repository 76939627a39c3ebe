package reconcile_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
)

// row is an object of the mirror.
type row struct {
	at, seen                 int64
	deleted, final, doubtful bool
	title, hash              string
}

func (f *forge) row(t *testing.T, objectType, id string) (r row) {
	t.Helper()
	err := f.DB.Pool.QueryRow(t.Context(), `SELECT encode(state_hash, 'hex'), version_at, version_seen, deleted, version_final, ambiguous OR look_after <> 0, coalesce(state ->> 'title', '') FROM objects
		WHERE source = $1 AND object_type = $2 AND object_id = $3`, f.Source, objectType, id).Scan(&r.hash, &r.at, &r.seen, &r.deleted, &r.final, &r.doubtful, &r.title)
	if err != nil {
		t.Fatalf("%s %s: %v", objectType, id, err)
	}
	return r
}

// look has a look at an object.
func (f *forge) look(t *testing.T, objectType, id string) *runs.Run {
	t.Helper()
	return f.run(t, reconcile.Order{What: reconcile.Object, Type: objectType, ID: id})
}

// doubts has a look end with a run that failed and says some words.
func (f *forge) doubts(t *testing.T, objectType, id, words string) {
	t.Helper()
	if r := f.look(t, objectType, id); r.Status != runs.Failed || !strings.Contains(r.Detail, words) {
		t.Errorf("%s: %q, want %q", r.Status, r.Detail, words)
	}
}

// A look at what a webhook has told already finds the same, though the API shows more and less of it; of each type that the fake has.
func TestLookSeesTheSame(t *testing.T) {
	t.Parallel()
	f := newForge(t, githubfake.Options{Seed: 6, Start: time.Now().Add(-2 * time.Hour), Comments: 10}, nil)
	f.fake.Live(60)
	f.fake.Advance(time.Hour)
	f.deliver(t)
	f.fake.Advance(time.Minute) // behind the window of the last event
	f.through(t, f.reads.Caller)
	looked := map[string]int{}
	for _, o := range f.fake.Truth() {
		if o.Body == nil || looked[o.Type] == 2 {
			continue
		}
		looked[o.Type]++
		before := f.row(t, o.Type, o.ID)
		if r := f.look(t, o.Type, o.ID); r.Status != runs.Done {
			t.Errorf("%s %s: %s: %s", o.Type, o.ID, r.Status, r.Detail)
		}
		after := f.row(t, o.Type, o.ID)
		if commented := o.Type == "issue" && after.at > before.at; commented { // GitHub tells the issue of no comment
			continue
		}
		if after.hash != before.hash || after.at != before.at || after.seen == 0 || after.doubtful {
			t.Errorf("%s %s: %+v, before the look %+v", o.Type, o.ID, after, before)
		}
	}
	for _, objectType := range []string{"issue", "pull_request", "release", "repository", "issue_comment"} {
		if looked[objectType] == 0 {
			t.Errorf("no %s was looked at", objectType)
		}
	}
}

// A look sees what no webhook told: another state, a delete, and where a renamed repository has gone. A delete seen so is not final.
func TestLookSeesWhatWasLost(t *testing.T) {
	t.Parallel()
	f := newForge(t, githubfake.Options{Start: time.Now().Add(-2 * time.Hour)}, nil)
	changed, deleted, renamed := f.fake.Open(0), f.fake.Open(0), f.fake.Open(0)
	f.deliver(t)
	f.fake.SetWebhooks(githubfake.Webhooks{Lost: 100})
	f.fake.Advance(10 * time.Second)
	f.fake.Edit(changed)
	f.fake.Delete(deleted)
	f.fake.Advance(10 * time.Second)
	f.through(t, f.reads.Caller)
	before := f.row(t, "issue", changed)
	f.look(t, "issue", changed)
	if now := f.row(t, "issue", changed); now.title == before.title || now.at <= before.at || now.seen == 0 {
		t.Errorf("%+v, before the look %+v", now, before)
	}
	f.look(t, "issue", deleted)
	if now := f.row(t, "issue", deleted); !now.deleted || now.final {
		t.Errorf("%+v, and it was deleted", now)
	}
	f.fake.Rename("samovar")
	f.fake.Edit(renamed)
	f.fake.Advance(10 * time.Second)
	before = f.row(t, "issue", renamed)
	f.look(t, "issue", renamed)
	if now := f.row(t, "issue", renamed); now.title == before.title || now.deleted {
		t.Errorf("%+v, before the look %+v", now, before)
	}
}

// What is missing is believed only where the key would see it; what is another object is none; what the mirror has never seen has no address.
func TestLookBelievesOnlyWhatItSees(t *testing.T) {
	t.Parallel()
	f := newForge(t, githubfake.Options{Start: time.Now().Add(-2 * time.Hour)}, nil)
	hidden, transferred := f.fake.Open(0), f.fake.Open(0)
	repository := f.fake.Truth()[0].ID
	f.deliver(t)
	f.fake.SetWebhooks(githubfake.Webhooks{Lost: 100})
	f.fake.Advance(10 * time.Second)
	f.fake.Transfer(transferred)
	f.through(t, f.reads.Caller)
	if r := f.look(t, "issue", transferred); r.Status != runs.Failed || !strings.Contains(r.Detail, "the object was transferred") {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	f.fake.SetFaults(githubfake.Faults{Blind: true})
	f.doubts(t, "issue", hidden, "the list it would be in is too")
	f.doubts(t, "repository", repository, "nothing shows which, so it is not believed")
	f.fake.SetFaults(githubfake.Faults{})
	if r := f.look(t, "issue", "12345"); r.Status != runs.Failed || !strings.Contains(r.Detail, "by what is known of it") {
		t.Errorf("%s: %s", r.Status, r.Detail)
	}
	is(t, f.world, 0, `SELECT count(*) FROM objects WHERE deleted`)
	f.fake.SetWebhooks(githubfake.Webhooks{})
	f.fake.Delete(repository)
	f.deliver(t)
	if r := f.look(t, "repository", repository); r.Status != runs.Done || !f.row(t, "repository", repository).deleted {
		t.Errorf("%s: %s; %+v", r.Status, r.Detail, f.row(t, "repository", repository))
	}
}

// wrongs are the objects that the mirror does not show as they are. Of comments no delete is ever told but by their own event.
func (f *forge) wrongs(t *testing.T) (wrong []string) {
	t.Helper()
	for _, o := range f.fake.Truth() {
		var title, updated string
		var deleted, doubt bool
		err := f.DB.Pool.QueryRow(t.Context(), `SELECT coalesce(state ->> 'title', state ->> 'name', state ->> 'body', ''), coalesce(state ->> 'updated_at', ''), deleted, ambiguous OR look_after <> 0
			FROM objects WHERE source = $1 AND object_type = $2 AND object_id = $3`, f.Source, o.Type, o.ID).Scan(&title, &updated, &deleted, &doubt)
		if err != nil && o.Body != nil || err == nil && (doubt || deleted != (o.Body == nil) || !deleted && (!strings.Contains(string(o.Body), fmt.Sprintf("%q", title)) ||
			!strings.Contains(string(o.Body), fmt.Sprintf("%q", updated)))) {
			wrong = append(wrong, fmt.Sprintf("%s %s: %v: %q of %s, deleted %t, in doubt %t; it is %s", o.Type, o.ID, err, title, updated, deleted, doubt, o.Body))
		}
	}
	return wrong
}

// Where a webhook was added late and loses half, a sweep makes the mirror GitHub's, pull requests that it had never heard of and comments' marks on their issues among it; what is unchanged then costs its pages
// and no more.
func TestSweepOfGitHub(t *testing.T) {
	t.Parallel()
	f := newForge(t, githubfake.Options{Seed: 8, Start: time.Now().Add(-2 * time.Hour), Objects: 60, Comments: 20, Webhooks: githubfake.Webhooks{Lost: 100}}, nil)
	f.fake.Live(150)
	f.fake.SetWebhooks(githubfake.Webhooks{Lost: 50})
	f.fake.Live(300)
	f.deliver(t)
	f.fake.Advance(time.Minute)
	f.through(t, f.reads.Caller)
	if wrong := f.wrongs(t); len(wrong) < 20 {
		t.Fatalf("%d objects are wrong: there is little to prove", len(wrong))
	}
	r := f.run(t, reconcile.Order{What: reconcile.Objects})
	if r.Status != runs.Done || r.Counts[reconcile.Missing] == 0 || r.Counts[reconcile.Behind] == 0 || r.Counts[reconcile.Ghosts] == 0 || r.Counts[reconcile.Left] != 0 {
		t.Errorf("%s with %v: %s", r.Status, r.Counts, r.Detail)
	}
	none(t, f.wrongs(t))
	before := len(f.fake.Requests())
	again := f.run(t, reconcile.Order{What: reconcile.Objects, Full: true})
	if n := len(f.fake.Requests()) - before; again.Status != runs.Done || again.Counts[reconcile.Equal] != again.Counts[reconcile.Seen] || again.Counts[reconcile.Seen] < 60 || n > int(3*f.lists()+3) { // pages of two repositories, control calls, and what goes over a page
		t.Errorf("again, with %d calls: %s with %v: %s", n, again.Status, again.Counts, again.Detail)
	}
}

// A sweep that may not see an object any more takes it for what it is not: it says so, and makes no tombstone.
func TestSweepBelievesOnlyWhatItSees(t *testing.T) {
	t.Parallel()
	f := newForge(t, githubfake.Options{Start: time.Now().Add(-2 * time.Hour)}, func(api *provider.API) { api.Repositories = api.Repositories[1:] })
	seen, id := f.fake.Open(1), f.fake.Open(0)
	first := f.fake.Truth()[0].ID
	f.deliver(t)
	f.fake.SetWebhooks(githubfake.Webhooks{Lost: 100})
	f.fake.Delete(first)
	f.fake.Delete(seen)
	f.fake.Advance(time.Minute)
	f.through(t, f.reads.Caller)
	for objectType, ghosts := range map[string]int64{"issue": 1, "repository": 0} {
		r := f.run(t, reconcile.Order{What: reconcile.Objects, Type: objectType, Full: true})
		has(t, r, counts{reconcile.Left: 1, reconcile.Ghosts: ghosts})
	}
	if !f.row(t, "issue", seen).deleted {
		t.Error("what is missing where the key sees is not taken for deleted")
	}
	if f.row(t, "issue", id).deleted || f.row(t, "repository", first).deleted {
		t.Error("what the key does not see is taken for deleted")
	}
}

// A release that is a draft is hidden from a key that may only read, though the list of releases is readable: neither a look nor a sweep takes it for deleted. Public ones that
// are missing are.
func TestDraftsAreNotTakenForDeleted(t *testing.T) {
	t.Parallel()
	f := newForge(t, githubfake.Options{Start: time.Now().Add(-2 * time.Hour)}, nil)
	draft, public, again := f.fake.Draft(0), f.fake.Draft(0), f.fake.Draft(1)
	f.fake.Advance(10 * time.Second)
	f.fake.Publish(public)
	f.fake.Publish(again)
	f.deliver(t)
	f.fake.Advance(10 * time.Second)
	f.fake.Unpublish(again)
	f.deliver(t)
	f.fake.SetWebhooks(githubfake.Webhooks{Lost: 100})
	f.fake.Delete(public)
	f.fake.Advance(time.Minute)
	f.through(t, f.reads.Caller)
	for _, id := range []string{draft, again} {
		f.doubts(t, "release", id, "nothing shows which, so it is not believed")
	}
	r := f.run(t, reconcile.Order{What: reconcile.Objects, Type: "release", Full: true})
	has(t, r, counts{reconcile.Left: 2, reconcile.Ghosts: 1})
	if !f.row(t, "release", public).deleted {
		t.Error("a public release that is missing is not taken for deleted")
	}
	if f.row(t, "release", draft).deleted || f.row(t, "release", again).deleted {
		t.Error("a draft that the key does not see is taken for deleted")
	}
}

// What a webhook tells that comes late, just before a sweep, may be gone since: an object that is not listed is asked for, though its row was written after the time that the list is of.
func TestGhostOfALateWebhook(t *testing.T) {
	t.Parallel()
	f := newForge(t, githubfake.Options{Start: time.Now().Add(-2 * time.Hour)}, nil)
	id := f.fake.Open(0)
	f.fake.SetWebhooks(githubfake.Webhooks{Lost: 100})
	f.fake.Delete(id)
	f.fake.Advance(time.Minute)
	f.deliver(t)
	f.through(t, f.reads.Caller)
	r := f.run(t, reconcile.Order{What: reconcile.Objects, Type: "issue", Full: true})
	has(t, r, counts{reconcile.Ghosts: 1, reconcile.Mended: 1})
	is(t, f.world, 1, `SELECT count(*) FROM objects WHERE object_type = 'issue' AND object_id = $1 AND deleted`, id)
}

// Of each type that GitHub lists a sweep finds what was made, changed and deleted while the webhooks were lost, proves it, and finds nothing the next time.
func TestSweepOfGitHubsOtherTypes(t *testing.T) {
	t.Parallel()
	for kind, list := range map[string]string{"milestone": "/milestones?", "deployment": "/deployments?", "commit_comment": "/comments?", "pull_request_review_comment": "/pulls/comments?"} {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			f := newForge(t, githubfake.Options{Start: time.Now().Add(-4 * time.Hour)}, nil)
			var all []string
			for i := range 10 {
				all = append(all, f.fake.Make(i%2, kind))
				f.fake.Advance(2 * time.Second)
			}
			f.deliver(t)
			if wrong := f.wrongs(t); len(wrong) > 0 {
				t.Fatalf("the webhooks tell %s", wrong)
			}
			f.fake.SetWebhooks(githubfake.Webhooks{Lost: 100})
			f.fake.Edit(all[0])
			f.fake.Edit(all[3])
			f.fake.Delete(all[5])
			f.fake.Make(1, kind)
			f.fake.Advance(2 * time.Hour)
			f.through(t, f.reads.Caller)
			r := f.run(t, reconcile.Order{What: reconcile.Objects, Type: kind})
			if r.Status != runs.Done {
				t.Errorf("%s: %s", r.Status, r.Detail)
			}
			counted(t, r, counts{reconcile.Seen: 11, reconcile.Equal: 7, reconcile.Behind: 2, reconcile.Missing: 1, reconcile.Ghosts: 1, reconcile.Mended: 4})
			none(t, f.wrongs(t))
			is(t, f.world, 1, `SELECT count(*) FROM watermarks WHERE what = $1`, "type "+kind)
			f.fake.Advance(2 * time.Hour)
			made, again := len(f.fake.Requests()), counts{reconcile.Seen: 10, reconcile.Equal: 10}
			if kind == "pull_request_review_comment" {
				again = counts{} // what changed alone is asked for
			}
			counted(t, f.run(t, reconcile.Order{What: reconcile.Objects, Type: kind}), again)
			pages := 0
			for _, request := range f.fake.Requests()[made:] {
				if strings.Contains(request, list) && strings.Contains(request, "since=") == (len(again) == 0) {
					pages++
				}
			}
			if pages != 2 || len(f.fake.Requests()) != made+3 { // and the control call
				t.Errorf("the second sweep has asked for %q", f.fake.Requests()[made:])
			}
		})
	}
}
