package reconcile_test

import (
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
)

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
	f.carry(t, f.reads.Caller)
	for _, id := range []string{draft, again} {
		f.doubts(t, "release", id, "nothing shows which, so it is not believed")
	}
	r := f.run(t, reconcile.Order{What: reconcile.Objects, Type: "release", Full: true})
	if r.Status != runs.Done || r.Counts[reconcile.Left] != 2 || r.Counts[reconcile.Ghosts] != 1 {
		t.Errorf("%s with %v: %s", r.Status, r.Counts, r.Detail)
	}
	if !f.row(t, "release", public).deleted {
		t.Error("a public release that is missing is not taken for deleted")
	}
	if f.row(t, "release", draft).deleted || f.row(t, "release", again).deleted {
		t.Error("a draft that the key does not see is taken for deleted")
	}
}
