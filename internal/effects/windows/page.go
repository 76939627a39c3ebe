package windows

import (
	"context"
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	// certain: an object is certain, or is no more.
	certain = `(o.object_id IS NULL OR NOT o.ambiguous AND o.version_at > -9223372036854775808)`

	// takeSQL has a rule's row for one transaction; another process that has it sees to what is due.
	takeSQL = `
SELECT w.source, w.decided_at, w.window_start, w.window_end, w.account, w.object_id, clock_now()
FROM effect_windows w JOIN sources s ON s.number = w.source
WHERE w.rule = $1 AND s.name = $2 AND w.object_type = $3 AND w.cron = $4 AND w.time_zone = $5 FOR UPDATE OF w SKIP LOCKED`

	// objectsSQL finds the next objects: some, until there are so many bytes of them.
	objectsSQL = `
SELECT account, object_id, up_to FROM (
  SELECT p.account, p.object_id, p.size, sum(p.size) OVER (ORDER BY p.account, p.object_id) AS up_to FROM (
    SELECT o.account, o.object_id, coalesce(pg_column_size(o.state), 0) AS size FROM objects o
    WHERE o.source = $1 AND o.object_type = $2 AND (o.account, o.object_type, o.object_id) > ($3, $2, $4) ORDER BY o.account, o.object_type, o.object_id LIMIT $5) p) q
WHERE up_to - size < $6 ORDER BY account, object_id`

	moveSQL = `
UPDATE effect_windows SET decided_at = $6, window_start = $7, window_end = $8, account = $9, object_id = $10, asked = coalesce((SELECT seconds FROM effect_asking), 0)
WHERE rule = $1 AND source = $2 AND object_type = $3 AND cron = $4 AND time_zone = $5`

	waitSQL = `
INSERT INTO effect_window_waits (rule, source, object_type, window_start, window_end, account, object_id)
SELECT $1, $2, $3, $4, $5, d.account, d.id FROM unnest($6::text[], $7::text[]) AS d(account, id) ON CONFLICT DO NOTHING`

	// owedSQL finds objects that are certain now, or are no more: some, until there are so many bytes of them.
	owedSQL = `
SELECT account, object_id, up_to, window_start, window_end FROM (
  SELECT p.*, sum(p.size) OVER (ORDER BY p.account, p.object_id, p.window_end, p.window_start) AS up_to FROM (
    SELECT v.account, v.object_id, v.window_start, v.window_end, coalesce(pg_column_size(o.state), 0) AS size FROM effect_window_waits v LEFT JOIN objects o USING (source, account, object_type, object_id)
    WHERE v.rule = $1 AND v.source = $2 AND v.object_type = $3 AND ` + certain + `
    ORDER BY v.account, v.object_id, v.window_end, v.window_start LIMIT $4) p) q
WHERE up_to - size < $5 ORDER BY account, object_id, window_end, window_start`

	settledSQL = `
DELETE FROM effect_window_waits v USING unnest($4::text[], $5::text[], $6::timestamptz[], $7::timestamptz[]) AS d(account, id, window_start, window_end)
WHERE v.rule = $1 AND v.source = $2 AND v.object_type = $3 AND v.account = d.account AND v.object_id = d.id AND v.window_start = d.window_start AND v.window_end = d.window_end`
)

// turn is one transaction about a rule: some objects of a window, or some that were ambiguous in one.
type turn struct {
	*Asker
	rule         *rules.Rule
	source       int32
	decided, now time.Time
	// start and end are the window; zero: none is under way.
	start, end  *time.Time
	account, id string

	passed time.Time
	// over: the window was seen to; more: there is more to do at once.
	over, more bool
	planned    effects.Counted
	// givenUp is how many windows of objects in doubt were given up; oldest is the end of the first.
	givenUp int64
	oldest  *time.Time
}

