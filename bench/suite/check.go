package suite

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"
)

const outcomesSQL = `
SELECT count(*), count(*) FILTER (WHERE status IN ('failed', 'dead', 'ambiguous')), (SELECT count(*)
	FROM postern.events) FROM postern.outcomes WHERE run = 0`

const balancesSQL = `
SELECT object_id, (state ->> 'balance')::int FROM postern.objects WHERE object_id = ANY($1)`

// checkMost is how many objects are compared.
const checkMost = 10_000

// checkApplied checks that everything was applied: each event has an outcome, and objects have the
// state of their last event.
func (s *Suite) checkApplied(ctx context.Context, database string, f *filled) error {
	conn, err := s.m.Connect(ctx, database)
	if err != nil {
		return err
	}
	defer conn.Close(context.WithoutCancel(ctx))
	var outcomes, bad, events int
	if err := conn.QueryRow(ctx, outcomesSQL).Scan(&outcomes, &bad, &events); err != nil {
		return err
	}
	if outcomes != f.events || events != f.events || bad > 0 {
		return fmt.Errorf("%d outcomes of %d stored events, %d of them failed, dead or ambiguous; want %d", outcomes,
			events, bad,
			f.events)
	}
	return checkBalances(ctx, conn, f.deliveries.Objects())
}

func checkBalances(ctx context.Context, conn *pgx.Conn, want map[string]int) error {
	ids := make([]string, 0, min(len(want), checkMost))
	for id := range want {
		if len(ids) < checkMost {
			ids = append(ids, id)
		}
	}
	rows, err := conn.Query(ctx, balancesSQL, ids)
	if err != nil {
		return err
	}
	var id string
	var balance, seen int
	_, err = pgx.ForEachRow(rows, []any{&id, &balance}, func() error {
		seen++
		if balance != want[id] {
			return fmt.Errorf("the mirror has balance %d of %s, want %d", balance, id, want[id])
		}
		return nil
	})
	if err == nil && seen != len(ids) {
		err = fmt.Errorf("the mirror has %d of %d objects", seen, len(ids))
	}
	return err
}
