package reconcile_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// before is a provider of two types: "aaa", swept first, whose list is /aaas and whose objects are below /aaa/, and "thing".
type before struct{ sim.Provider }

func (before) Lists(*provider.Source, *provider.API, string) map[string]provider.List {
	return map[string]provider.List{"aaa": {}, "thing": {}}
}

func (p before) ListObjects(src *provider.Source, api *provider.API, account, objectType string, since, until time.Time, cursor string) provider.Call {
	c := p.Provider.ListObjects(src, api, account, objectType, since, until, cursor)
	if objectType == "aaa" {
		c.Path = "/aaas"
	}
	return c
}

func (before) Fetch(_ *provider.Source, _ *provider.API, _, objectType, id string) (provider.Call, bool) {
	if objectType == "aaa" {
		return provider.Call{Path: "/aaa/" + id}, true
	}
	return provider.Call{Path: "/things/" + id}, objectType == "thing"
}

// before has the world's runs carried out over two types.
func (b *world) before(t *testing.T) {
	t.Helper()
	b.carry(t, b.runnerOf(func(s *reconcile.Source) { s.Provider, s.Reader = before{}, before{} }))
}

// counts are those of a run, without the zeros.
type counts = map[string]int64

// alive has the mirror have n more objects of a type that are known since long ago: of which the
// API knows nothing.
func (b *world) alive(t *testing.T, objectType, prefix string, n int) {
	t.Helper()
	b.DB.Exec(t, manyAliveSQL, objectType, prefix, 1, n)
}

// missing is the API's answer for an object that it does not have.
func (b *world) missing() *reconcile.Response { return b.answer(provider.Missing, nil) }

// answer is an answer of the API.
func (b *world) answer(kind provider.VerdictKind, body []byte) *reconcile.Response {
	return &reconcile.Response{Verdict: provider.Verdict{Kind: kind}, Date: b.api.now.Truncate(time.Second), Body: body}
}

// anObject is what the API answers for an object.
func (b *world) anObject() []byte {
	return b.api.h.Answer("obj_6", sim.Look{Began: b.api.now.UnixMicro()}).Body
}

// manyAliveSQL makes objects of the mirror that are alive and known since long ago: of a type, a prefix and each number between two.
const manyAliveSQL = `INSERT INTO objects SELECT (o).* FROM (SELECT jsonb_populate_record(o, jsonb_build_object('object_type', $1::text, 'object_id', $2::text || n)) AS o
FROM objects o, generate_series($3::int, $4::int) n WHERE o.object_type = 'thing' AND o.object_id = 'obj_6') o`

// What is missing of a type is not buried under the name of another, of which an object with the same id lives: whatever the run's next attempt begins with.
func TestGhostsAreOfTheirType(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 220, living)
	b.alive(t, "aaa", "obj_", 150)
	last := one[string](t, b, `SELECT object_id FROM objects WHERE object_type = 'aaa' ORDER BY object_id OFFSET 120 LIMIT 1`)
	r := b.runnerOf(func(s *reconcile.Source) { s.Provider, s.Reader = before{}, before{} })
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		switch {
		case c.Path == "/aaas":
			return b.answer(provider.Found, []byte(`{"things":[]}`)), nil
		case c.Path == "/aaa/obj_1":
			return b.missing(), nil
		case c.Path == "/aaa/"+last: // from the next attempt on, the source lists things alone
			r.Sources.Replace(b.source(func(*reconcile.Source) {}))
			return &reconcile.Response{Verdict: provider.Verdict{Kind: provider.Found}, Body: b.anObject()}, nil // without a Date, which no sweep goes on after
		case strings.HasPrefix(c.Path, "/aaa/"):
			return b.answer(provider.Found, b.anObject()), nil
		}
		return nil, nil
	}
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	b.carry(t, r)
	has(t, b.ended(t, run), counts{reconcile.Ghosts: 0})
	if dead := b.DB.Rows(t, `SELECT object_type || ' ' || object_id FROM objects WHERE deleted`); b.api.made("/aaa/"+last) == 0 || len(dead) > 0 {
		t.Errorf("dead are %q", dead)
	}
	none(t, b.wrong(t))
}

