package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"golang.org/x/sync/errgroup"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Looks makes the looks that objects owe. Any number of processes may: a hint is one's at a time.
type Looks struct {
	*Runner
	// ID names this process.
	ID     string
	Logger *slog.Logger
	// Every is how often to look for hints.
	Every time.Duration

	entering chan struct{}
}

// Entering is how many looks one process enters into the mirror at once, of all its sources: each holds a connection, and may wait with it for a swap.
const Entering = 4

// Run makes looks until ctx ends, of the sources as they are then. Trouble is logged and tried again.
func (l *Looks) Run(ctx context.Context) error {
	l.entering = make(chan struct{}, Entering)
	for ctx.Err() == nil {
		these, cancel := context.WithCancel(ctx)
		l.Sources.replaced.Store(&cancel)
		var wg sync.WaitGroup
		for _, s := range l.Sources.All() {
			wg.Go(func() { l.source(these, s) })
		}
		<-these.Done()
		wg.Wait()
		cancel()
	}
	return nil
}

// source makes the looks of one source until ctx ends.
func (l *Looks) source(ctx context.Context, s *Source) {
	h := &hinted{fetcher: fetcher{Runner: l.Runner, source: s, proof: []byte(`{"scheme":"api"}`)}, looks: l}
	for ctx.Err() == nil {
		n, err := h.pass(ctx)
		if err != nil && ctx.Err() == nil {
			l.Logger.Warn("looks not made; tried again", "source", s.Name, "error", err)
		}
		if n < h.atOnce() || err != nil {
			runs.Pause(ctx, l.Every)
		}
	}
}

// hinted makes the looks of one source.
type hinted struct {
	fetcher
	looks *Looks
	// from is where the next pass goes on to look for objects that owe a look, and parked for parked hints whose objects owe none any more.
	from, parked versioning.Key
	// woken: the parked hints were looked through.
	woken bool
}

const (
	// gatherObjects is how many objects that owe a look one pass looks at, and takeHints how many hints it takes at most.
	gatherObjects, takeHints = 1000, 20
	// afterLook is when to see again whether an object owes nothing any more, where its look was left to the auditor.
	afterLook = 2 * time.Minute
	// firstWait and lastWait are the least and the most that a hint waits after an attempt that came to nothing, twice as long each time.
	firstWait, lastWait = 2 * time.Second, time.Hour
)

// pass gathers hints, and makes the looks whose time has come. n is how many hints it took.
func (h *hinted) pass(ctx context.Context) (n int, err error) {
	defer func() {
		if p := recover(); p != nil { // the provider's code is asked which parked hints there is a call for
			err = panicked(p)
		}
	}()
	if !h.woken {
		if err := h.opened(ctx); err != nil {
			return 0, err
		}
		if err := h.wake(ctx); err != nil {
			return 0, err
		}
		h.woken = true
	}
	if err := h.gather(ctx); err != nil {
		return 0, err
	}
	if err := h.forget(ctx); err != nil {
		return 0, err
	}
	hints, err := h.take(ctx)
	if err != nil {
		return 0, err
	}
	var g errgroup.Group
	for _, one := range hints {
		g.Go(func() error {
			err := h.settle(ctx, one)
			if err != nil {
				h.layBack(ctx, one, err)
			}
			return err
		})
	}
	return len(hints), g.Wait()
}

// atOnce is how many looks are made at once: all that were taken, since the others' lease would run out meanwhile.
func (h *hinted) atOnce() int { return min(max(1, h.source.API.Concurrency), takeHints) }

