package rebuild_test

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// moody reads no event until it is mended.
type moody struct {
	sim.Provider
	mended *atomic.Bool
}

func (m moody) Observe(src *provider.Source, e *provider.Stored) (provider.Observation, error) {
	if !m.mended.Load() {
		return provider.Observation{}, errUnread
	}
	return m.Provider.Observe(src, e)
}

// What a process died with while it tried it alone, before live events had reached it, is tried again too; what goes on failing ends the rebuild.
func TestWhatWasTriedAloneBeforeLiveIsNotLost(t *testing.T) {
	t.Parallel()
	for _, reads := range []provider.Provider{sim.Provider{}, failing{}} {
		t.Run(fmt.Sprintf("%T", reads), func(t *testing.T) {
			t.Parallel()
			r := seeded(t, 32)
			b := setup(t)
			ids := b.append(t, r, b.source, sim.Generate(r, kinds["own version"]).Events)
			run := b.ask(t, rebuild.Order{Source: b.source})
			taken(t, b.pool, "dead", time.Millisecond, rebuild.Job)
			b.exec(t, `INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, due, at, rule_version)
				SELECT e, $2, $3, 0, '', '', '', 'failed', 'tried alone; the attempt has not ended yet, or it ended the process', 1, now() + interval '1 hour', now(), 1
				FROM unnest($1::bigint[]) e`, ids[:10], run, b.source)
			b.start(t, "one", reads, quick())
			b.until(t, run, staged)
			b.live(t, r, ids)
			before := b.table(t, object, "objects")
			must(t, rebuild.Swap(t.Context(), b.operator, run))
			ended := b.until(t, run, func(r *runs.Run) bool { return r.Status.Final() })
			if _, fails := reads.(failing); fails != (ended.Status == runs.Failed && strings.Contains(ended.Detail,
				"was applied live and fails now") && strings.Contains(ended.Detail, errUnread.Error())) {
				t.Errorf("%s: %s", ended.Status, ended.Detail)
			}
			if diff := cmp.Diff(before, b.table(t, object, "objects")); diff != "" {
				t.Errorf("%v: %s", ended.Counts, diff)
			}
		})
	}
}

// What is in the mirror and dead now is shown first: a swap that nobody has looked at refuses, and one that somebody asked for then goes on.
func TestDeadOfWhatWasAppliedLive(t *testing.T) {
	t.Parallel()
	r := seeded(t, 33)
	b := setup(t)
	ids := b.append(t, r, b.source, sim.Generate(r, kinds["event time"]).Events)
	b.live(t, r, ids)
	before := b.table(t, whole, "objects")
	b.start(t, "one", dead{}, quick())
	ended := b.until(t, b.ask(t, rebuild.Order{Source: b.source, Swap: true}), func(r *runs.Run) bool { return r.Status.Final() })
	if ended.Status != runs.Failed || !strings.Contains(ended.Detail, fmt.Sprintf("%d events that were applied live are dead now", len(ids))) {
		t.Errorf("%s: %s", ended.Status, ended.Detail)
	}
	equal(t, "", before, b.table(t, whole, "objects"))
	run := b.ask(t, rebuild.Order{Source: b.source})
	b.until(t, run, staged)
	page, err := rebuild.Compare(t.Context(), b.operator, run, "", 100)
	if err != nil || page.Dead == nil || page.Dead.Events != int64(len(ids)) || page.Dead.Reason != "for a test" {
		t.Errorf("%+v, %v", page, err)
	}
	must(t, rebuild.Swap(t.Context(), b.operator, run))
	if ended := b.until(t, run, done); ended.Counts[rebuild.Emptied] == 0 {
		t.Errorf("%v", ended.Counts)
	}
}

// A source that is not in the configuration, or leaves it while its rebuild is under way, ends it,
// with the reason, instead of trying its events again without end.
func TestSourceThatLeavesTheConfiguration(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"", "copy"} { // at copy the order has been read
		r := seeded(t, 34)
		b := setup(t)
		b.live(t, r, b.append(t, r, b.source, sim.Generate(r, kinds["event time"]).Events))
		p := b.processor(t, nil)
		leave := func(name string) error {
			if name == step {
				p.Replace(map[string]processor.Source{})
			}
			return nil
		}
		must(t, leave(""))
		rebuilds := &rebuild.Runner{Pool: b.pool, Processor: p, Settings: quick()}
		rebuild.Step(rebuilds, leave)
		b.carry(t, "one", rebuilds)
		ended := b.until(t, b.ask(t, rebuild.Order{Source: b.source}), func(r *runs.Run) bool { return r.Status.Final() })
		if ended.Status != runs.Failed || !strings.Contains(ended.Detail, "is not in the configuration") {
			t.Errorf("%s: %s", ended.Status, ended.Detail)
		}
	}
}

