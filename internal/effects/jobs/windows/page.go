package windows

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	// certainSQL selects objects that are certain, or do not exist any more.
	certainSQL = `(o.object_id IS NULL OR NOT o.ambiguous AND o.version_at > -9223372036854775808)`

	// lockRuleSQL locks a rule's row for one transaction. If another process has locked it, that
	// one does the work.
	lockRuleSQL = `
SELECT w.source, w.decided_at, w.window_start, w.window_end, w.account, w.object_id, w.collected_until,
	w.changes_until, w.summary, clock_now()
FROM effect_windows w JOIN sources s ON s.number = w.source
WHERE w.rule = $1 AND s.name = $2 AND w.object_type = $3 AND w.cron = $4 AND w.time_zone = $5
	FOR UPDATE OF w SKIP LOCKED`

	// objectsSQL finds the next objects, up to a count and a size in bytes.
	objectsSQL = `
SELECT account, object_id, up_to FROM (
  SELECT p.account, p.object_id, p.size, sum(p.size) OVER (ORDER BY p.account, p.object_id) AS up_to FROM (
    SELECT o.account, o.object_id, coalesce(pg_column_size(o.state), 0) AS size FROM objects o
    WHERE o.source = $1 AND o.object_type = $2 AND (o.account, o.object_type, o.object_id) > ($3, $2, $4)
    	ORDER BY o.account, o.object_type, o.object_id LIMIT $5) p) q
WHERE up_to - size < $6 ORDER BY account, object_id`

	advanceSQL = `
UPDATE effect_windows SET decided_at = $6, window_start = $7, window_end = $8, account = $9, object_id = $10,
	collected_until = $11, changes_until = $12, summary = $13,
	clock_seconds = coalesce((SELECT seconds FROM effect_schedule_clock), 0)
WHERE rule = $1 AND source = $2 AND object_type = $3 AND cron = $4 AND time_zone = $5`

	deferSQL = `
INSERT INTO effect_window_waits (rule, source, object_type, window_start, window_end, account, object_id)
SELECT $1, $2, $3, $4, $5, d.account, d.id FROM unnest($6::text[], $7::text[]) AS d(account, id) ON CONFLICT DO NOTHING`

	// deferredSQL finds deferred objects that are certain now or do not exist any more, up to a
	// count and a size in bytes.
	deferredSQL = `
SELECT account, object_id, up_to, window_start, window_end FROM (
  SELECT p.*, sum(p.size) OVER (ORDER BY p.account, p.object_id, p.window_end, p.window_start) AS up_to FROM (
    SELECT v.account, v.object_id, v.window_start, v.window_end, coalesce(pg_column_size(o.state), 0) AS size
    	FROM effect_window_waits v LEFT JOIN objects o USING (source, account, object_type, object_id)
    WHERE v.rule = $1 AND v.source = $2 AND v.object_type = $3 AND ` + certainSQL + `
    ORDER BY v.account, v.object_id, v.window_end, v.window_start LIMIT $4) p) q
WHERE up_to - size < $5 ORDER BY account, object_id, window_end, window_start`

	deleteDeferredSQL = `
DELETE FROM effect_window_waits v USING unnest($4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[]) AS
	d(account, id, window_start, window_end)
WHERE v.rule = $1 AND v.source = $2 AND v.object_type = $3 AND v.account = d.account AND v.object_id = d.id
	AND v.window_start = d.window_start AND v.window_end = d.window_end`
)

// pageTx is one transaction of a rule. It evaluates some objects of a window, or some deferred
// objects.
type pageTx struct {
	*Scheduler
	rule           *rules.Rule
	source         int32
	doneUntil, now time.Time
	// start and end are the window; nil if none is open.
	start, end  *time.Time
	account, id string
	// collectedUntil and changesUntil are numbers of changes, for a rule with a summary: the
	// changes of the window are collected up to the first, and end with the second.
	collectedUntil, changesUntil *int64

	skippedFrom time.Time
	// windowDone reports that the window is complete; more reports that the rule has more to do at
	// once.
	windowDone, more bool
	planned          effects.PlanResult
	// dropped counts the windows of uncertain objects that were dropped; oldestDropped is the end
	// of the first.
	dropped       int64
	oldestDropped *time.Time
}

