package reconcile

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// leftOutNumbers is how many accounts of a source do not count for what is proven and for what sweeps have found, and why.
type leftOutNumbers struct {
	Source, Why string
	Accounts    float64
}

// excepted accounts are those that the configuration excepts.
const excepted = "excepted"

var leftOutDesc = prometheus.NewDesc("postern_accounts_left_out",
	"Accounts that do not count in postern_proven_until_timestamp_seconds and in what sweeps have found, by why: excepted (the source's reconcile.own and reconcile.except)."+asTold,
	[]string{"source", "why"}, nil)

// knownAccountsSQL are the accounts, as the mirror names them, of which something is proven or was swept. It hops over those of sweeps by their index.
const knownAccountsSQL = `
WITH RECURSIVE hop AS (
  SELECT f.source, f.account FROM unnest($1::int[]) AS n(number) CROSS JOIN LATERAL (
    SELECT s.source, s.account FROM sweeps s WHERE s.phase = 'done' AND s.source = n.number ORDER BY s.account LIMIT 1) f
  UNION ALL
  SELECT f.source, f.account FROM hop h CROSS JOIN LATERAL (
    SELECT s.source, s.account FROM sweeps s WHERE s.phase = 'done' AND s.source = h.source AND s.account > h.account ORDER BY s.account LIMIT 1) f
)
SELECT h.source, h.account FROM hop h UNION SELECT m.source, m.account FROM watermarks m WHERE m.source = ANY($1::int[])`

// without are the accounts that do not count, as two columns.
type without struct {
	sources  []int32
	accounts []string
}

// leftOut finds out which accounts do not count, and how many that are.
func (o *Owed) leftOut(ctx context.Context, pool *pgxpool.Pool) (w without, counts []leftOutNumbers, err error) {
	all := o.sources.All()
	var which []int32
	for number, s := range all {
		which = append(which, number)
		counts = append(counts, leftOutNumbers{s.Name, excepted, float64(len(s.Except))})
	}
	known, err := numbers[struct {
		Source  int32
		Account string
	}](ctx, pool, knownAccountsSQL, which)
	for _, one := range known {
		if all[one.Source].excepts(one.Account) {
			w.sources, w.accounts = append(w.sources, one.Source), append(w.accounts, one.Account)
		}
	}
	return w, counts, err
}