// What was listed of a type that was refused afterwards hides no ghost of the next, and is not taken for it.
func TestWhatIsListedIsOfItsType(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 220, living)
	b.alive(t, "thing", "gone_", 1)
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		switch {
		case c.Path != "/aaas":
			return nil, nil
		case c.Query.Get("cursor") != "":
			return failing(http.StatusForbidden), nil
		}
		return b.answer(provider.Found, fmt.Appendf(nil, `{"things":[{"id":"gone_1","answer":%s},{"id":"obj_1","answer":%[1]s}],"next":"x"}`, b.anObject())), nil
	}
	b.before(t)
	r := b.sweep(t, reconcile.Order{})
	report := b.report(t, r.Run)
	if len(report.Types) != 2 {
		t.Fatalf("%+v", report)
	}
	if thing := report.Types[1]; thing.ObjectType != "thing" || thing.Checked != 20 || thing.Ghosts != 1 || thing.Mended != 1 {
		t.Errorf("%+v", thing)
	}
	b.rows(t, `SELECT object_type || ' ' || object_id FROM objects WHERE deleted`, "thing gone_1")
}

// What another sweep was told of, which is not done yet, hides no ghost from this one: it may be gone since.
func TestWhatIsListedIsOfItsRun(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 220, living)
	b.alive(t, "thing", "gone_", 1)
	before := b.order(t, reconcile.Order{What: reconcile.Objects})
	b.turn(t, before, runs.Paused)
	b.DB.Exec(t, `INSERT INTO listed (run, object_type, object) VALUES ($1, 'thing', hashtextextended('gone_1', 0))`, before)
	b.carry(t, b.runner())
	counted(t, b.sweep(t, reconcile.Order{}),
		counts{reconcile.Seen: 21, reconcile.Equal: 20, reconcile.Ghosts: 1, reconcile.Mended: 1})
	is(t, b, 1, `SELECT count(*) FROM listed`)
}

// Whoever ends, or is paused, while ghosts are looked for has asked nobody yet; whoever goes on asks before the first tombstone.
func TestTombstonesOfAPausedRunAreApproved(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 220, living)
	b.alive(t, "thing", "gone_", 90)
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	var paused atomic.Bool
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if strings.HasPrefix(c.Path, "/things/gone_") && !paused.Swap(true) {
			if err := runs.Change(t.Context(), b.Operator, run, runs.Paused); err != nil {
				t.Error(err)
			}
		}
		return nil, nil
	}
	r := b.runner()
	r.Settings.Again = 0 // the run hears of it at each step
	b.carry(t, r)
	b.Until(t, run, func(r *runs.Run) bool { return r.Status == runs.Paused && r.HeldBy == "" })
	b.turn(t, run, runs.Waiting)
	got := b.Until(t, run, halted)
	if n := b.looks(t); got.Status != runs.Proposed || n != 0 || !strings.Contains(got.Detail, "90 of 110 living objects of type thing") {
		t.Errorf("%s with %d tombstones: %s", got.Status, n, got.Detail)
	}
}

// A person is told of all that is missing before approving it, and what was there when it was asked for stays, whatever the API says of it afterwards.
func TestNothingButWhatWasToldOfIsBuried(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 220, living)
	b.alive(t, "thing", "more_", 480)
	var all atomic.Bool
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		switch id, ok := strings.CutPrefix(c.Path, "/things/more_"); {
		case !ok:
			return nil, nil
		case all.Load() || strings.HasSuffix(id, "7"):
			return b.missing(), nil
		}
		return b.answer(provider.Found, b.anObject()), nil
	}
	b.carry(t, b.runner())
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	r := b.Until(t, run, halted)
	if n := b.looks(t); n != 0 || !strings.Contains(r.Detail, "48 of 500 living objects of type thing") {
		t.Errorf("%s with %d tombstones: %s", r.Status, n, r.Detail)
	}
	all.Store(true) // as if the key had lost its account
	b.approve(t, run, "they are gone")
	counted(t, b.ended(t, run), counts{reconcile.Seen: 500, reconcile.Equal: 452, reconcile.Hidden: 432, reconcile.Ghosts: 48, reconcile.Mended: 48})
}

