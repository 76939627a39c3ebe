package reconcile_test

import (
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
)

// What a webhook tells that comes late, just before a sweep, may be gone since: an object that is not listed is asked for, though its row was written after the time that the list is of.
func TestGhostOfALateWebhook(t *testing.T) {
	t.Parallel()
	f := newForge(t, githubfake.Options{Start: time.Now().Add(-2 * time.Hour)}, nil)
	id := f.fake.Open(0)
	f.fake.SetWebhooks(githubfake.Webhooks{Lost: 100})
	f.fake.Delete(id)
	f.fake.Advance(time.Minute)
	f.deliver(t)
	f.carry(t, f.reads.Caller)
	r := f.run(t, reconcile.Order{What: reconcile.Objects, Type: "issue", Full: true})
	if r.Status != runs.Done || r.Counts[reconcile.Ghosts] != 1 || r.Counts[reconcile.Mended] != 1 {
		t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
	}
	if n := f.count(t, `SELECT count(*) FROM objects WHERE object_type = 'issue' AND object_id = $1 AND deleted`, id); n != 1 {
		t.Errorf("issue %s is alive here, and gone there", id)
	}
}
