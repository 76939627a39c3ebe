package reconcile_test

import (
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
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
	r := b.runner()
	r.Sources.Replace(b.source(func(s *reconcile.Source) { s.Provider, s.Reader = before{}, before{} }))
	b.carry(t, r)
}

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
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	b.DB.Exec(t, manyAliveSQL, "aaa", "obj_", 1, 150)
	last := one[string](t, b, `SELECT object_id FROM objects WHERE object_type = 'aaa' ORDER BY object_id OFFSET 120 LIMIT 1`)
	r := b.runner()
	r.Sources.Replace(b.source(func(s *reconcile.Source) { s.Provider, s.Reader = before{}, before{} }))
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		switch {
		case c.Path == "/aaas":
			return b.answer(provider.Found, []byte(`{"things":[]}`)), nil
		case c.Path == "/aaa/obj_1":
			return b.answer(provider.Missing, nil), nil
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
	if r := b.ended(t, run); r.Status != runs.Done || r.Counts[reconcile.Ghosts] != 0 {
		t.Errorf("%s %v: %s", r.Status, r.Counts, r.Detail)
	}
	if dead := b.DB.Rows(t, `SELECT object_type || ' ' || object_id FROM objects WHERE deleted`); b.api.made("/aaa/"+last) == 0 || len(dead) > 0 {
		t.Errorf("dead are %q", dead)
	}
	for _, w := range b.wrong(t) {
		t.Error(w)
	}
}

// What was listed of a type that was refused afterwards hides no ghost of the next, and is not taken for it.
func TestWhatIsListedIsOfItsType(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	b.DB.Exec(t, manyAliveSQL, "thing", "gone_", 1, 1)
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
	report, err := reconcile.Drift(t.Context(), b.Operator, r.Run)
	if err != nil || len(report.Types) != 2 {
		t.Fatalf("%+v, %v", report, err)
	}
	if thing := report.Types[1]; thing.ObjectType != "thing" || thing.Checked != 20 || thing.Ghosts != 1 || thing.Mended != 1 {
		t.Errorf("%+v", thing)
	}
	if dead := b.DB.Rows(t, `SELECT object_type || ' ' || object_id FROM objects WHERE deleted`); len(dead) != 1 || dead[0] != "thing gone_1" {
		t.Errorf("dead are %q", dead)
	}
}

// What another sweep was told of, which is not done yet, hides no ghost from this one: it may be gone since.
func TestWhatIsListedIsOfItsRun(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	b.DB.Exec(t, manyAliveSQL, "thing", "gone_", 1, 1)
	before := b.order(t, reconcile.Order{What: reconcile.Objects})
	if err := runs.Change(t.Context(), b.Operator, before, runs.Paused); err != nil {
		t.Fatal(err)
	}
	b.DB.Exec(t, `INSERT INTO listed (run, object_type, object) VALUES ($1, 'thing', hashtextextended('gone_1', 0))`, before)
	b.carry(t, b.runner())
	counted(t, b.sweep(t, reconcile.Order{}), map[string]int64{reconcile.Seen: 21, reconcile.Equal: 20, reconcile.Ghosts: 1, reconcile.Mended: 1})
	if n := one[int](t, b, `SELECT count(*) FROM listed`); n != 1 {
		t.Errorf("the paused sweep is left with %d objects that were listed", n)
	}
}

// Whoever ends, or is paused, while ghosts are looked for has asked nobody yet; whoever goes on asks before the first tombstone.
func TestTombstonesOfAPausedRunAreApproved(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	b.DB.Exec(t, manyAliveSQL, "thing", "gone_", 1, 90)
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
	if err := runs.Change(t.Context(), b.Operator, run, runs.Waiting); err != nil {
		t.Fatal(err)
	}
	got := b.Until(t, run, func(r *runs.Run) bool { return r.Status == runs.Proposed || r.Status.Final() })
	if n := b.looks(t); got.Status != runs.Proposed || n != 0 || !strings.Contains(got.Detail, "90 of 110 living objects of type thing") {
		t.Errorf("%s with %d tombstones: %s", got.Status, n, got.Detail)
	}
}

// A person is told of all that is missing before approving it, and what was there when it was asked for stays, whatever the API says of it afterwards.
func TestNothingButWhatWasToldOfIsBuried(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	b.DB.Exec(t, manyAliveSQL, "thing", "more_", 1, 480)
	var all atomic.Bool
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		switch id, ok := strings.CutPrefix(c.Path, "/things/more_"); {
		case !ok:
			return nil, nil
		case all.Load() || strings.HasSuffix(id, "7"):
			return b.answer(provider.Missing, nil), nil
		}
		return b.answer(provider.Found, b.anObject()), nil
	}
	b.carry(t, b.runner())
	run := b.order(t, reconcile.Order{What: reconcile.Objects})
	r := b.Until(t, run, func(r *runs.Run) bool { return r.Status.Final() || r.Status == runs.Proposed })
	if n := b.looks(t); n != 0 || !strings.Contains(r.Detail, "48 of 500 living objects of type thing") {
		t.Errorf("%s with %d tombstones: %s", r.Status, n, r.Detail)
	}
	all.Store(true) // as if the key had lost its account
	if err := runs.Approve(t.Context(), b.Operator, run, "me", "they are gone"); err != nil {
		t.Fatal(err)
	}
	counted(t, b.ended(t, run), map[string]int64{reconcile.Seen: 500, reconcile.Equal: 452, reconcile.Hidden: 432, reconcile.Ghosts: 48, reconcile.Mended: 48})
}