// processPage evaluates a rule for its next objects. It advances the rule in the same transaction
// that plans the effects, so that a crash repeats no object and skips none. more reports that there
// may be more to do at once, and hasTime that this may wait for a pause.
func (a *Scheduler) processPage(ctx context.Context, rule *rules.Rule) (more, hasTime bool, err error) {
	var t *pageTx
	err = postgres.InTx(ctx, a.Pool, "evaluate a rule on a schedule", a.Settings.TxTimeout,
		func(ctx context.Context, tx pgx.Tx) error {
			t = &pageTx{Scheduler: a, rule: rule}
			locked, err := t.lockRule(ctx, tx)
			if err != nil || !locked {
				return err
			}
			if t.end == nil {
				return t.processDeferred(ctx, tx)
			}
			return t.processWindow(ctx, tx)
		})
	if err != nil {
		return false, false, err
	}
	t.logCommitted()
	return t.more, t.hasTime(), nil
}

// hasTime reports that the window ended a short time ago, so that pauses neither delay its effects
// much nor let windows pile up.
func (t *pageTx) hasTime() bool {
	if t.end == nil {
		return false
	}
	age, interval := t.now.Sub(*t.end), t.rule.Schedule.Times.Next(*t.end).Sub(*t.end)
	return age >= 0 && age < min(t.Settings.PausedAge, interval/2)
}

// lockRule locks the rule's row and chooses the next window: one that has ended, and whose events
// are all applied.
func (t *pageTx) lockRule(ctx context.Context, tx pgx.Tx) (locked bool, err error) {
	s := t.rule.Schedule
	var summary string
	err = tx.QueryRow(ctx, lockRuleSQL, t.rule.Name, t.rule.Source, t.rule.Type, s.Cron, s.TimeZone).Scan(&t.source,
		&t.doneUntil, &t.start, &t.end, &t.account, &t.id, &t.collectedUntil, &t.changesUntil, &summary,
		&t.now)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("lock the rule's row: %w", err)
	}
	if summary != t.rule.Summary.Identity() { // what was collected belongs to another summary
		t.collectedUntil, t.changesUntil = nil, nil
	}
	if t.end != nil {
		return true, nil
	}
	end, skippedFrom := s.NextWindow(t.doneUntil, t.now)
	if end.IsZero() {
		return true, nil
	}
	if lastIDBefore(end) > t.frozenID {
		return true, nil // the window ended only now: the next tick evaluates it
	}
	applied, err := apply.Applied(ctx, tx, t.source, end)
	if err != nil || !applied { // wait, so that events received while no process ran are part of their window
		return true, err
	}
	start := s.WindowStart(end)
	if t.rule.Summary != nil {
		numbered, err := t.openChanges(ctx, tx, start, end)
		if err != nil || !numbered {
			return true, err
		}
	}
	t.start, t.end, t.skippedFrom = &start, &end, skippedFrom
	return true, nil
}

// target is an object that a rule is evaluated for, in a window.
type target struct {
	key        versioning.Key
	start, end time.Time
	object     *versioning.Object
	// summary is the rule's summary of other objects. summaryErr is set if it cannot be made.
	summary    []byte
	summaryErr error
}

