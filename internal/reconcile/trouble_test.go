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

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
	"github.com/postern-gateway/postern/internal/testkit/sim"
)

// source is the world's, as edit changes it.
func (b *world) source(edit func(*reconcile.Source)) *reconcile.Source {
	s := &reconcile.Source{Name: applied.Name, Number: b.Source, Config: &provider.Source{Name: applied.Name}, API: &provider.API{Concurrency: 2},
		Provider: sim.Provider{}, Reader: sim.Provider{}, Caller: b.api}
	edit(s)
	return s
}

// passes has a runner make looks, one pass over the hints at each call.
func passes(b *world, r *reconcile.Runner) func(context.Context) (int, error) {
	l := &reconcile.Looks{Runner: r, ID: "one", Logger: slog.New(slog.DiscardHandler)}
	return l.Passes(r.Sources.All()[b.Source])
}

// looksOf has a runner make looks until the test ends or stop is called.
func looksOf(t *testing.T, r *reconcile.Runner, id string) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	l := &reconcile.Looks{Runner: r, ID: id, Logger: slog.New(slog.DiscardHandler), Every: 20 * time.Millisecond}
	go func() { defer close(done); _ = l.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

const countLooks = `SELECT count(*) FROM events WHERE event_type = 'postern.look'`

// owing delivers all that happened, and returns an object that owes a look since.
func (b *world) owing(t *testing.T) (id string) {
	t.Helper()
	b.deliver(t, b.api.h.Events)
	id = one[string](t, b, `SELECT object_id FROM objects WHERE look_after <> 0 ORDER BY object_id LIMIT 1`)
	b.DB.Exec(t, `UPDATE objects SET look_after = 0 WHERE object_id <> $1`, id) // the others owe nothing here
	return id
}

// met waits until the only hint tells of trouble.
func (b *world) met(t *testing.T, text string) {
	t.Helper()
	testkit.Eventually(t, time.Minute, func() error {
		var said string
		err := b.DB.Pool.QueryRow(t.Context(), `SELECT error FROM hints WHERE taken_by = ''`).Scan(&said)
		if err == nil && !strings.Contains(said, text) {
			err = fmt.Errorf("the hint says %q", said)
		}
		return err
	})
}

// failing is an answer of an API in trouble.
func failing(status int) *reconcile.Response {
	return &reconcile.Response{Verdict: provider.JudgeStatus(status, http.Header{}, nil)}
}

// Trouble in the middle of a stretch costs the one page, not the pages before it.
func TestAPageIsAskedForAgain(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 90, eventTime)
	r := b.runner()
	r.Settings.Span, r.Settings.MaxSpan = 24*time.Hour, 24*time.Hour // one stretch
	r.Settings.Again = time.Millisecond
	all := len(b.api.h.Events)
	pages, calls := (all+pageSize-1)/pageSize, 0
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if c.Path != "/events" {
			return nil, nil
		}
		if calls++; calls >= 2 && calls < 2+3 { // the second page, three times
			return failing(http.StatusBadGateway), nil
		}
		return nil, nil
	}
	b.carry(t, r)
	has(t, b.done(t, reconcile.Order{What: reconcile.Events}), counts{reconcile.Missing: int64(all)})
	if calls != pages+3 || pages < 3 {
		t.Errorf("%d calls for %d pages of which one failed three times", calls, pages)
	}
}

// Who is asked to pause while the API is in trouble asks it for nothing more.
func TestAPausedRunAsksForNoPageAgain(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 91, eventTime)
	r := b.runner()
	r.Settings.Again = time.Millisecond
	var run atomic.Int64
	var well atomic.Bool
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if c.Path != "/events" || well.Load() {
			return nil, nil
		}
		if err := runs.Change(t.Context(), b.Operator, run.Load(), runs.Paused); err != nil {
			t.Error(err)
		}
		return failing(http.StatusBadGateway), nil
	}
	run.Store(b.order(t, reconcile.Order{What: reconcile.Events}))
	b.carry(t, r)
	b.Until(t, run.Load(), func(r *runs.Run) bool { return r.Status == runs.Paused })
	eventually(t, b, "", `SELECT leased_by FROM checkpoints WHERE run = $1`, run.Load())
	b.api.called(t, "/events", 1)
	well.Store(true)
	b.turn(t, run.Load(), runs.Waiting)
	has(t, b.ended(t, run.Load()), counts{reconcile.Missing: int64(len(b.api.h.Events))})
}

