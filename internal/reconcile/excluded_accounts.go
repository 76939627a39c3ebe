package reconcile

import (
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"
)

// excludedStats is the number of accounts of a source that do not count for completeness and for
// scan results, by reason.
type excludedStats struct {
	Source, Reason string
	Accounts       float64
}

// excludedByConfig marks the accounts that the configuration excludes.
const excludedByConfig = "excluded"

var excludedDesc = prometheus.NewDesc("postern_accounts_excluded", "Accounts that do not count in "+
	"postern_complete_until_timestamp_seconds and in the results of scans, by reason: excluded "+
	"(reconcile.own_account or reconcile.exclude of the source excludes them) or disconnected (the API rejects them "+
	"with a key that works for other accounts)."+databaseHelp, []string{"source", "reason"}, nil)

// knownAccountsSQL returns the accounts, as the mirror names them, that have a watermark or a
// finished scan. It steps over those of scans by their index.
const knownAccountsSQL = `
WITH RECURSIVE hop AS (
  SELECT f.source, f.account FROM unnest($1::int[]) AS n(number) CROSS JOIN LATERAL (
    SELECT s.source, s.account FROM object_scans s WHERE s.phase = 'done' AND s.source = n.number ORDER BY s.account
    	LIMIT 1) f
  UNION ALL
  SELECT f.source, f.account FROM hop h CROSS JOIN LATERAL (
    SELECT s.source, s.account FROM object_scans s WHERE s.phase = 'done' AND s.source = h.source
    	AND s.account > h.account
    	ORDER BY s.account LIMIT 1) f
)
SELECT h.source, h.account FROM hop h UNION SELECT m.source, m.account FROM watermarks m
	WHERE m.source = ANY($1::int[])`

// excludedAccounts are the accounts that do not count, as two columns.
type excludedAccounts struct {
	sources  []int32
	accounts []string
}

const disconnectedAllSQL = `SELECT d.source, d.account FROM disconnected_accounts d WHERE d.source = ANY($1::int[])`

// sourceAccount is an account of a source.
type sourceAccount struct {
	Source  int32
	Account string
}

// loadExcluded finds the accounts that do not count, and their numbers by reason.
func (o *StateMetrics) loadExcluded(ctx context.Context, pool *pgxpool.Pool) (w excludedAccounts,
	counts []excludedStats, err error) {
	all := o.sources.All()
	numbers := slices.Sorted(maps.Keys(all))
	disconnected, err := queryStats[sourceAccount](ctx, pool, disconnectedAllSQL, numbers)
	if err != nil {
		return w, nil, err
	}
	for _, number := range numbers {
		s := all[number]
		n := 0
		for _, one := range disconnected {
			if one.Source == number && !slices.Contains(s.ExcludedAccounts, one.Account) {
				n++
			}
		}
		counts = append(counts, excludedStats{s.Name, excludedByConfig, float64(len(s.ExcludedAccounts))},
			excludedStats{s.Name, Disconnected, float64(n)})
	}
	known, err := queryStats[sourceAccount](ctx, pool, knownAccountsSQL, numbers)
	for _, one := range known {
		if s := all[one.Source]; excludes(s, one.Account) ||
			slices.Contains(disconnected, sourceAccount{one.Source, providerAccount(s, one.Account)}) {
			w.sources, w.accounts = append(w.sources, one.Source), append(w.accounts, one.Account)
		}
	}
	return w, counts, err
}
