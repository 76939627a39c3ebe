package reconcile_test

import (
	"context"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
)

// proofless refuses the list that shows whether an object is missing, and has the control call fail since, until it is well.
type proofless struct {
	reconcile.Caller
	asked, well *atomic.Bool
}

func (c proofless) Do(ctx context.Context, call provider.Call) (*reconcile.Response, error) {
	switch {
	case c.well.Load():
	case strings.HasSuffix(call.Path, "/milestones") && call.Query.Get("per_page") == "1":
		c.asked.Store(true)
		return failing(http.StatusForbidden), nil
	case c.asked.Load() && call.Path == "/":
		return failing(http.StatusBadGateway), nil
	}
	return c.Caller.Do(ctx, call)
}

// An object whose absence cannot be shown is not left while the control call fails too: the run waits for the API to be well, and deletes it then.
func TestWhatIsMissingIsNotLeftWhileNothingAnswers(t *testing.T) {
	t.Parallel()
	f := newForge(t, githubfake.Options{Start: time.Now().Add(-4 * time.Hour)}, nil)
	var all []string
	for range 4 {
		all = append(all, f.fake.Make(0, "milestone"))
		f.fake.Advance(2 * time.Second)
	}
	f.deliver(t)
	f.fake.SetWebhooks(githubfake.Webhooks{Lost: 100})
	f.fake.Delete(all[1])
	f.fake.Advance(2 * time.Hour)
	var asked, well atomic.Bool
	f.carry(t, proofless{f.reads.Caller, &asked, &well})
	run, err := runs.Ask(t.Context(), f.Operator, runs.Order{Job: reconcile.Job, Asked: reconcile.Order{Source: f.number, What: reconcile.Objects, Type: "milestone"}, Who: "test"})
	if err != nil {
		t.Fatal(err)
	}
	r := f.Until(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, "502") || r.Status.Final() })
	if n := f.count(t, `SELECT coalesce(sum(remaining), 0) FROM sweeps`); r.Status.Final() || n != 0 || !asked.Load() {
		t.Errorf("%s with %d left, asked %t: %s", r.Status, n, asked.Load(), r.Detail)
	}
	well.Store(true)
	counted(t, f.Until(t, run, func(r *runs.Run) bool { return r.Status.Final() }), map[string]int64{reconcile.Seen: 4, reconcile.Equal: 3, reconcile.Ghosts: 1, reconcile.Mended: 1})
}