// While one process waits long for the budget, nobody else looks at the object; the hint is laid back in time, and another try ends it.
func TestALookThatWaitsForTheBudgetIsNobodyElses(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 92, eventTime)
	id := b.owing(t)
	w := &waiting{api: b.api}
	for i := range 2 {
		r := b.runner()
		r.Settings.Lease = time.Second
		r.Sources.Replace(b.source(func(s *reconcile.Source) { s.Caller = w }))
		looksOf(t, r, fmt.Sprint("process ", i))
	}
	b.met(t, "look within the lease: not done within 500ms")
	testkit.Eventually(t, time.Minute, func() error { // and again, and again
		if n := w.tries.Load(); n < 3 {
			return fmt.Errorf("%d tries", n)
		}
		return nil
	})
	w.open.Store(true)
	b.settled(t)
	if most := w.most.Load(); most != 1 {
		t.Errorf("%d looks at %s at once", most, id)
	}
}

// A look that does not come to its end, since another configuration comes or for trouble of our own, is made again at once or soon, not when its lease runs out, and has cost no attempt.
func TestALookIsNotKeptByOneThatWasBrokenOff(t *testing.T) {
	t.Parallel()
	t.Run("another configuration", func(t *testing.T) {
		t.Parallel()
		b := newWorld(t, 93, eventTime)
		b.owing(t)
		r := b.runner()
		r.Settings.Lease = time.Hour
		var calls atomic.Int64
		b.api.meets(func(provider.Call) (*reconcile.Response, error) {
			if calls.Add(1) == 1 {
				r.Sources.Replace(b.source(func(*reconcile.Source) {}))
			}
			return nil, nil
		})
		looksOf(t, r, "looks")
		b.settled(t)
		if n := calls.Load(); n < 2 {
			t.Errorf("%d calls: no look was broken off", n)
		}
	})
	t.Run("trouble of our own", func(t *testing.T) {
		t.Parallel()
		b := newWorld(t, 94, eventTime)
		b.owing(t)
		b.DB.Exec(t, `REVOKE ALL ON events FROM postern_gateway`)
		r := b.runner()
		r.Settings.Lease = 10 * time.Second
		looksOf(t, r, "looks")
		b.met(t, "permission denied") // of a hint that nobody has
		if wait := one[float64](t, b, `SELECT extract(epoch FROM due - clock_now())::float8 FROM hints`); wait > 2.5 {
			t.Errorf("it is due in %g s, at a lease of 10", wait)
		}
		is(t, b, 0, `SELECT attempts FROM hints`)
		b.DB.Exec(t, `GRANT SELECT, INSERT ON events TO postern_gateway`)
		b.settled(t)
	})
}

// waiting is a Caller whose budget lets nobody call before it opens.
type waiting struct {
	*api
	open              atomic.Bool
	tries, here, most atomic.Int64
}

func (w *waiting) Do(ctx context.Context, c provider.Call) (*reconcile.Response, error) {
	if w.open.Load() {
		return w.api.Do(ctx, c)
	}
	w.tries.Add(1)
	here := w.here.Add(1)
	defer w.here.Add(-1)
	for most := w.most.Load(); here > most && !w.most.CompareAndSwap(most, here); most = w.most.Load() {
	}
	// Without a bound of its own a call would wait for longer than anybody's lease.
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Second, errDown)
	defer cancel()
	<-ctx.Done()
	return nil, context.Cause(ctx)
}