// telling does something with each event, which then fails.
type telling struct {
	sim.Provider
	tell func()
}

func (l telling) Observe(*provider.Source, *provider.Stored) (provider.Observation, error) {
	l.tell()
	return provider.Observation{}, errUnread
}

// Between two tries of what fails a person is heard.
func TestPausedBetweenTries(t *testing.T) {
	t.Parallel()
	r := seeded(t, 35)
	b := setup(t)
	b.live(t, r, b.append(t, r, b.source, sim.Generate(r, kinds["event time"]).Events))
	run := b.ask(t, rebuild.Order{Source: b.source})
	settings := quick()
	settings.Again = time.Hour
	h := taken(t, b.pool, "one", time.Minute, rebuild.Job)
	var once sync.Once
	rebuilds := &rebuild.Runner{Pool: b.pool, Settings: settings, Processor: b.processor(t, telling{tell: func() {
		once.Do(func() {
			if err := runs.Change(t.Context(), b.operator, run, runs.Paused); err != nil {
				t.Error(err)
			}
		})
	}})}
	if status, err := rebuilds.Carry(t.Context(), h, slog.New(slog.DiscardHandler)); err != nil || status != runs.Paused {
		t.Errorf("%s, %v", status, err)
	}
}

// What has failed in the rebuild and enters the mirror before the swap, be it just before the lock,
// is in what is swapped, whichever way it enters, and however much has failed.
func TestWhatIsMendedLiveIsNotLost(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		// keys is how much a swap may look at alone.
		keys int
		// early: it enters before the swap is asked for; dead: it is final live, and enters by a
		// run that a person asks for; later: it is stored and fails only after the first look.
		early, dead, later bool
	}{
		"failed live": {keys: 1000}, "failed live, of many": {keys: 1}, "failed live, and mended early": {keys: 1000,
			early: true},
		"dead live": {keys: 1000, dead: true}, "stored later": {keys: 1000, later: true},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := seeded(t, 81)
			b := setup(t)
			m := moody{mended: new(atomic.Bool)}
			p := b.processor(t, m)
			evs := sim.Generate(r, kinds["event time"]).Events
			if m.mended.Store(c.later); c.later {
				b.live(t, r, b.append(t, r, b.source, evs))
			} else {
				applied.Apply(t, p, events.LiveRun, b.append(t, r, b.source, evs))
			}
			if c.dead {
				b.exec(t, `UPDATE outcomes SET status = 'dead', due = NULL`)
			}
			var before []string
			mend := sync.OnceFunc(func() {
				m.mended.Store(true)
				b.enter(t, p, c.dead)
				before = b.table(t, object, "objects")
			})
			late := sync.OnceFunc(func() { m.mended.Store(false); b.append(t, r, b.source, renamed(evs, "late_")) })
			rebuilds := &rebuild.Runner{Pool: b.pool, Processor: b.processor(t, m), Settings: quick()}
			rebuilds.Settings.Keys = c.keys
			rebuild.Step(rebuilds, func(name string) error {
				if name == "compare" && c.later {
					late()
				}
				if name == "lock" {
					mend()
				}
				return nil
			})
			b.carry(t, "one", rebuilds)
			run := b.ask(t, rebuild.Order{Source: b.source, Swap: !c.early})
			if c.early {
				b.until(t, run, staged)
				mend()
				must(t, rebuild.Swap(t.Context(), b.operator, run))
			}
			ended := b.until(t, run, done)
			if diff := cmp.Diff(before, b.table(t, object, "objects")); diff != "" || len(before) == 0 {
				t.Errorf("%v: %s", ended.Counts, diff)
			}
			if ended.Counts[rebuild.Processed] != int64(len(b.ids)) || ended.Counts[string(versioning.Failed)] != 0 {
				t.Errorf("%v", ended.Counts)
			}
		})
	}
}

// enter has all events applied live: what has failed is due, and what is dead tried again by a run that a person has asked for.
func (b *testBundle) enter(t *testing.T, p *processor.Processor, dead bool) {
	t.Helper()
	to := processor.Target{}
	if b.exec(t, `UPDATE outcomes SET due = now() - interval '1 s' WHERE run = 0 AND status = 'failed'`); dead {
		run, err := runs.Ask(t.Context(), b.operator, runs.Order{Job: "retry", Asked: struct{}{}})
		must(t, err)
		to.Again = run
	}
	must(t, errOf(p.ApplyStored(t.Context(), to, b.ids, false)))
	b.exec(t, `UPDATE runs SET status = 'done', ended_at = clock_now() WHERE run = $1`, to.Again)
}