// A few more are missing once the run is approved, since time has passed: that needs nobody. Where many more are, somebody is asked again.
func TestMoreTombstonesThanApproved(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 220, living)
	b.alive(t, "thing", "gone_", 30)
	b.carry(t, b.runner())
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	for _, c := range []struct {
		asked string
		upTo  int
	}{{"30 of 50 living objects", 51}, {"51 of 71 living objects", 71}} {
		r := b.Until(t, run, func(r *runs.Run) bool {
			return r.Status.Final() || r.Status == runs.Proposed && strings.Contains(r.Detail, c.asked)
		})
		if n := b.looks(t); r.Status != runs.Proposed || n != 0 {
			t.Fatalf("%s with %d tombstones, and not asked for %s: %s", r.Status, n, c.asked, r.Detail)
		}
		b.DB.Exec(t, manyAliveSQL+" ON CONFLICT DO NOTHING", "thing", "gone_", 1, c.upTo)
		b.approve(t, run, "they are gone")
	}
	counted(t, b.ended(t, run),
		counts{reconcile.Seen: 91, reconcile.Equal: 20, reconcile.Ghosts: 71, reconcile.Mended: 71})
}

// A sweep counts, mends and proves what one odd object, or some, call for.
func TestSweep_oddObjects_areCountedAndMendedAsTheyAre(t *testing.T) {
	t.Parallel()
	const oldSQL = `UPDATE objects SET state = '{"name": "old"}', state_hash = sha256('old'), exact_hash = sha256('old'),
		tie_set = '[]', version_at = version_at - 10 WHERE object_id = 'obj_3'`
	for name, c := range map[string]struct {
		// spoil changes the mirror, or what the API answers, at a time of the API's clock.
		spoil  func(t *testing.T, b *world, now time.Time)
		want   map[string]int64
		proven bool
		// dead are the objects that are deleted here then, and left words of why one is left.
		dead []string
		left string
	}{
		"equal": {func(*testing.T, *world, time.Time) {}, counts{reconcile.Seen: 20, reconcile.Equal: 20}, true, nil, ""},
		"gone, and an event of long ago comes while the list is read": {func(t *testing.T, b *world, _ time.Time) {
			b.alive(t, "thing", "gone_", 1)
			const lateSQL = `UPDATE objects SET updated_at = clock_now(), revision = revision + 1 WHERE object_id = 'gone_1'`
			read := sync.OnceFunc(func() { b.DB.Exec(t, lateSQL) })
			b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
				if c.Path == "/list" {
					read()
				}
				return nil, nil
			}
		}, counts{reconcile.Seen: 21, reconcile.Equal: 20, reconcile.Ghosts: 1, reconcile.Mended: 1}, true, []string{"gone_1"}, ""},
		// Where an own version may stand still, a row is taken to be true until its event was received.
		"gone, though its event came late": {func(t *testing.T, b *world, now time.Time) {
			b.alive(t, "thing", "gone_", 1)
			b.DB.Exec(t, `UPDATE objects SET window_hi = $1 WHERE object_id = 'gone_1'`, now.Add(time.Minute).UnixMicro())
		}, counts{reconcile.Seen: 21, reconcile.Equal: 20, reconcile.Ghosts: 1, reconcile.Mended: 1}, true, []string{"gone_1"}, ""},
		"deleted late and made again": {func(t *testing.T, b *world, now time.Time) {
			b.DB.Exec(t, `UPDATE objects SET deleted = true, state = NULL, state_hash = sha256('-null'),
				exact_hash = sha256('-null'), tie_set = '[]', version_at = version_at - 10, window_hi = $1
				WHERE object_id = 'obj_2'`, now.Add(time.Minute).UnixMicro())
		}, counts{reconcile.Seen: 20, reconcile.Equal: 19, reconcile.Missing: 1, reconcile.Mended: 1}, true, nil, ""},
		"made since the list began": {func(t *testing.T, b *world, now time.Time) {
			b.alive(t, "thing", "new_", 1)
			b.DB.Exec(t, `UPDATE objects SET version_at = $1, window_lo = $1, window_hi = $1 WHERE object_id = 'new_1'`, now.UnixMicro())
			b.api.on(failing(http.StatusForbidden), "/things/new_1") // so that it would be left if it were asked for
		}, counts{reconcile.Seen: 20, reconcile.Equal: 20}, true, nil, ""},
		"twenty gone, which needs no approval": {func(t *testing.T, b *world, _ time.Time) {
			b.alive(t, "thing", "gone_", 20)
		}, counts{reconcile.Seen: 40, reconcile.Equal: 20, reconcile.Ghosts: 20, reconcile.Mended: 20}, true, nil, ""},
		// Nothing shows whether the key may read it.
		"listed, and missing by its name": {func(t *testing.T, b *world, _ time.Time) {
			b.DB.Exec(t, oldSQL)
			b.api.on(b.missing(), "/things/obj_3")
		}, counts{reconcile.Seen: 20, reconcile.Equal: 19, reconcile.Different: 1, reconcile.Left: 1}, false, nil, "missing"},
		"one gone, and one that the API is in trouble with": {func(t *testing.T, b *world, _ time.Time) {
			b.copied(t, "gone", "too_large")
			b.api.on(failing(http.StatusBadGateway), "/things/too_large")
		}, counts{reconcile.Seen: 22, reconcile.Equal: 20, reconcile.Different: 1, reconcile.Left: 1, reconcile.Ghosts: 1,
			reconcile.Mended: 1}, false, []string{"gone"}, "502"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := newMirror(t, 220, living)
			c.spoil(t, b, b.api.now)
			b.carry(t, b.runner())
			r := b.sweep(t, reconcile.Order{Type: "thing"})
			counted(t, r, c.want)
			// Events tell their time in seconds, so that nothing is proven in the middle of one.
			if until := b.proven(t); until.IsZero() == c.proven || until != until.Truncate(time.Second) {
				t.Errorf("proven until %s", until)
			}
			if c.dead != nil {
				b.rows(t, `SELECT object_id FROM objects WHERE deleted`, c.dead...)
			}
			if left := b.left(t, r.Run); (len(left) == 1) != (c.left != "") ||
				len(left) > 0 && !strings.Contains(left[0].Reason, c.left) {
				t.Errorf("left are %+v", left)
			}
			if c.left == "" && name != "made since the list began" {
				none(t, b.wrong(t))
			}
		})
	}
}

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
	b := newMirror(t, 220, living)
	b.alive(t, "thing", "gone_", 25)
	b.alive(t, "thing", "here_", 2554)
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
			return b.missing(), nil
		}
		return nil, nil
	}
	e := &ending{sql: statement(reconcile.Statements(), "SET phase = 'done'"), then: func() { then(b) }}
	r := b.runner()
	traced(t, r, e)
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
	r := b.Until(t, run, halted)
	if r.Status != runs.Done {
		t.Fatalf("%s: %s", r.Status, r.Detail)
	}
	counted(t, r, counts{reconcile.Seen: 2600, reconcile.Equal: 2574, reconcile.Ghosts: 26, reconcile.Mended: 25, reconcile.Left: 1})
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
	counted(t, r, counts{reconcile.Seen: 2629, reconcile.Equal: 2574, reconcile.Ghosts: 55, reconcile.Mended: 54, reconcile.Left: 1})
	if alive := b.DB.Rows(t, `SELECT object_id FROM objects WHERE object_id LIKE 'gone%' AND NOT deleted`); len(alive) != 1 || alive[0] != "gone_7" || r.Status != runs.Done || !b.proven(t).IsZero() {
		t.Errorf("%s, alive are %q, proven until %s", r.Status, alive, b.proven(t))
	}
}

