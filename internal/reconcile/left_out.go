package reconcile

import (
	"context"
	"maps"
	"slices"

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
	"Accounts that do not count in postern_proven_until_timestamp_seconds and in what sweeps have found, by why: excepted (the source's reconcile.own and reconcile.except), or disconnected (the API refuses them to a key that is good for others)."+asTold,
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

const disconnectedAllSQL = `SELECT d.source, d.account FROM disconnected d WHERE d.source = ANY($1::int[])`

// accountOf is an account of a source.
type accountOf struct {
	Source  int32
	Account string
}

// leftOut finds out which accounts do not count, and how many that are.
func (o *Owed) leftOut(ctx context.Context, pool *pgxpool.Pool) (w without, counts []leftOutNumbers, err error) {
	all := o.sources.All()
	which := slices.Sorted(maps.Keys(all))
	gone, err := numbers[accountOf](ctx, pool, disconnectedAllSQL, which)
	if err != nil {
		return w, nil, err
	}
	for _, number := range which {
		s := all[number]
		n := 0
		for _, one := range gone {
			if one.Source == number && !slices.Contains(s.Except, one.Account) {
				n++
			}
		}
		counts = append(counts, leftOutNumbers{s.Name, excepted, float64(len(s.Except))}, leftOutNumbers{s.Name, Disconnected, float64(n)})
	}
	known, err := numbers[accountOf](ctx, pool, knownAccountsSQL, which)
	for _, one := range known {
		if s := all[one.Source]; s.excepts(one.Account) || slices.Contains(gone, accountOf{one.Source, s.of(one.Account)}) {
			w.sources, w.accounts = append(w.sources, one.Source), append(w.accounts, one.Account)
		}
	}
	return w, counts, err
}