// recorder keeps the statements that are sent between a swap's lock and its end, with their parameters.
type recorder struct {
	on   atomic.Bool
	mu   sync.Mutex
	sent []pgx.TraceQueryStartData
}

func (r *recorder) TraceQueryStart(ctx context.Context, _ *pgx.Conn, q pgx.TraceQueryStartData) context.Context {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.on.Load() && rebuild.Looks(q.SQL) {
		r.sent = append(r.sent, q)
	}
	return ctx
}

func (r *recorder) TraceQueryEnd(context.Context, *pgx.Conn, pgx.TraceQueryEndData) {}

// failedSQL has many events fail in a run that are dead live, among more that do not.
const failedSQL = `
INSERT INTO outcomes (event_id, run, source, object, account, object_type, object_id, status, reason, attempts, due, at, rule_version)
SELECT g, r, %[1]d, g, '', 'thing', 'filler_' || g, CASE WHEN g %% 10 > 0 THEN 'applied' WHEN r = 0 OR g %% 20 = 0 THEN 'dead' ELSE 'failed' END,
  CASE WHEN g %% 40 = 0 THEN 'no' ELSE 'given up after 2 attempts' END, 1, CASE WHEN r > 0 AND g %% 20 = 10 THEN now() END, now(), 1
FROM generate_series(1, 200000) g, unnest(ARRAY[0, %[2]d]) r`

// picky reads no event of some objects.
type picky struct{ sim.Provider }

func (picky) Observe(src *provider.Source, e *provider.Stored) (provider.Observation, error) {
	if strings.Contains(string(e.Body), "unread_") {
		return provider.Observation{}, errUnread
	}
	return sim.Provider{}.Observe(src, e)
}

// However much has failed for good, a swap looks at little of it while it holds up live events; and all of it is looked for by index, never through the whole ledger.
func TestMuchHasFailed(t *testing.T) {
	t.Parallel()
	r := seeded(t, 82)
	b := setup(t)
	evs := sim.Generate(r, kinds["event time"]).Events
	b.live(t, r, b.append(t, r, b.source, evs[3:]))
	unread := b.append(t, r, b.source, renamed(evs[:3], "unread_"))
	applied.Apply(t, b.processor(t, failing{}), events.LiveRun, unread)
	config, rec := b.pool.Config(), &recorder{}
	config.ConnConfig.Tracer = rec
	pool, err := pgxpool.NewWithConfig(t.Context(), config)
	must(t, err)
	t.Cleanup(pool.Close)
	rebuilds := &rebuild.Runner{Pool: pool, Processor: b.processor(t, picky{}), Settings: quick()}
	rebuilds.Settings.Keys = 1000
	rebuild.Step(rebuilds, func(name string) error { rec.on.Store(name == "locked"); return nil })
	b.carry(t, "one", rebuilds)
	run := b.ask(t, rebuild.Order{Source: b.source})
	b.until(t, run, staged)
	b.exec(t, fmt.Sprintf(failedSQL, b.source, run))
	b.exec(t, `ANALYZE outcomes`)
	must(t, rebuild.Swap(t.Context(), b.operator, run))
	b.until(t, run, done)
	rec.on.Store(false)
	if len(rec.sent) != 3 {
		t.Errorf("%d statements look for what has failed", len(rec.sent))
	}
	for _, q := range rec.sent {
		if read := b.read(t, q.SQL, q.Args...); read > 5*len(b.ids) || slices.Contains(rebuild.WholeSQL(), q.SQL) {
			t.Errorf("under the lock %d outcomes are read by%s", read, q.SQL)
		}
	}
	for i, sql := range rebuild.WholeSQL() {
		if read := b.read(t, sql, [][]any{{run, 0, 1000}, {run}}[i]...); read > 200_000 || read < 10_000 {
			t.Errorf("%d outcomes are read by%s", read, sql)
		}
	}
}

// read is how many outcomes a statement reads by index, with a plan for these parameters or for all; it reads none from end to end.
func (b *testBundle) read(t *testing.T, sql string, args ...any) (most int) {
	t.Helper()
	for _, plan := range []string{"force_custom_plan", "force_generic_plan"} {
		tx, err := b.db.Pool.Begin(t.Context())
		must(t, err)
		defer func() { _ = tx.Rollback(context.Background()) }()
		// What other processes read for this one is not counted here.
		execSQL(t, tx, `SET LOCAL max_parallel_workers_per_gather = 0; SET LOCAL plan_cache_mode = `+plan)
		execSQL(t, tx, sql, args...)
		var scans, read int
		err = tx.QueryRow(t.Context(), `SELECT seq_scan, idx_tup_fetch FROM pg_stat_xact_user_tables WHERE relname = 'outcomes'`).Scan(&scans, &read)
		if err != nil || scans != 0 {
			t.Errorf("%s: %d scans of all outcomes, %v:%s", plan, scans, err, sql)
		}
		most = max(most, read)
	}
	return most
}