// page sees to the next objects of a rule, and moves the rule on in the transaction that plans what it wants of them: whoever dies leaves what was before. more says that there may be more at once.
func (a *Asker) page(ctx context.Context, rule *rules.Rule) (more bool, err error) {
	var t *turn
	err = postgres.InTx(ctx, a.Pool, "ask a rule", a.Settings.Within, func(ctx context.Context, tx pgx.Tx) error {
		t = &turn{Asker: a, rule: rule}
		taken, err := t.take(ctx, tx)
		if err != nil || !taken {
			return err
		}
		if t.end == nil {
			return t.owed(ctx, tx)
		}
		return t.window(ctx, tx)
	})
	if err != nil {
		return false, err
	}
	t.tell()
	return t.more, nil
}

// take takes the rule's row, and says which window is next: one that is over, and of whose time all events are applied.
func (t *turn) take(ctx context.Context, tx pgx.Tx) (taken bool, err error) {
	s := t.rule.Schedule
	err = tx.QueryRow(ctx, takeSQL, t.rule.Name, t.rule.Source, t.rule.Type, s.Cron, s.TimeZone).Scan(&t.source, &t.decided, &t.start, &t.end, &t.account, &t.id, &t.now)
	if errors.Is(err, pgx.ErrNoRows) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("take its row: %w", err)
	}
	if t.end != nil {
		return true, nil
	}
	end, passed := s.Due(t.decided, t.now)
	if end.IsZero() {
		return true, nil
	}
	if last(end) > t.frozen {
		return true, nil // it is over since a moment: the next look sees to it
	}
	applied, err := processor.Applied(ctx, tx, t.source, end)
	if err != nil || !applied { // it waits, so that what came while nobody was there is in its window
		return true, err
	}
	start := s.Start(end)
	t.start, t.end, t.passed = &start, &end, passed
	return true, nil
}

// window sees to the next objects of the window.
func (t *turn) window(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, objectsSQL, t.source, t.rule.Type, t.account, t.id, t.Settings.Page, t.Settings.Bytes)
	if err != nil {
		return fmt.Errorf("list objects: %w", err)
	}
	var keys []versioning.Key
	var size int64
	k := versioning.Key{Source: t.source, Type: t.rule.Type}
	if _, err := pgx.ForEachRow(rows, []any{&k.Account, &k.ID, &size}, func() error { keys = append(keys, k); return nil }); err != nil {
		return fmt.Errorf("list objects: %w", err)
	}
	objs, err := load(ctx, tx, keys)
	if err != nil {
		return err
	}
	var intents []effects.Intent
	var accounts, ids []string // of those in doubt
	began := time.Now()
	seen := 0
	for _, o := range objs {
		if seen > 0 && time.Since(began) > t.Settings.Spend {
			break
		}
		seen++
		if doubtful(o) {
			accounts, ids = append(accounts, o.Key.Account), append(ids, o.Key.ID)
			continue
		}
		intents = append(intents, t.ask(o, *t.start, *t.end)...)
	}
	if err := t.wait(ctx, tx, accounts, ids); err != nil {
		return err
	}
	if t.planned, err = effects.Plan(ctx, tx, 0, intents); err != nil {
		return err
	}
	if t.more = true; seen < len(objs) || t.full(len(objs), size) {
		return t.move(ctx, tx, t.decided, t.start, t.end, keys[seen-1])
	}
	t.over = true
	return t.move(ctx, tx, *t.end, nil, nil, versioning.Key{})
}

// full says whether there may be objects behind a page.
func (t *turn) full(objects int, size int64) bool {
	return objects == t.Settings.Page || size >= t.Settings.Bytes
}

func (t *turn) move(ctx context.Context, tx pgx.Tx, decided time.Time, start, end *time.Time, upTo versioning.Key) error {
	s := t.rule.Schedule
	if _, err := tx.Exec(ctx, moveSQL, t.rule.Name, t.source, t.rule.Type, s.Cron, s.TimeZone, decided, start, end, upTo.Account, upTo.ID); err != nil {
		return fmt.Errorf("move on: %w", err)
	}
	return nil
}