// processWindow collects the changes of the window, if the rule has a summary of them. Then it
// evaluates the next objects of the window.
func (t *pageTx) processWindow(ctx context.Context, tx pgx.Tx) error {
	if collected, err := t.collectChanges(ctx, tx); err != nil || !collected {
		return err
	}
	var all []target
	var size int64
	k := versioning.Key{Source: t.source, Type: t.rule.Type}
	if err := postgres.ForEach(ctx, tx, objectsSQL, []any{t.source, t.rule.Type, t.account, t.id,
		t.Settings.PageObjects, t.Settings.PageBytes}, []any{&k.Account, &k.ID, &size}, func() error {
		all = append(all, target{key: k, start: *t.start, end: *t.end})
		return nil
	}); err != nil {
		return fmt.Errorf("list objects: %w", err)
	}
	done, uncertain, err := t.evaluateTargets(ctx, tx, all)
	if err != nil {
		return err
	}
	var accounts, ids []string
	for _, o := range uncertain {
		accounts, ids = append(accounts, o.key.Account), append(ids, o.key.ID)
	}
	if err := t.deferObjects(ctx, tx, accounts, ids); err != nil {
		return err
	}
	if err := t.deleteChanges(ctx, tx, done); err != nil {
		return err
	}
	evaluated := len(done) + len(uncertain)
	if t.more = true; evaluated < len(all) || t.mayHaveMore(len(all), size) {
		return t.advance(ctx, tx, t.doneUntil, t.start, t.end, all[evaluated-1].key)
	}
	t.windowDone = true
	return t.advance(ctx, tx, *t.end, nil, nil, versioning.Key{})
}

// mayHaveMore reports whether more objects may follow a page.
func (t *pageTx) mayHaveMore(objects int, size int64) bool {
	return objects == t.Settings.PageObjects || size >= t.Settings.PageBytes
}

func (t *pageTx) advance(ctx context.Context, tx pgx.Tx, doneUntil time.Time, start, end *time.Time,
	upTo versioning.Key) error {
	s := t.rule.Schedule
	if _, err := tx.Exec(ctx, advanceSQL, t.rule.Name, t.source, t.rule.Type, s.Cron, s.TimeZone, doneUntil, start, end,
		upTo.Account, upTo.ID, t.collectedUntil, t.changesUntil, t.rule.Summary.Identity()); err != nil {
		return fmt.Errorf("advance the rule: %w", err)
	}
	return nil
}

// processDeferred evaluates deferred objects that are certain now.
func (t *pageTx) processDeferred(ctx context.Context, tx pgx.Tx) error {
	var all []target
	o := target{key: versioning.Key{Source: t.source, Type: t.rule.Type}}
	var size int64
	err := postgres.ForEach(ctx, tx, deferredSQL, []any{t.rule.Name, t.source, t.rule.Type, t.Settings.PageObjects,
		t.Settings.PageBytes}, []any{&o.key.Account, &o.key.ID, &size, &o.start, &o.end}, func() error {
		all = append(all, o)
		return nil
	})
	if err != nil || len(all) == 0 {
		return err
	}
	done, uncertain, err := t.evaluateTargets(ctx, tx, all)
	if err != nil {
		return err
	}
	accounts, ids, starts, ends := columns(done)
	if _, err := tx.Exec(ctx, deleteDeferredSQL, t.rule.Name, t.source, t.rule.Type, accounts, ids, starts,
		ends); err != nil {
		return fmt.Errorf("delete %d deferred objects: %w", len(ids), err)
	}
	t.more = len(done) > 0 && (len(done)+len(uncertain) < len(all) || t.mayHaveMore(len(all), size))
	return t.deleteChanges(ctx, tx, done)
}

// evaluateTargets evaluates the rule for objects and plans their effects, until the time of a page
// is over. It returns the evaluated objects, and separately those whose state is uncertain, for
// which it planned nothing. The rest follows in the next page.
func (t *pageTx) evaluateTargets(ctx context.Context, tx pgx.Tx, all []target) (done, uncertain []target, err error) {
	if all, err = t.load(ctx, tx, all); err != nil {
		return nil, nil, err
	}
	var planned []effects.PlannedEffect
	began := time.Now()
	for i, o := range all {
		if i > 0 && time.Since(began) > t.Settings.PageTime {
			break
		}
		if isUncertain(o.object) {
			uncertain = append(uncertain, o)
			continue
		}
		done = append(done, o)
		planned = append(planned, t.evaluate(&o)...)
	}
	t.planned, err = effects.Plan(ctx, tx, 0, planned)
	return done, uncertain, err
}

