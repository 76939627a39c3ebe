package reconcile_test

import (
	"net/http"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
)

// Where a list begins again, an object that was met before counts as it did then: as mended where it was wrong and is right now, and as left where it is wrong now.
func TestObjectsThatAreMetAgain(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// remains and odd are what is noted of the one that was met, progress is what it counts as; unread: it cannot be read now; same: it does not differ now.
		remains, odd bool
		progress     string
		unread, same bool
		want         map[string]int64
	}{
		"right, then left, then the same":      {true, false, "remaining = 1", false, true, map[string]int64{reconcile.Equal: 20}},
		"wrong and left, then the same":        {true, true, "behind = 1, remaining = 1", false, true, map[string]int64{reconcile.Equal: 19, reconcile.Behind: 1, reconcile.Mended: 1}},
		"right, then left, then right":         {true, false, "remaining = 1", false, false, map[string]int64{reconcile.Equal: 20}},
		"wrong and left, then right":           {true, true, "behind = 1, remaining = 1", false, false, map[string]int64{reconcile.Equal: 19, reconcile.Behind: 1, reconcile.Mended: 1}},
		"wrong and mended, then left":          {false, true, "behind = 1, mended = 1", true, false, map[string]int64{reconcile.Equal: 19, reconcile.Behind: 1, reconcile.Left: 1}},
		"wrong and left, and left again":       {true, true, "behind = 1, remaining = 1", true, false, map[string]int64{reconcile.Equal: 19, reconcile.Behind: 1, reconcile.Left: 1}},
		"right, then left":                     {false, false, "mended = 0", true, false, map[string]int64{reconcile.Equal: 20, reconcile.Left: 1}},
		"wrong and mended, wrong and mended":   {false, true, "behind = 1, mended = 1", false, false, map[string]int64{reconcile.Equal: 19, reconcile.Behind: 1, reconcile.Mended: 1}},
		"right, and then wrong, and so mended": {false, false, "mended = 0", false, false, map[string]int64{reconcile.Equal: 20}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newWorld(t, 200, living)
			b.deliver(t, b.api.h.Events)
			if !c.same {
				b.DB.Exec(t, `UPDATE objects SET state = '{"name": "old"}', state_hash = sha256('old'), exact_hash = sha256('old'), tie_set = '[]', version_at = version_at - 10 WHERE object_id = 'obj_3'`)
			}
			var well atomic.Bool
			b.api.fails = func(call provider.Call) (*reconcile.Response, error) {
				switch {
				case call.Path == "/list" && !well.Load():
					return failing(http.StatusBadGateway), nil
				case c.unread && strings.HasSuffix(call.Path, "/obj_3"):
					return failing(http.StatusForbidden), nil
				}
				return nil, nil
			}
			b.carry(t, b.runner())
			run := b.order(t, reconcile.Order{What: reconcile.Objects})
			b.Until(t, run, func(r *runs.Run) bool { return r.Troubles > 0 })
			b.change(t, run, runs.Paused)
			b.DB.Exec(t, `INSERT INTO listed (run, object_type, object, remains, odd) VALUES ($1, 'thing', hashtextextended('obj_3', 0), $2, $3)`, run, c.remains, c.odd)
			b.DB.Exec(t, `UPDATE sweeps SET checked = 1, `+c.progress)
			well.Store(true)
			b.change(t, run, runs.Waiting)
			c.want[reconcile.Seen] = 20
			counted(t, b.ended(t, run), c.want)
		})
	}
}