// What lives here by an event that came after the API had said that it is missing is no ghost, and was not mended: it is ahead, and counts once.
func TestAGhostThatLivesAgainIsAhead(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 220, living)
	b.alive(t, "thing", "gone_", 2)
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if strings.HasPrefix(c.Path, "/things/gone_") {
			if c.Path == "/things/gone_2" { // and a webhook brings it back, later than this answer
				b.DB.Exec(t, `UPDATE objects SET version_at = $1, window_lo = $1, window_hi = $1 WHERE object_id = 'gone_2'`, b.api.now.Add(time.Minute).UnixMicro())
			}
			return b.missing(), nil
		}
		return nil, nil
	}
	b.carry(t, b.runner())
	r := b.ended(t, b.order(t, reconcile.Order{What: reconcile.Objects, Type: "thing"}))
	equal := one[int64](t, b, `SELECT count(*) FROM objects WHERE object_id LIKE 'obj%' AND NOT deleted`)
	counted(t, r, counts{reconcile.Seen: equal + 2, reconcile.Equal: equal, reconcile.Ghosts: 1, reconcile.Ahead: 1, reconcile.Mended: 1})
	if alive := b.DB.Rows(t, `SELECT object_id FROM objects WHERE object_id LIKE 'gone%' AND NOT deleted`); len(alive) != 1 || alive[0] != "gone_2" || r.Status != runs.Done {
		t.Errorf("%s, alive are %q", r.Status, alive)
	}
	b.rows(t, `SELECT object_id || ' ' || kind || ' ' || result FROM drifts`, "gone_1 ghost mended")
}
