package reconcile

import (
	"context"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
)

const (
	countGhostsSQL = `SELECT count(*) FROM ghosts WHERE run = $1 AND object_type = $2`

	// unaskedSQL counts the tombstones that a run has made, or is to make of types that it is in, beyond what was approved, and those that it has made.
	unaskedSQL = `
SELECT coalesce(sum(greatest(0, s.ghosts + (SELECT count(*) FROM ghosts g WHERE g.run = s.run AND g.object_type = s.object_type) - s.asked)), 0)::bigint, coalesce(sum(s.ghosts), 0)::bigint
FROM sweeps s WHERE s.run = $1`

	livingSQL = `SELECT count(*) FROM objects o WHERE o.source = $1 AND o.account = $2 AND o.object_type = ANY($3::text[]) AND NOT o.deleted AND o.version_at > -9223372036854775808`

	askedSQL = `UPDATE sweeps s SET phase = 'proposed', cursor = '', asked = $3, updated_at = clock_now() WHERE s.run = $1 AND s.object_type = $2 RETURNING ` + progressColumns

	dropGhostsSQL = `DELETE FROM ghosts WHERE run = $1 AND object_type = $2`
)

// stop has the type wait for a person where the run would make too many tombstones of it, or of all types that it sweeps with it, or many more than were approved. What was said to be missing is forgotten then: once the run is approved,
// it is asked for again.
func (s *sweep) stop(ctx context.Context) (stopped bool, err error) {
	if s.order.DryRun {
		return false, nil
	}
	var dead, unasked, made int64
	if err := s.Pool.QueryRow(ctx, countGhostsSQL, s.hold.Run.Run, s.objectType).Scan(&dead); err != nil {
		return false, fmt.Errorf("count ghosts: %w", err)
	}
	of := s.Ghosts + dead           // of the type
	if dead == 0 || of <= s.asked { // a person knows of them all
		return false, nil
	}
	if err := s.Pool.QueryRow(ctx, unaskedSQL, s.hold.Run.Run).Scan(&unasked, &made); err != nil {
		return false, fmt.Errorf("count the tombstones of the run: %w", err)
	}
	many, err := s.many(ctx, of-s.asked, s.Ghosts, s.objectType)
	if err == nil && !many {
		many, err = s.many(ctx, unasked, made, s.types...)
	}
	if err != nil || !many {
		return false, err
	}
	return true, s.change(ctx, "have a type wait for approval", func(ctx context.Context, tx pgx.Tx) error {
		if err := s.scan(tx.QueryRow(ctx, askedSQL, s.hold.Run.Run, s.objectType, of)); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, dropGhostsSQL, s.hold.Run.Run, s.objectType)
		return err
	})
}

// many says whether so many tombstones of some types together want a person's approval, of which some are made already: those are held against what lived before them.
func (w *work) many(ctx context.Context, dead, made int64, types ...string) (bool, error) {
	if dead <= fewGhosts {
		return false, nil
	}
	living, err := w.living(ctx, types...)
	return dead*ghostShare > living+made, err
}

func (w *work) living(ctx context.Context, types ...string) (n int64, err error) {
	if err := w.Pool.QueryRow(ctx, livingSQL, w.order.Source, w.order.Account, types).Scan(&n); err != nil {
		return 0, fmt.Errorf("count living objects: %w", err)
	}
	return n, nil
}

const (
	wantingSQL = `SELECT s.object_type, s.asked - s.ghosts FROM sweeps s WHERE s.run = $1 AND s.phase = 'proposed' ORDER BY s.object_type`

	proposedSQL = `UPDATE sweeps s SET phase = 'ghosts', updated_at = clock_now() WHERE s.run = $1 AND s.phase = 'proposed'`
)

// propose asks a person for the tombstones of all types that wait, once no other type can be swept. troubled is what the others met, which is tried again once the run is approved.
func (w *work) propose(ctx context.Context, troubled error) (runs.Status, error) {
	rows, err := w.Pool.Query(ctx, wantingSQL, w.hold.Run.Run)
	var objectType string
	var dead int64
	many := map[string]int64{}
	var types []string
	if err == nil {
		_, err = pgx.ForEachRow(rows, []any{&objectType, &dead}, func() error {
			types, many[objectType] = append(types, objectType), dead
			return nil
		})
	}
	if err != nil {
		return "", fmt.Errorf("read which types wait for approval: %w", err)
	}
	if len(types) == 0 {
		return runs.Running, nil
	}
	for i, t := range types {
		living, err := w.living(ctx, t)
		if err != nil {
			return "", err
		}
		types[i] = fmt.Sprintf("%d of %d living objects of type %s", many[t], living, t)
	}
	detail := fmt.Sprintf("%s are here, and missing in the API of source %s: to delete so many a person must approve it (postern runs approve %d --reason WHY); is the key of the account that the mirror is of?",
		strings.Join(types, ", "), w.source.Name, w.hold.Run.Run)
	if troubled != nil {
		detail += " Besides, to be tried again then: " + troubled.Error()
	}
	err = postgres.InTx(ctx, w.Pool, "ask for approval", keepWithin, func(ctx context.Context, tx pgx.Tx) error {
		if err := w.hold.Propose(ctx, tx, ofTombstones, detail); err != nil {
			return err
		}
		_, err := tx.Exec(ctx, proposedSQL, w.hold.Run.Run)
		return err
	})
	if err != nil {
		return "", err
	}
	return runs.Proposed, nil
}