// A run that is refused since its key was replaced meanwhile goes on with the new one.
func TestAKeyMayBeReplacedDuringARun(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 93, eventTime)
	r := b.runner()
	old := &api{h: b.api.h, now: b.api.now}
	calls := 0
	old.fails = func(c provider.Call) (*reconcile.Response, error) {
		if c.Path != "/events" {
			return nil, nil
		}
		if calls++; calls == 2 {
			r.Sources.Replace(b.source(func(*reconcile.Source) {}))
		}
		if calls >= 2 {
			return failing(http.StatusUnauthorized), nil
		}
		return nil, nil
	}
	r.Sources.Replace(b.source(func(s *reconcile.Source) { s.Caller = old }))
	b.carry(t, r)
	if got := b.ask(t, reconcile.Order{What: reconcile.Events}); got.Status != runs.Done || got.Counts[reconcile.Missing] != int64(len(b.api.h.Events)) || calls != 2 {
		t.Errorf("%s with %v after %d calls with the old key: %s", got.Status, got.Counts, calls, got.Detail)
	}
}

// bad is a provider whose reader cannot bear some answers.
type bad struct {
	sim.Provider
	hates func(id string) bool
}

func (p bad) Snapshot(src *provider.Source, s *provider.Snapshot) (provider.Observation, error) {
	if p.hates(s.ObjectID) {
		panic("a shape nobody thought of")
	}
	return p.Provider.Snapshot(src, s)
}

func (p bad) EventPage(account string, body []byte) ([][]byte, string, error) {
	if p.hates("") {
		panic("a page nobody thought of")
	}
	return p.Provider.EventPage(account, body)
}

func (p bad) ObjectPage(src *provider.Source, a *provider.API, account, objectType, cursor string, header http.Header, body []byte) ([]provider.Listed, string, error) {
	if p.hates("") {
		panic("a list nobody thought of")
	}
	return p.Provider.ObjectPage(src, a, account, objectType, cursor, header, body)
}

// An answer that its reader cannot bear ends neither the process nor its other looks; a run that meets it fails and says so.
func TestAReaderThatPanics(t *testing.T) {
	t.Parallel()
	b := newMirror(t, 95, eventTime)
	id := one[string](t, b, `SELECT object_id FROM objects WHERE look_after <> 0 ORDER BY object_id LIMIT 1`)
	if others := one[int](t, b, `SELECT count(*) FROM objects WHERE look_after <> 0 AND object_id <> $1`, id); others == 0 {
		t.Fatal("no other object owes a look")
	}
	p := bad{hates: func(some string) bool { return some == id || some == "" }}
	r := b.runnerOf(func(s *reconcile.Source) { s.Provider, s.Reader = p, p })
	looksOf(t, r, "looks")
	eventually(t, b, 0, `SELECT count(*) FROM objects WHERE look_after <> 0 AND object_id <> $1`, id)
	eventually(t, b, 1, `SELECT count(*) FROM hints WHERE object_id = $1 AND error LIKE '%panicked%' AND due > clock_now() + interval '50 minutes'`, id)
	b.carry(t, r)
	for _, o := range []reconcile.Order{{What: reconcile.Object, Type: "thing", ID: id}, {What: reconcile.Events}, {What: reconcile.Objects}} {
		b.fails(t, o, "panicked", "nobody thought of")
	}
}

// What a simulated clock owes a look for may be years ahead; it is seen to in an hour all the same.
func TestNoHintWaitsForYears(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 96, eventTime)
	id := b.owing(t)
	b.DB.Exec(t, `UPDATE objects SET look_after = $2 WHERE object_id = $1`, id, b.api.now.AddDate(40, 0, 0).UnixMicro())
	looksOf(t, b.runner(), "looks")
	eventually(t, b, 1, `SELECT count(*) FROM hints WHERE taken_by = '' AND due BETWEEN clock_now() + interval '50 minutes' AND clock_now() + interval '61 minutes'`)
	b.api.called(t, "/things/", 0)
}

// An answer that does not say when it was has no place in the order.
func TestAnAnswerWithoutDateIsNoLook(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 97, eventTime)
	id := b.owing(t)
	var dated atomic.Bool
	b.api.fails = func(c provider.Call) (*reconcile.Response, error) {
		if dated.Load() {
			return nil, nil
		}
		body := b.api.h.Answer(id, sim.Look{Began: b.api.now.UnixMicro()}).Body
		return &reconcile.Response{Verdict: provider.Verdict{Kind: provider.Found}, Body: body}, nil
	}
	r := b.runner()
	looksOf(t, r, "looks")
	b.met(t, "does not say what time it is there")
	b.carry(t, r)
	for _, o := range []reconcile.Order{{What: reconcile.Object, Type: "thing", ID: id}, {What: reconcile.Events}, {What: reconcile.Objects}} {
		run := b.order(t, o)
		b.Until(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, "does not say what time it is there") })
	}
	is(t, b, 0, countLooks)
	dated.Store(true)
	b.settled(t)
}