// owed sees to objects that were in doubt in a window, and are not any more.
func (t *turn) owed(ctx context.Context, tx pgx.Tx) error {
	rows, err := tx.Query(ctx, owedSQL, t.rule.Name, t.source, t.rule.Type, t.Settings.Page, t.Settings.Bytes)
	if err != nil {
		return fmt.Errorf("list objects that it waits for: %w", err)
	}
	var keys []versioning.Key
	var starts, ends []time.Time
	k := versioning.Key{Source: t.source, Type: t.rule.Type}
	var size int64
	var start, end time.Time
	_, err = pgx.ForEachRow(rows, []any{&k.Account, &k.ID, &size, &start, &end}, func() error {
		keys, starts, ends = append(keys, k), append(starts, start), append(ends, end)
		return nil
	})
	if err != nil || len(keys) == 0 {
		return err
	}
	objs, err := load(ctx, tx, keys)
	if err != nil {
		return err
	}
	var intents []effects.Intent
	var accounts, ids []string
	var settledStarts, settledEnds []time.Time
	began := time.Now()
	seen := 0
	for i, o := range objs {
		if seen > 0 && time.Since(began) > t.Settings.Spend {
			break
		}
		seen++
		if doubtful(o) {
			continue // again, meanwhile
		}
		accounts, ids, settledStarts, settledEnds = append(accounts, o.Key.Account), append(ids, o.Key.ID), append(settledStarts, starts[i]), append(settledEnds, ends[i])
		intents = append(intents, t.ask(o, starts[i], ends[i])...)
	}
	if _, err := tx.Exec(ctx, settledSQL, t.rule.Name, t.source, t.rule.Type, accounts, ids, settledStarts, settledEnds); err != nil {
		return fmt.Errorf("keep that %d objects are seen to: %w", len(ids), err)
	}
	t.planned, err = effects.Plan(ctx, tx, 0, intents)
	t.more = len(ids) > 0 && (seen < len(objs) || t.full(len(objs), size))
	return err
}

// load reads objects under the locks of whoever changes or redacts them, so that what is planned is of the state that there is when it is committed. One may come twice.
func load(ctx context.Context, tx pgx.Tx, keys []versioning.Key) ([]*versioning.Object, error) {
	if len(keys) == 0 {
		return nil, nil
	}
	if err := processor.LockObjects(ctx, tx, keys); err != nil {
		return nil, err
	}
	wanted := make([]versioning.Wanted, len(keys))
	for i, k := range keys {
		wanted[i] = versioning.Wanted{Key: k, Lo: math.MinInt64, Hi: math.MaxInt64}
	}
	return versioning.Load(ctx, tx, versioning.Mirror, wanted)
}

// doubtful says whether nobody knows an object's state: it is ambiguous, or nothing is known of it yet but that it is there.
func doubtful(o *versioning.Object) bool {
	return o.Ambiguous || o.Exists && o.Version == versioning.NoVersion
}

// ask is what the rule wants of an object in a window: nothing of one that is gone, or of which nothing is told since it was redacted.
func (t *turn) ask(o *versioning.Object, start, end time.Time) []effects.Intent {
	if !o.Exists || o.State.Deleted || o.State.JSON == nil {
		return nil
	}
	return effects.IntentsOf(t.rule, &effects.Transition{On: rules.OnSchedule, Window: effects.Window{Start: start, End: end}, Source: t.rule.Source, Number: t.source,
		Account: o.Key.Account, Type: o.Key.Type, ID: o.Key.ID, New: o.State.JSON})
}

// tell tells of what was committed.
func (t *turn) tell() {
	log := t.Logger.With("rule", t.rule.Name)
	if !t.passed.IsZero() {
		log.Warn("windows passed over: more were missed than catch_up makes up for", "first_end", t.passed, "next_end", *t.end)
	}
	if t.over {
		log.Info("window seen to", "window_start", *t.start, "window_end", *t.end)
	}
	if t.givenUp > 0 {
		log.Warn("windows of objects that are in doubt passed over: more came than catch_up makes up for, while nobody could say what the objects are (postern verify counts them)", "windows", t.givenUp, "first_end", *t.oldest)
	}
	if n := t.planned.Collided; n > 0 {
		log.Warn("keys of effects were those of other accounts: a person must see what should have followed (postern effects list --state review)", "effects", n)
	}
	if n := t.planned.Review - t.planned.Collided; n > 0 {
		log.Warn("the rule could not say what is to follow: a person must see to it (postern effects list --state review)", "effects", n)
	}
	if len(t.planned.Due) > 0 && t.Planned != nil {
		t.Planned(t.planned.Due)
	}
}
