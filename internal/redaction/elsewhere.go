package redaction

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
)

// Beside the log and the objects, effects keep states and requests, and refetch requests and differences keep texts. They may
// mention what neither their object's events nor its state do any more.
const (
	effectTextsSQL = `
SELECT e.effect, e.source, e.account, e.object_type, e.object_id, e.facts IS NULL, concat_ws(' ', e.facts::text, e.reason,
  (SELECT string_agg(concat_ws(' ', s.request::text, s.captured::text, s.error), ' ') FROM effect_steps s WHERE s.effect = e.effect))
FROM effects e WHERE e.effect > $1 AND ($2::int IS NULL OR e.source = $2) AND ($3::text IS NULL OR e.account = $3)
ORDER BY e.effect LIMIT 200`

	lockSomeEffectsSQL = `SELECT e.effect FROM effects e WHERE e.effect = ANY($1::bigint[]) ORDER BY e.effect FOR UPDATE`

	holdTextsSQL = `
SELECT h.source, h.account, h.object_type, h.object_id, coalesce(h.state::text, '') FROM effect_holds h
WHERE ($1::int IS NULL OR h.source = $1) AND ($2::text IS NULL OR h.account = $2)`

	dropHoldSQL = `DELETE FROM effect_holds WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4`

	refetchTextsSQL = `
SELECT h.source, h.account, h.object_type, h.object_id, h.error FROM hints h
WHERE ($1::int IS NULL OR h.source = $1) AND ($2::text IS NULL OR h.account = $2)`

	dropRefetchSQL = `DELETE FROM hints WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4`

	clearRefetchSQL = `UPDATE hints SET error = '' WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4`

	driftTextsSQL = `
SELECT d.source, d.account, d.object_type, d.object_id, concat_ws(' ', d.fields::text, d.reason) FROM drifts d
WHERE ($1::int IS NULL OR d.source = $1) AND ($2::text IS NULL OR d.account = $2) AND (d.fields <> '[]' OR d.reason <> '')`

	// An answer in place of an object that is missing waits in its reconciliation for a person's approval, maybe for long. The next
	// reconciliation asks again.
	missingTextsSQL = `
SELECT w.source, w.account, g.object_type, g.object_id, coalesce(body_json(g.body)::text, '') FROM ghosts g
JOIN sweeps w ON w.run = g.run AND w.object_type = g.object_type
WHERE ($1::int IS NULL OR w.source = $1) AND ($2::text IS NULL OR w.account = $2) AND g.body IS NOT NULL`

	dropMissingSQL = `
DELETE FROM ghosts g USING sweeps w WHERE w.run = g.run AND w.object_type = g.object_type AND w.source = $1 AND w.account = $2
  AND g.object_type = $3 AND g.object_id = $4`

	clearDriftSQL = `
UPDATE drifts SET fields = '[]', more = more + jsonb_array_length(fields), reason = ''
WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4`
)

// elsewhere clears what mentions the value beside the log and the objects.
func (w *work) elsewhere(ctx context.Context) (runs.Status, error) {
	if !w.order.mentions() {
		return runs.Running, nil
	}
	if err := w.order.eachEffect(ctx, w.Pool, func(found, _ []int64) error { return w.dropSomeEffects(ctx, found) }); err != nil {
		return "", err
	}
	for _, table := range []struct{ read, own, clear string }{
		{holdTextsSQL, dropHoldSQL, dropHoldSQL},
		{refetchTextsSQL, dropRefetchSQL, clearRefetchSQL},
		{driftTextsSQL, clearDriftSQL, clearDriftSQL},
		{missingTextsSQL, dropMissingSQL, dropMissingSQL},
	} {
		if err := w.texts(ctx, table.read, table.own, table.clear); err != nil {
			return "", err
		}
	}
	return w.hold.Advance(ctx, w.hold.Cursor)
}