// gatherSQL makes hints of objects that owe a look, some at a time in the order of their keys. One that waits for late events need not wait any more, and stays owed for them if the doubt ends.
// One that is parked gets another try where its object has come into doubt anew.
// What has its hint already is left out before the insert, which would lock each row that it meets.
const gatherSQL = `
WITH page AS MATERIALIZED (
  SELECT o.account, o.object_type, o.object_id, o.look_after FROM objects o
  WHERE o.source = $1 AND o.look_after <> 0 AND (o.account, o.object_type, o.object_id) > ($2, $3, $4)
  ORDER BY o.account, o.object_type, o.object_id LIMIT $5
), fresh AS MATERIALIZED (
  SELECT p.* FROM page p WHERE (SELECT h.gaps IS NULL AND h.due < 'infinity' OR h.after >= p.look_after FROM hints h
    WHERE h.source = $1 AND h.account = p.account AND h.object_type = p.object_type AND h.object_id = p.object_id LIMIT 1) IS NOT true
), made AS (
  INSERT INTO hints AS h (source, account, object_type, object_id, reason, made_at, due, after)
  SELECT $1, p.account, p.object_type, p.object_id, 'in doubt', n.at, n.at, p.look_after FROM fresh p, (SELECT clock_now() AS at) n
  ORDER BY p.account, p.object_type, p.object_id
  ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET reason = CASE WHEN h.wanted_by = '' THEN excluded.reason ELSE h.reason END, due = excluded.due, after = excluded.after
  WHERE (h.gaps IS NOT NULL OR h.due = 'infinity') AND h.after < excluded.after
)
SELECT p.account, p.object_type, p.object_id FROM page p ORDER BY p.account DESC, p.object_type DESC, p.object_id DESC LIMIT 1`

func (h *hinted) gather(ctx context.Context) error {
	err := h.Pool.QueryRow(ctx, gatherSQL, h.source.Number, h.from.Account, h.from.Type, h.from.ID, gatherObjects).Scan(&h.from.Account, &h.from.Type, &h.from.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		h.from, err = versioning.Key{}, nil
	}
	if err != nil {
		return fmt.Errorf("gather hints: %w", err)
	}
	return nil
}

// hint is a look that is to be made.
type hint struct {
	key versioning.Key
	// wantedBy is who wanted it, "" where the mirror did, and reason why.
	wantedBy, reason string
	// madeAt moves with each reason to look that comes.
	madeAt   time.Time
	attempts int
	// gaps: changes were not seen, and their events have not come in time.
	gaps bool
	// after is the point of the provider's time after which the look must begin, 0 where the object owes none.
	after int64
}

// takeHintsSQL takes hints that are due, with what their objects owe now. $3 names who takes. The clock is read by a subquery, once: a condition on a volatile function is none for an index.
const takeHintsSQL = `
WITH due AS MATERIALIZED (
  SELECT h.account, h.object_type, h.object_id FROM hints h WHERE h.source = $1 AND h.due <= (SELECT clock_now()) AND h.taken_until < (SELECT clock_now())
  ORDER BY h.due LIMIT $2 FOR UPDATE SKIP LOCKED
), taken AS (
  UPDATE hints h SET taken_by = $3, taken_until = clock_now() + $4::interval FROM due d
  WHERE h.source = $1 AND h.account = d.account AND h.object_type = d.object_type AND h.object_id = d.object_id
  RETURNING h.account, h.object_type, h.object_id, h.wanted_by, h.reason, h.made_at, h.attempts, h.gaps IS NOT NULL AS gaps
)
SELECT t.account, t.object_type, t.object_id, t.wanted_by, t.reason, t.made_at, t.attempts, t.gaps, coalesce(o.look_after, 0) FROM taken t LEFT JOIN LATERAL (
  SELECT o.look_after FROM objects o WHERE o.source = $1 AND o.account = t.account AND o.object_type = t.object_type AND o.object_id = t.object_id LIMIT 1) o ON true`

func (h *hinted) take(ctx context.Context) ([]hint, error) {
	rows, err := h.Pool.Query(ctx, takeHintsSQL, h.source.Number, h.atOnce(), h.looks.ID, h.Settings.Lease)
	if err != nil {
		return nil, fmt.Errorf("take hints: %w", err)
	}
	var all []hint
	one := hint{key: versioning.Key{Source: h.source.Number}}
	_, err = pgx.ForEachRow(rows, []any{&one.key.Account, &one.key.Type, &one.key.ID, &one.wantedBy, &one.reason, &one.madeAt, &one.attempts, &one.gaps, &one.after}, func() error {
		all = append(all, one)
		return nil
	})
	if err != nil {
		return nil, fmt.Errorf("take hints: %w", err)
	}
	return all, nil
}

