package reconcile_test

import (
	"context"
	"fmt"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// stubborn cannot read that one object is missing, so that its tombstone is dead and the object stays.
type stubborn struct{ sim.Provider }

func (p stubborn) Snapshot(src *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	if s.ObjectID == "gone_7" && s.Missing {
		return provider.Observation{}, &provider.Dead{Reason: "a defect"}
	}
	return p.Provider.Snapshot(src, s)
}

// ending ends the first attempt that makes a statement, and does something then.
type ending struct {
	sql    string
	cancel context.CancelFunc
	then   func()
}

func (e *ending) TraceQueryStart(ctx context.Context, _ *pgx.Conn, d pgx.TraceQueryStartData) context.Context {
	if d.SQL == e.sql {
		e.sql = ""
		e.cancel()
		e.then()
	}
	return ctx
}

func (e *ending) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// buries has 25 of 2,599 objects be gone, of which one becomes no tombstone, and a run bury them whose first process ends behind that.
func buries(t *testing.T, then func(b *world)) (*world, int64) {
	t.Helper()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	b.DB.Exec(t, manyAliveSQL, "thing", "gone_", 1, 25)
	b.DB.Exec(t, manyAliveSQL, "thing", "here_", 1, 2554)
	src := b.Sources[applied.Name]
	src.Provider = stubborn{}
	b.proc.Replace(map[string]processor.Source{applied.Name: src})
	var list strings.Builder
	for n := range 2554 {
		fmt.Fprintf(&list, `{"id":"here_%d","answer":%s},`, n+1, b.anObject())
	}
	for n := range 20 {
		id := fmt.Sprintf("obj_%d", n+1)
		fmt.Fprintf(&list, `{"id":%q,"answer":%s},`, id, b.api.h.Answer(id, sim.Look{Began: b.api.now.UnixMicro()}).Body)
	}
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		switch {
		case c.Path == "/list":
			return b.answer(provider.Found, fmt.Appendf(nil, `{"things":[%s]}`, strings.TrimSuffix(list.String(), ","))), nil
		case strings.HasPrefix(c.Path, "/things/gone_"):
			return b.answer(provider.Missing, nil), nil
		}
		return nil, nil
	}
	e := &ending{sql: statement(reconcile.Statements(), "SET phase = 'done'"), then: func() { then(b) }}
	r := b.runner()
	cfg := r.Pool.Config()
	cfg.ConnConfig.Tracer = e
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	r.Pool = pool
	b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: func(ctx context.Context, h *runs.Hold, log *slog.Logger) (runs.Status, error) {
		ctx, e.cancel = context.WithCancel(ctx)
		defer e.cancel()
		return r.Carry(ctx, h, log)
	}})
	return b, b.order(t, reconcile.Order{What: reconcile.Objects, Type: "thing"})
}

// more has the run have met more ghosts, as if they were more than are buried at once.
func (b *world) more(t *testing.T, from, to int) {
	t.Helper()
	b.DB.Exec(t, manyAliveSQL, "thing", "gone_", from, to)
	b.DB.Exec(t, `INSERT INTO ghosts (run, object_type, object_id, date, elapsed_us) SELECT run, 'thing', 'gone_' || n, $1, 0 FROM runs, generate_series($2::int, $3::int) n`, b.api.now, from, to)
}

// What a run has buried is none of what it asks for: one in a hundred is few also after its own tombstones, of which fewer live.
func TestABuriedRunAsksNobody(t *testing.T) {
	t.Parallel()
	b, run := buries(t, func(b *world) { b.more(t, 26, 26) })
	r := b.Until(t, run, func(r *runs.Run) bool { return r.Status.Final() || r.Status == runs.Proposed })
	if r.Status != runs.Done {
		t.Fatalf("%s: %s", r.Status, r.Detail)
	}
	counted(t, r, map[string]int64{reconcile.Seen: 2600, reconcile.Equal: 2574, reconcile.Ghosts: 26, reconcile.Mended: 25, reconcile.Left: 1})
}

// A ghost that is left counts once, however often the mirror is walked through: most of the objects are deleted while a tombstone is still to be made, so that a person is asked, and the walk made again.
func TestAGhostThatIsLeftCountsOnce(t *testing.T) {
	t.Parallel()
	b, run := buries(t, func(b *world) {
		b.more(t, 26, 55)
		b.DB.Exec(t, `DELETE FROM objects WHERE object_id LIKE 'here_%'`)
	})
	b.wants(t, run, 0, "30 of 51 living objects of type thing")
	b.approve(t, run, "they are gone")
	r := b.ended(t, run)
	counted(t, r, map[string]int64{reconcile.Seen: 2629, reconcile.Equal: 2574, reconcile.Ghosts: 55, reconcile.Mended: 54, reconcile.Left: 1})
	if alive := b.DB.Rows(t, `SELECT object_id FROM objects WHERE object_id LIKE 'gone%' AND NOT deleted`); len(alive) != 1 || alive[0] != "gone_7" || r.Status != runs.Done || !b.proven(t).IsZero() {
		t.Errorf("%s, alive are %q, proven until %s", r.Status, alive, b.proven(t))
	}
}

// What lives here by an event that came after the API had said that it is missing is no ghost, and was not mended: it is ahead, and counts once.
func TestAGhostThatLivesAgainIsAhead(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	b.DB.Exec(t, manyAliveSQL, "thing", "gone_", 1, 2)
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if strings.HasPrefix(c.Path, "/things/gone_") {
			if c.Path == "/things/gone_2" { // and a webhook brings it back, later than this answer
				b.DB.Exec(t, `UPDATE objects SET version_at = $1, window_lo = $1, window_hi = $1 WHERE object_id = 'gone_2'`, b.api.now.Add(time.Minute).UnixMicro())
			}
			return b.answer(provider.Missing, nil), nil
		}
		return nil, nil
	}
	b.carry(t, b.runner())
	r := b.ended(t, b.order(t, reconcile.Order{What: reconcile.Objects, Type: "thing"}))
	equal := one[int64](t, b, `SELECT count(*) FROM objects WHERE object_id LIKE 'obj%' AND NOT deleted`)
	counted(t, r, map[string]int64{reconcile.Seen: equal + 2, reconcile.Equal: equal, reconcile.Ghosts: 1, reconcile.Ahead: 1, reconcile.Mended: 1})
	if alive := b.DB.Rows(t, `SELECT object_id FROM objects WHERE object_id LIKE 'gone%' AND NOT deleted`); len(alive) != 1 || alive[0] != "gone_2" || r.Status != runs.Done {
		t.Errorf("%s, alive are %q", r.Status, alive)
	}
	if told := b.DB.Rows(t, `SELECT object_id || ' ' || kind || ' ' || result FROM drifts`); len(told) != 1 || told[0] != "gone_1 ghost mended" {
		t.Errorf("differences are %q", told)
	}
}
