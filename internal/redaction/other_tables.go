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

// Outside of the log and the objects, effects hold states and requests, and refetch requests and
// differences hold texts. They may mention a value that the object's events and state do not
// contain any more.
const (
	effectTextsSQL = `
SELECT e.effect, e.source, e.account, e.object_type, e.object_id, e.template_data IS NULL,
	concat_ws(' ', e.template_data::text,
	e.reason,
  (SELECT string_agg(concat_ws(' ', s.request::text, s.captured::text, s.error), ' ') FROM effect_steps s
  	WHERE s.effect = e.effect))
FROM effects e WHERE e.effect > $1 AND ($2::int IS NULL OR e.source = $2) AND ($3::text IS NULL OR e.account = $3)
ORDER BY e.effect LIMIT 200`

	lockEffectsByIDSQL = `SELECT e.effect FROM effects e WHERE e.effect = ANY($1::bigint[])
		ORDER BY e.effect FOR UPDATE`

	baselineTextsSQL = `
SELECT h.source, h.account, h.object_type, h.object_id, coalesce(h.state::text, '') FROM effect_baselines h
WHERE ($1::int IS NULL OR h.source = $1) AND ($2::text IS NULL OR h.account = $2)`

	deleteBaselineSQL = `DELETE FROM effect_baselines WHERE source = $1 AND account = $2 AND object_type = $3
		AND object_id = $4`

	refetchTextsSQL = `
SELECT h.source, h.account, h.object_type, h.object_id, h.error FROM refetch_requests h
WHERE ($1::int IS NULL OR h.source = $1) AND ($2::text IS NULL OR h.account = $2)`

	deleteRefetchSQL = `DELETE FROM refetch_requests WHERE source = $1 AND account = $2 AND object_type = $3
		AND object_id = $4`

	clearRefetchSQL = `UPDATE refetch_requests SET error = '' WHERE source = $1 AND account = $2 AND object_type = $3
		AND object_id = $4`

	differenceTextsSQL = `
SELECT d.source, d.account, d.object_type, d.object_id, concat_ws(' ', d.fields::text, d.reason) FROM drifts d
WHERE ($1::int IS NULL OR d.source = $1) AND ($2::text IS NULL OR d.account = $2) AND (d.fields <> '[]'
	OR d.reason <> '')`

	// missingTextsSQL reads the provider's responses for missing objects. They may wait long in
	// their reconciliation for an operator's approval. The next reconciliation fetches them again.
	missingTextsSQL = `
SELECT w.source, w.account, g.object_type, g.object_id, coalesce(body_json(g.body)::text, '') FROM orphans g
JOIN object_scans w ON w.run = g.run AND w.object_type = g.object_type
WHERE ($1::int IS NULL OR w.source = $1) AND ($2::text IS NULL OR w.account = $2) AND g.body IS NOT NULL`

	deleteMissingSQL = `
DELETE FROM orphans g USING object_scans w WHERE w.run = g.run AND w.object_type = g.object_type AND w.source = $1
	AND w.account = $2
  AND g.object_type = $3 AND g.object_id = $4`

	clearDifferenceSQL = `
UPDATE drifts SET fields = '[]', more_fields = more_fields + jsonb_array_length(fields), reason = ''
WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4`
)

// redactOtherTables clears mentions of the value outside of the log and the objects.
func (w *execution) redactOtherTables(ctx context.Context) (runs.Status, error) {
	if !w.params.mentionsOnly() {
		return runs.Running, nil
	}
	if err := w.params.eachMatchingEffect(ctx, w.Pool,
		func(found, _ []int64) error { return w.clearEffectsByID(ctx, found) }); err != nil {
		return "", err
	}
	for _, table := range []struct{ read, own, clear string }{
		{baselineTextsSQL, deleteBaselineSQL, deleteBaselineSQL},
		{refetchTextsSQL, deleteRefetchSQL, clearRefetchSQL},
		{differenceTextsSQL, clearDifferenceSQL, clearDifferenceSQL},
		{missingTextsSQL, deleteMissingSQL, deleteMissingSQL},
	} {
		if err := w.clearTexts(ctx, table.read, table.own, table.clear); err != nil {
			return "", err
		}
	}
	return w.lease.Advance(ctx, w.lease.Cursor)
}