// A few more are missing once the run is approved, since time has passed: that needs nobody. Where many more are, somebody is asked again.
func TestMoreTombstonesThanApproved(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	b.DB.Exec(t, manyAliveSQL, "thing", "gone_", 1, 30)
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
		if err := runs.Approve(t.Context(), b.Operator, run, "me", "they are gone"); err != nil {
			t.Fatal(err)
		}
	}
	counted(t, b.ended(t, run), map[string]int64{reconcile.Seen: 91, reconcile.Equal: 20, reconcile.Ghosts: 71, reconcile.Mended: 71})
}

// A ghost that an event of long ago reaches while the list is read is a ghost still: the type is proven past it.
func TestGhostWithALateEvent(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	b.DB.Exec(t, manyAliveSQL, "thing", "gone_", 1, 1)
	late := false
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if c.Path == "/list" && !late {
			late = true
			b.DB.Exec(t, `UPDATE objects SET updated_at = clock_now(), revision = revision + 1 WHERE object_id = 'gone_1'`) // as an event does that came late
		}
		return nil, nil
	}
	b.carry(t, b.runner())
	counted(t, b.sweep(t, reconcile.Order{}), map[string]int64{reconcile.Seen: 21, reconcile.Equal: 20, reconcile.Ghosts: 1, reconcile.Mended: 1})
	if !late || b.proven(t).IsZero() {
		t.Errorf("an event came: %t, proven until %s", late, b.proven(t))
	}
}

// Where an own version may stand still, a row is taken to be true until its event was received, which may have come late. An object that is gone is a ghost all the same, and the type is proven
// past it.
func TestGhostWhoseEventCameLate(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	b.DB.Exec(t, manyAliveSQL, "thing", "gone_", 1, 1)
	b.DB.Exec(t, `UPDATE objects SET window_hi = $1 WHERE object_id = 'gone_1'`, b.api.now.Add(time.Minute).UnixMicro())
	b.carry(t, b.runner())
	counted(t, b.sweep(t, reconcile.Order{}), map[string]int64{reconcile.Seen: 21, reconcile.Equal: 20, reconcile.Ghosts: 1, reconcile.Mended: 1})
}

// An object that was deleted and made again is missing here, however late its delete came.
func TestADeleteThatCameLateHidesNoRebirth(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	b.DB.Exec(t, `UPDATE objects SET deleted = true, state = NULL, state_hash = sha256('-null'), exact_hash = sha256('-null'), tie_set = '[]', version_at = version_at - 10, window_hi = $1
		WHERE object_id = 'obj_2'`, b.api.now.Add(time.Minute).UnixMicro())
	b.carry(t, b.runner())
	counted(t, b.sweep(t, reconcile.Order{}), map[string]int64{reconcile.Seen: 20, reconcile.Equal: 19, reconcile.Missing: 1, reconcile.Mended: 1})
	if wrong := b.wrong(t); len(wrong) > 0 {
		t.Errorf("after the sweep: %v", wrong)
	}
}

// Events tell their time in seconds, so that nothing is proven in the middle of one: an event of its beginning may be here, and one of its end not.
func TestNothingIsProvenInTheMiddleOfASecond(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	b.carry(t, b.runner())
	b.sweep(t, reconcile.Order{})
	if until := b.proven(t); until.IsZero() || until != until.Truncate(time.Second) {
		t.Errorf("proven until %s", until)
	}
}

// What is listed and yet missing by its name is left as it is, and proves nothing: nobody has asked whether the key may read it.
func TestWhatIsListedAndMissingIsLeft(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	b.DB.Exec(t, `UPDATE objects SET state = '{"name": "old"}', state_hash = sha256('old'), exact_hash = sha256('old'), tie_set = '[]', version_at = version_at - 10 WHERE object_id = 'obj_3'`)
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if c.Path == "/things/obj_3" {
			return b.answer(provider.Missing, nil), nil
		}
		return nil, nil
	}
	b.carry(t, b.runner())
	counted(t, b.sweep(t, reconcile.Order{}), map[string]int64{reconcile.Seen: 20, reconcile.Equal: 19, reconcile.Different: 1, reconcile.Left: 1})
	if n := b.looks(t); n != 0 || !b.proven(t).IsZero() {
		t.Errorf("%d looks, proven until %s", n, b.proven(t))
	}
}

// What happens to an object while the list is read is no reason to ask for it, and its deletion is not this sweep's.
func TestAnObjectOfSinceTheListBeganIsNoGhost(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 220, living)
	b.deliver(t, b.api.h.Events)
	b.DB.Exec(t, manyAliveSQL, "thing", "new_", 1, 1)
	b.DB.Exec(t, `UPDATE objects SET version_at = $1, window_lo = $1, window_hi = $1 WHERE object_id = 'new_1'`, b.api.now.UnixMicro())
	b.carry(t, b.runner())
	counted(t, b.sweep(t, reconcile.Order{}), map[string]int64{reconcile.Seen: 20, reconcile.Equal: 20})
	if n := b.api.made("/things/new_1"); n != 0 {
		t.Errorf("asked for it %d times", n)
	}
}