// load reads objects, and their summaries if the rule has one, under the locks that changes and
// redactions take, so that the planned effects match the states at the commit. It may return fewer
// objects than it was given. all may contain an object twice.
func (t *pageTx) load(ctx context.Context, tx pgx.Tx, all []target) ([]target, error) {
	if len(all) == 0 {
		return nil, nil
	}
	all, locked, err := t.listChanged(ctx, tx, all)
	if err != nil {
		return nil, err
	}
	wanted := make([]versioning.LoadRequest, len(all))
	for i, o := range all {
		locked = append(locked, o.key)
		wanted[i] = versioning.LoadRequest{Key: o.key, MinAt: math.MinInt64, MaxAt: math.MaxInt64}
	}
	if err := apply.LockObjects(ctx, tx, locked); err != nil {
		return nil, err
	}
	objs, err := versioning.Load(ctx, tx, versioning.Mirror, wanted)
	if err != nil {
		return nil, err
	}
	for i, o := range objs {
		all[i].object = o
	}
	return all, t.summarize(ctx, tx, all)
}

// columns returns objects and their windows as arguments of statements.
func columns(all []target) (accounts, ids []string, starts, ends []time.Time) {
	for _, o := range all {
		accounts, ids, starts, ends = append(accounts, o.key.Account), append(ids, o.key.ID), append(starts, o.start),
			append(ends, o.end)
	}
	return accounts, ids, starts, ends
}

// isUncertain reports whether the state of an object is ambiguous, or unknown because only its
// existence has been observed.
func isUncertain(o *versioning.Object) bool {
	return o.Ambiguous || o.Exists && o.Version == versioning.NoVersion
}

// evaluate returns the effects that the rule wants for an object in a window. It returns none if
// the object does not exist, is deleted, or is redacted.
func (t *pageTx) evaluate(of *target) []effects.PlannedEffect {
	o := of.object
	if !o.Exists || o.State.Deleted || o.State.JSON == nil {
		return nil
	}
	return effects.EvaluateRule(t.rule, &effects.Transition{On: rules.OnSchedule,
		Window: effects.Window{Start: of.start, End: of.end}, Source: t.rule.Source, Number: t.source,
		Account: o.Key.Account, Type: o.Key.Type, ID: o.Key.ID, New: o.State.JSON,
		Summary: of.summary, SummaryErr: of.summaryErr})
}

// logCommitted logs the committed results.
func (t *pageTx) logCommitted() {
	log := t.Logger.With("rule", t.rule.Name)
	if !t.skippedFrom.IsZero() {
		log.Warn("windows skipped: more were missed than catch_up allows", "first_end", t.skippedFrom, "next_end",
			*t.end)
	}
	if t.windowDone {
		log.Info("window evaluated", "window_start", *t.start, "window_end", *t.end)
	}
	if t.dropped > 0 {
		log.Warn("windows of uncertain objects skipped: more were missed than catch_up allows, while the state "+
			"of the objects was ambiguous or unknown (postern verify counts them)", "windows", t.dropped, "first_end",
			*t.oldestDropped)
	}
	if n := t.planned.Collided; n > 0 {
		log.Warn("keys of effects belong to effects of other accounts: an operator has to act (postern "+
			"effects list --state needs_review)", "effects", n)
	}
	if n := t.planned.Review - t.planned.Collided; n > 0 {
		log.Warn("the rule failed: an operator has to act (postern effects list --state needs_review)", "effects", n)
	}
	if len(t.planned.DueDestinations) > 0 && t.NotifyDestinations != nil {
		t.NotifyDestinations(t.planned.DueDestinations)
	}
}