// unsure is a provider one of whose events cannot be applied while it says so.
type unsure struct {
	sim.Provider
	key string
	now *atomic.Bool
}

func (p unsure) Observe(src *provider.Source, e *provider.Stored) (provider.Observation, error) {
	if e.Key == p.key && p.now.Load() {
		return provider.Observation{}, errDown
	}
	return p.Provider.Observe(src, e)
}

// Nothing is proven whose events are not all applied; the run says what it waits for, and goes on when it is there.
func TestNothingIsProvenUnapplied(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 99, eventTime)
	var now atomic.Bool
	now.Store(true)
	e := b.api.h.Events[len(b.api.h.Events)/2]
	b.proc = b.Processor(t, unsure{key: e.Key, now: &now})
	r := b.runner()
	r.Settings.Say = 0
	b.carry(t, r)
	run := b.order(t, reconcile.Order{What: reconcile.Events})
	waits := func(r *runs.Run) bool {
		return strings.HasPrefix(r.Detail, "waits for the outcomes of 1 of the events that it has appended, among them ") && strings.HasSuffix(r.Detail, ", which has failed: "+errDown.Error())
	}
	b.Until(t, run, waits)
	proven := func(want bool) {
		t.Helper()
		if _, until := b.provenOf(t, "", reconcile.Events); until.UnixMicro() > e.Happened != want {
			t.Errorf("proven until %s, with an event of %d, which is applied: %t", until, e.Happened, want)
		}
	}
	proven(false)
	for _, to := range []runs.Status{runs.Paused, runs.Waiting} {
		b.turn(t, run, to)
		b.Until(t, run, func(r *runs.Run) bool { return to == runs.Waiting && waits(r) || to == runs.Paused && r.Detail == "" })
	}
	now.Store(false)
	b.DB.Exec(t, `UPDATE outcomes SET due = clock_now() WHERE status = 'failed'`)
	applied.Apply(t, b.proc, 0, []int64{one[int64](t, b, `SELECT event_id FROM outcomes WHERE status = 'failed'`)})
	if got := b.ended(t, run); got.Status != runs.Done || got.Detail != "" || got.Counts[reconcile.Missing] != int64(len(b.api.h.Events)) {
		t.Errorf("%s with %v: %q", got.Status, got.Counts, got.Detail)
	}
	proven(true)
}

// badCalls cannot bear an object's name.
type badCalls struct{ sim.Provider }

func (badCalls) Fetch(*provider.Source, *provider.API, string, string, string) (provider.Call, bool) {
	panic("a name nobody thought of")
}

// A sweep asks for objects beside its own goroutine. A panic there fails the run and not the
// process.
func TestASweepWhoseReaderPanics(t *testing.T) {
	t.Parallel()
	b := newWorld(t, 210, living)
	b.api.version = sim.Named // so that each object is asked for by its name
	b.carry(t, b.runnerOf(func(s *reconcile.Source) { s.Reader, s.API.Version = badCalls{}, sim.Named }))
	b.fails(t, reconcile.Order{What: reconcile.Objects}, "panicked", "nobody thought of")
}

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
	f.through(t, proofless{f.reads.Caller, &asked, &well})
	run := f.order(t, reconcile.Order{What: reconcile.Objects, Type: "milestone"})
	r := f.Until(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, "502") || r.Status.Final() })
	if n := f.count(t, `SELECT coalesce(sum(remaining), 0) FROM sweeps`); r.Status.Final() || n != 0 || !asked.Load() {
		t.Errorf("%s with %d left, asked %t: %s", r.Status, n, asked.Load(), r.Detail)
	}
	well.Store(true)
	counted(t, f.ended(t, run), counts{reconcile.Seen: 4, reconcile.Equal: 3, reconcile.Ghosts: 1, reconcile.Mended: 1})
}
