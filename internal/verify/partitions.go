package verify

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// partition is the range of ids of an existing or dropped partition of the log; idTo is exclusive.
type partition struct {
	name         string
	idFrom, idTo int64
	// dropped is true if retention has dropped it. A clock that was set back may have created it
	// again since.
	dropped bool
}

// partitions are the attached partitions of the log, and those that retention has removed.
type partitions struct{ attached, dropped []partition }

const (
	attachedSQL = `
SELECT c.relname::text, m.b[1]::bigint, m.b[2]::bigint, false FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
CROSS JOIN LATERAL (SELECT regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''?(\d+)''?\) TO \(''?(\d+)''?\)')
	AS b) m
WHERE i.inhparent = 'events'::regclass AND NOT i.inhdetachpending ORDER BY 2`

	droppedSQL = `SELECT name, id_from, id_to, dropped_at IS NOT NULL FROM dropped_partitions WHERE ready_at IS NOT NULL
		ORDER BY id_from`
)

func readPartitions(ctx context.Context, tx pgx.Tx) (*partitions, error) {
	d := &partitions{}
	for sql, to := range map[string]*[]partition{attachedSQL: &d.attached, droppedSQL: &d.dropped} {
		found, err := readPage(ctx, tx, func(row pgx.CollectableRow) (p partition, err error) {
			return p, row.Scan(&p.name, &p.idFrom, &p.idTo, &p.dropped)
		}, "partitions of the log", sql)
		if err != nil {
			return nil, err
		}
		*to = found
	}
	return d, nil
}

// whyMissing explains why it is a violation that the log does not have an event; "" if retention
// dropped its partition.
func (d *partitions) whyMissing(id int64) string {
	dropped := partitionOf(d.dropped, id)
	if p := partitionOf(d.attached, id); p != nil && (dropped == nil || !dropped.dropped) {
		return "it is not in " + p.name
	}
	if dropped != nil {
		return ""
	}
	return fmt.Sprintf("no partition of the log has its id, and retention dropped none: was one detached "+
		"manually? (the log has ids %d to %d)", d.firstID(), d.lastID())
}

func partitionOf(all []partition, id int64) *partition {
	i, found := slices.BinarySearchFunc(all, id, func(p partition, id int64) int {
		switch {
		case p.idTo <= id:
			return -1
		case p.idFrom > id:
			return 1
		}
		return 0
	})
	if !found {
		return nil
	}
	return &all[i]
}

func (d *partitions) firstID() int64 {
	if len(d.attached) == 0 {
		return 0
	}
	return d.attached[0].idFrom
}

func (d *partitions) lastID() int64 {
	if len(d.attached) == 0 {
		return 0
	}
	return d.attached[len(d.attached)-1].idTo - 1
}