// eachMatchingEffect calls do with batches of effects that are about the person, or whose template
// data, requests or responses mention a value. full are those of them that still hold data.
func (o *Params) eachMatchingEffect(ctx context.Context, pool *pgxpool.Pool, do func(found, full []int64) error) error {
	for after := int64(0); ; {
		var one mention
		var empty bool
		var ids, found, full []int64
		var texts []mention
		n := 0
		if err := postgres.ForEach(ctx, pool, effectTextsSQL, []any{after, events.NilIfZero(o.Source), o.Account},
			[]any{&after, &one.source, &one.account, &one.kind, &one.object, &empty,
				&one.text}, func() error {
				n++
				mentions := mentionsAny(o.Matchers, []byte(one.text))
				if one.hasData = mentions || !empty; mentions || o.isSearched(one.object) {
					ids, texts = append(ids, after), append(texts, one)
				}
				return nil
			}); err != nil {
			return fmt.Errorf("read effects: %w", err)
		}
		if n == 0 {
			return nil
		}
		for i, id := range ids {
			switch shared, err := o.namesOthers(ctx, pool, texts[i].subject, []byte(texts[i].text)); {
			case err != nil:
				return err
			case shared:
				continue
			case texts[i].hasData:
				full = append(full, id)
			}
			found = append(found, id)
		}
		if err := do(found, full); err != nil {
			return err
		}
	}
}

// clearEffectsByID clears effects. It first waits for processes that are recording results.
func (w *execution) clearEffectsByID(ctx context.Context, found []int64) error {
	if len(found) == 0 {
		return nil
	}
	return postgres.InTx(ctx, w.Pool, "redact effects", redactTimeout, func(ctx context.Context, tx pgx.Tx) error {
		for _, sql := range []string{lockEffectsByIDSQL, clearEffectsSQL, clearStepsSQL} {
			if _, err := tx.Exec(ctx, sql, found); err != nil {
				return fmt.Errorf("clear effects: %w", err)
			}
		}
		return nil
	})
}

// mention is a text with its subject.
type mention struct {
	subject
	text string
	// hasData reports that it has data to clear; set for effects only.
	hasData bool
}

// clearTexts clears the rows of a small table that are about the person, or whose text mentions a
// value. It runs the statement own for rows of the searched object itself, and clear for others.
func (w *execution) clearTexts(ctx context.Context, read, own, clear string) error {
	found, err := w.params.matchingTexts(ctx, w.Pool, read)
	if err != nil {
		return err
	}
	for _, m := range found {
		sql := clear
		if w.params.isSearched(m.object) {
			sql = own
		}
		if _, err := w.Pool.Exec(ctx, sql, m.source, m.account, m.kind, m.object); err != nil {
			return fmt.Errorf("clear mentions: %w", err)
		}
	}
	return nil
}

// matchingTexts returns the rows of a small table that are about the person, or mention a value.
func (o *Params) matchingTexts(ctx context.Context, pool *pgxpool.Pool, read string) (found []mention, err error) {
	var one mention
	var all []mention
	if err := postgres.ForEach(ctx, pool, read, []any{events.NilIfZero(o.Source), o.Account},
		[]any{&one.source, &one.account, &one.kind, &one.object, &one.text}, func() error {
			if o.isSearched(one.object) || mentionsAny(o.Matchers, []byte(one.text)) {
				all = append(all, one)
			}
			return nil
		}); err != nil {
		return nil, fmt.Errorf("search mentions: %w", err)
	}
	for _, m := range all {
		shared, err := o.namesOthers(ctx, pool, m.subject, []byte(m.text))
		if err != nil {
			return nil, err
		}
		if !shared {
			found = append(found, m)
		}
	}
	return found, nil
}

// deleteRefetch deletes the refetch request of an object, because its response would bring the
// redacted data back.
func (w *execution) deleteRefetch(ctx context.Context, o Object) error {
	if _, err := w.Pool.Exec(ctx, deleteRefetchSQL, o.Source, o.Account, o.Type, o.ID); err != nil {
		return fmt.Errorf("delete a refetch request: %w", err)
	}
	return nil
}

// addOtherTables adds the matches outside of the log and the objects to the preview.
func (l *previewer) addOtherTables(ctx context.Context, o *Params) error {
	if err := o.eachMatchingRejection(ctx, l.pool, func(found []int64, _ int64) error {
		l.Rejections += int64(len(found))
		return nil
	}); err != nil {
		return err
	}
	if err := o.eachMatchingConflict(ctx, l.pool, func(found []int64, _ int64) error {
		l.Conflicts += int64(len(found))
		return nil
	}); err != nil || !o.mentionsOnly() {
		return err
	}
	if err := o.eachMatchingEffect(ctx, l.pool, func(_, full []int64) error {
		l.Effects += int64(len(full))
		return nil
	}); err != nil {
		return err
	}
	for count, read := range map[*int64]string{&l.Effects: baselineTextsSQL, &l.Refetches: refetchTextsSQL,
		&l.Differences: differenceTextsSQL} {
		found, err := o.matchingTexts(ctx, l.pool, read)
		if err != nil {
			return err
		}
		*count += int64(len(found))
	}
	return nil
}
