package reconcile_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
)

// single asks for pages of one release.
type single struct{ reconcile.Caller }

func (m single) Do(ctx context.Context, c provider.Call) (*reconcile.Response, error) {
	if strings.HasSuffix(c.Path, "/releases") && c.Query.Get("per_page") == "100" {
		c.Query.Set("per_page", "1")
	}
	return m.Caller.Do(ctx, c)
}

// A long list that is begun again for what was in hand tells of nothing new for as long as it was read before, and leads in no circle.
func TestALongListIsReadAgain(t *testing.T) {
	t.Parallel()
	f := newForge(t, githubfake.Options{Start: time.Now().Add(-3 * time.Hour)}, nil)
	const releases = 130
	for i := range releases {
		if i == 1 {
			f.deliver(t)
			f.fake.SetWebhooks(githubfake.Webhooks{}) // the rest is told all the same
		}
		if i == 0 {
			f.fake.SetWebhooks(githubfake.Webhooks{Lost: 100}) // the oldest is not here, and the last to be listed
		}
		id := f.fake.Draft(0)
		f.fake.Advance(2 * time.Second)
		f.fake.Publish(id)
		f.fake.Advance(2 * time.Second)
	}
	f.deliver(t)
	f.fake.Advance(time.Minute)
	source := *f.reads
	source.Caller = single{f.reads.Caller}
	r := f.runner()
	r.Sources.Replace(&source)
	mute := *r // whose process cannot append
	mute.Log = f.DB.Role(t, "gateway")
	mute.Log.Close()
	var n atomic.Int64
	f.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: func(ctx context.Context, h *runs.Hold, log *slog.Logger) (runs.Status, error) {
		if n.Add(1) == 1 {
			return mute.Carry(ctx, h, log)
		}
		return r.Carry(ctx, h, log)
	}})
	run := f.run(t, reconcile.Order{What: reconcile.Objects, Type: "release"})
	if run.Status != runs.Done || n.Load() != 2 || run.Counts[reconcile.Seen] != releases || run.Counts[reconcile.Missing] != 1 || run.Counts[reconcile.Mended] != 1 {
		t.Errorf("%s %v after %d attempts: %s", run.Status, run.Counts, n.Load(), run.Detail)
	}
	if got := one[string](t, f.world, `SELECT rereads || ' ' || restarts FROM sweeps`); got != "1 0" {
		t.Errorf("rereads and restarts are %s", got)
	}
	if got := one[string](t, f.world, full); got != "type release" {
		t.Errorf("proven are %q", got)
	}
}

// An object that is left counts once, however often its list is begun again, and no more once it is right.
func TestWhatIsLeftCountsOnce(t *testing.T) {
	t.Parallel()
	for _, lasting := range []bool{true, false} {
		t.Run(fmt.Sprint(lasting), func(t *testing.T) {
			t.Parallel()
			b := newWorld(t, 230, living)
			b.deliver(t, b.api.h.Events)
			b.spoil(t)
			restarts, asked := 0, 0
			b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
				switch {
				case c.Path == "/list" && c.Query.Get("cursor") == "obj_14" && restarts < 3:
					restarts++
					return b.answer(provider.Expired, nil), nil
				case strings.HasPrefix(c.Path, "/things/obj_3"):
					if asked++; !lasting && asked > 1 {
						return nil, nil
					}
					return b.answer(provider.Missing, nil), nil
				}
				return nil, nil
			}
			b.Carry(t, "one", 1, b.jobs())
			r := b.sweep(t, reconcile.Order{})
			want := kinds(5)
			delete(want, reconcile.Behind)
			want[reconcile.Different]++ // what is listed and missing is told as that
			if lasting {
				want[reconcile.Mended], want[reconcile.Left] = 4, 1
			}
			counted(t, r, want)
			if restarts != 3 || asked < 2 || b.proven(t).IsZero() != lasting {
				t.Errorf("after %d restarts proven until %s", restarts, b.proven(t))
			}
		})
	}
}
