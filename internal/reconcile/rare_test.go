package reconcile_test

import (
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
)

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
			f.carry(t, f.reads.Caller)
			r := f.run(t, reconcile.Order{What: reconcile.Objects, Type: kind})
			if r.Status != runs.Done {
				t.Errorf("%s: %s", r.Status, r.Detail)
			}
			counted(t, r, map[string]int64{reconcile.Seen: 11, reconcile.Equal: 7, reconcile.Behind: 2, reconcile.Missing: 1, reconcile.Ghosts: 1, reconcile.Mended: 4})
			if wrong := f.wrongs(t); len(wrong) > 0 {
				t.Error(wrong)
			}
			if n := f.count(t, `SELECT count(*) FROM watermarks WHERE what = $1`, "type "+kind); n != 1 {
				t.Error("it is not proven")
			}
			f.fake.Advance(2 * time.Hour)
			made, again := len(f.fake.Requests()), map[string]int64{reconcile.Seen: 10, reconcile.Equal: 10}
			if kind == "pull_request_review_comment" {
				again = map[string]int64{} // what changed alone is asked for
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