// settle makes the look of a hint, unless nothing owes it any more or it is too early, and says when to see to it again.
func (h *hinted) settle(ctx context.Context, one hint) (err error) {
	defer func() {
		if p := recover(); p != nil { // as in Carry
			err = h.put(ctx, one, lastWait, one.attempts+1, panicked(p))
		}
	}()
	if one.after == 0 && one.wantedBy == "" && !one.gaps {
		return h.drop(ctx, one)
	}
	if wait := h.early(one); wait > 0 {
		return h.put(ctx, one, wait, one.attempts, nil)
	}
	within, cancel := lifecycle.WithTimeout(ctx, "look within the lease", h.Settings.Lease/2) // a budget may keep it for longer
	defer cancel()
	d, err := h.lookFor(within, one)
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if why := one.hopeless(err); why != nil {
		return h.park(ctx, one, parking{why: why, after: one.after})
	}
	var spent *spentError
	if errors.As(err, &spent) {
		return h.put(ctx, one, spent.wait, one.attempts, spent)
	}
	if err != nil { // the API's trouble: another look later
		return h.put(ctx, one, waitAfter(one.attempts), one.attempts+1, err)
	}
	if one.after == 0 { // of an object that owes nothing, which somebody has named
		nobodys, err := h.nobodys(ctx, d)
		if err != nil {
			return err
		}
		if nobodys {
			h.looks.Logger.Info("look of an object that nobody has ever had; nothing is appended", "source", h.source.Name, "account", one.key.Account, "type", one.key.Type, "object", one.key.ID,
				"who", one.wantedBy, "reason", one.reason)
			return h.drop(ctx, one)
		}
	}
	return h.enter(ctx, within, one, d)
}

// errNoPlace: a look that waits for longer may be another process's by then.
var errNoPlace = errors.New("the looks before it are still being entered into the mirror, as behind the swap of a rebuild; it is made again")

// enter appends a look and applies it, where it gets a place for that within the time that its hint is this process's.
func (h *hinted) enter(ctx, within context.Context, one hint, d *events.Delivery) error {
	select {
	case h.looks.entering <- struct{}{}:
		defer func() { <-h.looks.entering }()
	case <-within.Done():
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return h.put(ctx, one, waitAfter(one.attempts), one.attempts, errNoPlace)
	}
	err := h.few(ctx, one, d)
	if errors.As(err, new(*manyError)) {
		return h.put(ctx, one, lastWait, one.attempts+1, err)
	}
	if err != nil {
		return err
	}
	receipts, err := events.Append(ctx, h.Log, []events.Delivery{*d})
	if err != nil {
		return err
	}
	if _, err := h.Processor.Enter(ctx, []int64{receipts[0][0].ID}); err != nil {
		return err
	}
	return h.looked(ctx, one, d, receipts[0][0].ID)
}

// lookFor makes the look of a hint; who wanted it is kept with it.
func (h *hinted) lookFor(ctx context.Context, one hint) (*events.Delivery, error) {
	f := h.fetcher
	if one.wantedBy != "" {
		proof, err := wished(one)
		if err != nil {
			return nil, err
		}
		f.proof, f.wished, f.asked = proof, true, true
	}
	return f.look(ctx, one.key)
}

// early is how long the look must still wait: it must begin after what the object owes it for is past, on the provider's clock, however slow that call is.
func (h *hinted) early(one hint) time.Duration {
	if one.after == 0 {
		return 0
	}
	begin := time.UnixMicro(one.after).Add(time.Second + h.source.Caller.Longest() + h.source.Reader.Lag())
	return min(max(0, begin.Sub(h.source.Caller.Now())), lastWait) // a simulated clock may be years ahead
}

// waitAfter is how long to wait after so many attempts.
func waitAfter(attempts int) time.Duration {
	return min(firstWait<<min(attempts, 20), lastWait)
}