const hers = "ada.lovelace@example.org"

// thing is an event of an object at a time, with somebody's address.
func thing(object string, at int64, address string) sim.Event {
	text := fmt.Sprintf(`{"id": "%s%d%s", "type": "thing.updated", "object_id": %[1]q, "rank": 1, "time": %[4]d, "unit": 1, "object": {"email": %[3]q, "at": %[2]d}}`, object, at, address, sim.Start+at)
	return sim.Event{Object: object, Body: []byte(text), ReceivedAt: time.Now()}
}

// redact carries out a redaction to its end.
func (b *testBundle) redact(t *testing.T, o redaction.Order) {
	t.Helper()
	must(t,
		errOf(runs.Ask(t.Context(), b.operator, runs.Order{Job: redaction.Job, Asked: o, Who: "me",
			Reason: "she asked for it"})))
	h := taken(t, b.pool, "redacts", time.Minute, redaction.Job)
	if status, err := (&redaction.Runner{Pool: b.pool, Processor: b.processor(t, nil)}).Carry(t.Context(), h, slog.New(slog.DiscardHandler)); err != nil || status != runs.Running {
		t.Fatal(status, err)
	}
	must(t, h.End(t.Context(), runs.Done, ""))
}

// What is redacted while a rebuild has it staged, up to the last moment before the lock, does not come back by the swap, nor is the object emptied by this rebuild or
// the next.
func TestRedactedBesideARebuild(t *testing.T) {
	t.Parallel()
	for _, keys := range []int{0, 1000} {
		for _, late := range []bool{false, true} {
			t.Run(fmt.Sprintf("%d keys, late %t", keys, late), func(t *testing.T) {
				t.Parallel()
				b := setup(t)
				r := seeded(t, 5)
				ids := b.append(t, r, b.source, []sim.Event{thing("hers", 1, "a@else.org"), thing("other", 1, "a@else.org"), thing("tied", 7, "tied@else.org"), thing("wholly", 3, hers)})
				ids = append(ids, b.append(t, r, b.source, []sim.Event{thing("hers", 5, hers)})...)
				ids = append(ids, b.append(t, r, b.source, []sim.Event{thing("tied", 7, hers)})...)
				b.live(t, r, ids)
				order := redaction.Order{Events: ids[4:], Objects: []redaction.Object{{Source: b.source, Type: "thing", ID: "wholly"}}}
				s := rebuild.DefaultSettings
				s.Keys = keys
				rebuilds := &rebuild.Runner{Pool: b.pool, Processor: b.processor(t, nil), Settings: s}
				redacted := false
				if late {
					rebuild.BeforeLock(rebuilds, func() {
						if !redacted {
							redacted = true
							b.redact(t, order)
						}
					})
				}
				stop := b.carry(t, "p", rebuilds)
				run := b.ask(t, rebuild.Order{Source: b.source})
				b.until(t, run, staged)
				if !late {
					b.redact(t, order)
				}
				must(t, rebuild.Swap(t.Context(), b.operator, run))
				b.until(t, run, done)
				want := []string{"hers null 5", "other a@else.org 1", "tied tied@else.org 7", "wholly null 3"}
				shows := func(when string) {
					got := b.rows(t, `SELECT o.object_id || ' ' || coalesce(o.state->>'email', 'null') || ' ' || (o.version_at - $1) FROM objects o ORDER BY 1`, sim.Start)
					if !slices.Equal(got, want) {
						t.Errorf("%s: %v, want %v", when, got, want)
					}
					for _, table := range b.rows(t, `SELECT oid::regclass::text FROM pg_class WHERE relnamespace = 'postern'::regnamespace AND relkind = 'r' ORDER BY 1`) {
						if b.number(t,
							`SELECT count(*) FROM `+table+` t WHERE t::text ILIKE '%lovelace%' OR t::text ILIKE '%' || encode('lovelace', 'hex') || '%'`) > 0 {
							t.Errorf("%s: left in %s", when, table)
						}
					}
				}
				shows("after the swap")
				b.rebuilt(t, b.source)
				shows("after another")
				stop()
			})
		}
	}
}
