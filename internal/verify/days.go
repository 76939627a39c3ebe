package verify

import (
	"context"
	"fmt"
	"slices"

	"github.com/jackc/pgx/v5"
)

// day is a range of ids that one partition of the log has or had; hi is exclusive.
type day struct {
	name   string
	lo, hi int64
	// dropped: retention has dropped it, whether or not it was made again since by a clock that went back.
	dropped bool
}

// days are the partitions of the log, and those that retention has taken out of it.
type days struct{ here, gone []day }

const (
	hereSQL = `
SELECT c.relname::text, m.b[1]::bigint, m.b[2]::bigint, false FROM pg_inherits i JOIN pg_class c ON c.oid = i.inhrelid
CROSS JOIN LATERAL (SELECT regexp_match(pg_get_expr(c.relpartbound, c.oid), 'FROM \(''?(\d+)''?\) TO \(''?(\d+)''?\)') AS b) m
WHERE i.inhparent = 'events'::regclass AND NOT i.inhdetachpending ORDER BY 2`

	goneSQL = `SELECT name, lo, hi, dropped_at IS NOT NULL FROM retired WHERE ready_at IS NOT NULL ORDER BY lo`
)

func readDays(ctx context.Context, tx pgx.Tx) (*days, error) {
	d := &days{}
	for sql, to := range map[string]*[]day{hereSQL: &d.here, goneSQL: &d.gone} {
		all, err := page(ctx, tx, func(row pgx.CollectableRow) (p day, err error) { return p, row.Scan(&p.name, &p.lo, &p.hi, &p.dropped) }, "days of the log", sql)
		if err != nil {
			return nil, err
		}
		*to = all
	}
	return d, nil
}

// lacks says why an event that is not in the log should be there; "" where retention dropped its day.
func (d *days) lacks(id int64) string {
	gone := of(d.gone, id)
	if p := of(d.here, id); p != nil && (gone == nil || !gone.dropped) {
		return "it is not in " + p.name
	}
	if gone != nil {
		return ""
	}
	return fmt.Sprintf("no partition of the log is for its day, and retention dropped none: was one detached by hand? (ids %d to %d of the log are there)", d.first(), d.last())
}

func of(all []day, id int64) *day {
	i, found := slices.BinarySearchFunc(all, id, func(p day, id int64) int {
		switch {
		case p.hi <= id:
			return -1
		case p.lo > id:
			return 1
		}
		return 0
	})
	if !found {
		return nil
	}
	return &all[i]
}

func (d *days) first() int64 {
	if len(d.here) == 0 {
		return 0
	}
	return d.here[0].lo
}

func (d *days) last() int64 {
	if len(d.here) == 0 {
		return 0
	}
	return d.here[len(d.here)-1].hi - 1
}
