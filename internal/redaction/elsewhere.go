package redaction

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
)

// Beside the log and the objects, effects keep states and requests, and refetch requests and differences keep texts. They may
// mention what neither their object's events nor its state do any more.
const (
	effectTextsSQL = `
SELECT e.effect, e.source, e.account, e.object_type, e.object_id, concat_ws(' ', e.facts::text, e.reason,
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

	clearDriftSQL = `
UPDATE drifts SET fields = '[]', more = more + jsonb_array_length(fields), reason = ''
WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4`
)

// elsewhere clears what mentions the value beside the log and the objects.
func (w *work) elsewhere(ctx context.Context) (runs.Status, error) {
	if !w.order.mentions() {
		return runs.Running, nil
	}
	if err := w.effects(ctx); err != nil {
		return "", err
	}
	for _, table := range []struct{ read, own, clear string }{
		{holdTextsSQL, dropHoldSQL, dropHoldSQL},
		{refetchTextsSQL, dropRefetchSQL, clearRefetchSQL},
		{driftTextsSQL, clearDriftSQL, clearDriftSQL},
	} {
		if err := w.texts(ctx, table.read, table.own, table.clear); err != nil {
			return "", err
		}
	}
	return w.hold.Advance(ctx, w.hold.Cursor)
}

// effects clears effects whose facts, requests or answers mention the value. One that was not done yet is rejected.
func (w *work) effects(ctx context.Context) error {
	for after := int64(0); ; {
		rows, err := w.Pool.Query(ctx, effectTextsSQL, after, events.Optional(w.order.Source), w.order.Account)
		if err != nil {
			return fmt.Errorf("look through effects: %w", err)
		}
		var s subject
		var text string
		var found []int64
		var texts []mentionOf
		n := 0
		if _, err := pgx.ForEachRow(rows, []any{&after, &s.source, &s.account, &s.kind, &s.object, &text}, func() error {
			if n++; w.order.isOwn(s.object) || mentioned(w.order.Finds, []byte(text)) {
				found, texts = append(found, after), append(texts, mentionOf{s, text})
			}
			return nil
		}); err != nil {
			return fmt.Errorf("look through effects: %w", err)
		}
		if n == 0 {
			return nil
		}
		var clear []int64
		for i := range found {
			switch shared, err := w.order.shared(ctx, w.Pool, texts[i].subject, []byte(texts[i].text)); {
			case err != nil:
				return err
			case !shared:
				clear = append(clear, found[i])
			}
		}
		if err := w.dropSomeEffects(ctx, clear); err != nil {
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

// mentionOf is a text that mentions the value, and what it is about.
type mentionOf struct {
	subject
	text string
}

// texts looks through a small table, and clears the rows whose text mentions the value; own is for rows of the very object
// that is looked for.
func (w *work) texts(ctx context.Context, read, own, clear string) error {
	rows, err := w.Pool.Query(ctx, read, events.Optional(w.order.Source), w.order.Account)
	if err != nil {
		return fmt.Errorf("look for mentions: %w", err)
	}
	var one mentionOf
	var found []mentionOf
	if _, err := pgx.ForEachRow(rows, []any{&one.source, &one.account, &one.kind, &one.object, &one.text}, func() error {
		if w.order.isOwn(one.object) || mentioned(w.order.Finds, []byte(one.text)) {
			found = append(found, one)
		}
		return nil
	}); err != nil {
		return fmt.Errorf("look for mentions: %w", err)
	}
	for _, m := range found {
		shared, err := w.order.shared(ctx, w.Pool, m.subject, []byte(m.text))
		if err != nil {
			return err
		}
		if shared {
			continue
		}
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

// dropRefetch takes away the request to read an object again: its answer would bring back what is redacted.
func (w *work) dropRefetch(ctx context.Context, o Object) error {
	if _, err := w.Pool.Exec(ctx, dropRefetchSQL, o.Source, o.Account, o.Type, o.ID); err != nil {
		return fmt.Errorf("drop a refetch request: %w", err)
	}
	return nil
}