const dropSQL = `
WITH gone AS (
  DELETE FROM hints WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4 AND taken_by = $5 AND made_at = $6 RETURNING source
)
UPDATE hints SET taken_by = '', taken_until = '-infinity'
WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4 AND taken_by = $5 AND NOT EXISTS (SELECT FROM gone)`

// drop forgets a hint that nobody owes any more. Where another reason has come meanwhile, it is laid back for that.
func (h *hinted) drop(ctx context.Context, one hint) error {
	if _, err := h.Pool.Exec(ctx, dropSQL, h.source.Number, one.key.Account, one.key.Type, one.key.ID, h.looks.ID, one.madeAt); err != nil {
		return fmt.Errorf("drop hint: %w", err)
	}
	return nil
}

const putSQL = `
UPDATE hints SET due = clock_now() + $6::interval, taken_by = '', taken_until = '-infinity', attempts = $7, error = $8
WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4 AND taken_by = $5`

// put lays a hint back for a while.
func (h *hinted) put(ctx context.Context, one hint, wait time.Duration, attempts int, why error) error {
	text := ""
	if why != nil {
		text = events.Text(why.Error())
	}
	if why != nil && !errors.As(why, new(*spentError)) { // which is told once for all
		h.looks.Logger.Warn("look not made; tried again", "source", h.source.Name, "type", one.key.Type, "object", one.key.ID, "wait", wait, "error", why)
	}
	if _, err := h.Pool.Exec(ctx, putSQL, h.source.Number, one.key.Account, one.key.Type, one.key.ID, h.looks.ID, wait, attempts, text); err != nil {
		return fmt.Errorf("lay hint back: %w", err)
	}
	return nil
}

// layBackWithin bounds laying a hint back of a look that did not come to its end: a stop waits for it.
const layBackWithin = time.Second

// layBack lays back the hint of a look that did not come to its end: at once where another configuration or a stop broke it off, after a quarter of the lease where it met trouble of our own, since it may have made its call and
// left an event. It costs no attempt. Where laying back fails, the lease runs out by itself.
func (h *hinted) layBack(ctx context.Context, one hint, why error) {
	wait, text := h.Settings.Lease/4, events.Text(why.Error())
	if ctx.Err() != nil {
		wait, text = 0, ""
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), layBackWithin)
	defer cancel()
	_, _ = h.Pool.Exec(ctx, putSQL, h.source.Number, one.key.Account, one.key.Type, one.key.ID, h.looks.ID, wait, one.attempts, text)
}

// lookedSQL is whether a look has its outcome, and what the object owes now.
const lookedSQL = `
SELECT EXISTS (SELECT FROM outcomes o WHERE o.event_id = $5 AND o.run = 0 AND o.status <> 'failed'),
  EXISTS (SELECT FROM outcomes o WHERE o.event_id = $5 AND o.run = 0 AND starts_with(o.reason, $6)), coalesce((SELECT o.look_after FROM objects o WHERE o.source = $1 AND o.account = $2 AND o.object_type = $3 AND o.object_id = $4), 0)`

// looked forgets a hint whose look has left no doubt; where it has, another look follows, later each time, unless that would not find more.
func (h *hinted) looked(ctx context.Context, one hint, d *events.Delivery, event int64) error {
	var applied, older bool
	var owed int64
	if err := h.Pool.QueryRow(ctx, lookedSQL, h.source.Number, one.key.Account, one.key.Type, one.key.ID, event, versioning.WentBack).
		Scan(&applied, &older, &owed); err != nil {
		return fmt.Errorf("see what a look has left: %w", err)
	}
	switch {
	case !applied:
		return h.put(ctx, one, afterLook, one.attempts, nil)
	case owed == 0:
		return h.drop(ctx, one)
	case older && one.attempts >= olderAnswers:
		return h.park(ctx, one, parking{why: errWentBack, after: owed, granted: true})
	case owed == one.after: // the look was made late enough, and all is as it was before
		why, err := h.unfit(d)
		if err != nil {
			return err
		}
		if why != nil {
			return h.park(ctx, one, parking{why: why, after: owed, granted: true})
		}
	}
	return h.put(ctx, one, waitAfter(one.attempts), one.attempts+1, nil)
}