// eachEffect gives effects that are about the person, or whose facts, requests or answers mention a value, some at a time, and
// those of them that hold something.
func (o *Order) eachEffect(ctx context.Context, pool *pgxpool.Pool, do func(found, full []int64) error) error {
	for after := int64(0); ; {
		rows, err := pool.Query(ctx, effectTextsSQL, after, events.Optional(o.Source), o.Account)
		if err != nil {
			return fmt.Errorf("look through effects: %w", err)
		}
		var one mentionOf
		var empty bool
		var ids, found, full []int64
		var texts []mentionOf
		n := 0
		if _, err := pgx.ForEachRow(rows, []any{&after, &one.source, &one.account, &one.kind, &one.object, &empty, &one.text}, func() error {
			n++
			mentions := mentioned(o.Finds, []byte(one.text))
			if one.full = mentions || !empty; mentions || o.isOwn(one.object) {
				ids, texts = append(ids, after), append(texts, one)
			}
			return nil
		}); err != nil {
			return fmt.Errorf("look through effects: %w", err)
		}
		if n == 0 {
			return nil
		}
		for i, id := range ids {
			switch shared, err := o.shared(ctx, pool, texts[i].subject, []byte(texts[i].text)); {
			case err != nil:
				return err
			case shared:
				continue
			case texts[i].full:
				full = append(full, id)
			}
			found = append(found, id)
		}
		if err := do(found, full); err != nil {
			return err
		}
	}
}

// dropSomeEffects clears effects by their numbers, once whoever has taken one has recorded what came of it.
func (w *work) dropSomeEffects(ctx context.Context, found []int64) error {
	if len(found) == 0 {
		return nil
	}
	return postgres.InTx(ctx, w.Pool, "redact effects", redactWithin, func(ctx context.Context, tx pgx.Tx) error {
		for _, sql := range []string{lockSomeEffectsSQL, dropEffectsSQL, dropStepsSQL} {
			if _, err := tx.Exec(ctx, sql, found); err != nil {
				return fmt.Errorf("clear effects: %w", err)
			}
		}
		return nil
	})
}

// mentionOf is a text, and what it is about.
type mentionOf struct {
	subject
	text string
	// full: something of it is left to be cleared; known of effects alone.
	full bool
}

// texts clears the rows of a small table whose text mentions the value; own is for rows of the very object that is looked for.
func (w *work) texts(ctx context.Context, read, own, clear string) error {
	found, err := w.order.textsOf(ctx, w.Pool, read)
	if err != nil {
		return err
	}
	for _, m := range found {
		sql := clear
		if w.order.isOwn(m.object) {
			sql = own
		}
		if _, err := w.Pool.Exec(ctx, sql, m.source, m.account, m.kind, m.object); err != nil {
			return fmt.Errorf("clear mentions: %w", err)
		}
	}
	return nil
}

// textsOf are the rows of a small table that are about the person, or mention a value.
func (o *Order) textsOf(ctx context.Context, pool *pgxpool.Pool, read string) (found []mentionOf, err error) {
	rows, err := pool.Query(ctx, read, events.Optional(o.Source), o.Account)
	if err != nil {
		return nil, fmt.Errorf("look for mentions: %w", err)
	}
	var one mentionOf
	var all []mentionOf
	if _, err := pgx.ForEachRow(rows, []any{&one.source, &one.account, &one.kind, &one.object, &one.text}, func() error {
		if o.isOwn(one.object) || mentioned(o.Finds, []byte(one.text)) {
			all = append(all, one)
		}
		return nil
	}); err != nil {
		return nil, fmt.Errorf("look for mentions: %w", err)
	}
	for _, m := range all {
		shared, err := o.shared(ctx, pool, m.subject, []byte(m.text))
		if err != nil {
			return nil, err
		}
		if !shared {
			found = append(found, m)
		}
	}
	return found, nil
}

// dropRefetch takes away the request to read an object again: its answer would bring back what is redacted.
func (w *work) dropRefetch(ctx context.Context, o Object) error {
	if _, err := w.Pool.Exec(ctx, dropRefetchSQL, o.Source, o.Account, o.Type, o.ID); err != nil {
		return fmt.Errorf("drop a refetch request: %w", err)
	}
	return nil
}

// kept counts in the preview what an order clears beside the log and the objects.
func (l *look) kept(ctx context.Context, o *Order) error {
	if err := o.eachRefused(ctx, l.pool, func(found []int64, _ int64) error {
		l.Rejections += int64(len(found))
		return nil
	}); err != nil {
		return err
	}
	if err := o.eachDiffering(ctx, l.pool, func(found []int64, _ int64) error {
		l.Conflicts += int64(len(found))
		return nil
	}); err != nil || !o.mentions() {
		return err
	}
	if err := o.eachEffect(ctx, l.pool, func(_, full []int64) error {
		l.Effects += int64(len(full))
		return nil
	}); err != nil {
		return err
	}
	for count, read := range map[*int64]string{&l.Effects: holdTextsSQL, &l.Refetches: refetchTextsSQL, &l.Differences: driftTextsSQL} {
		found, err := o.textsOf(ctx, l.pool, read)
		if err != nil {
			return err
		}
		*count += int64(len(found))
	}
	return nil
}
