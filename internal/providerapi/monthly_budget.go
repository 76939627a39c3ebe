package providerapi

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
)

// MonthlyBudgetError reports that all calls that an account may make within thirty days are used.
type MonthlyBudgetError struct {
	account string
	// Limit is the number of calls that applied to this caller, and Monthly is the configured
	// number.
	Limit, Monthly int
	// until is when the oldest of them stop counting, on the database's clock. Wait is the time
	// until then.
	until time.Time
	Wait  time.Duration
}

// MonthlyBudgetMessage begins the messages of runs and refetch requests that wait for calls.
// Package reconcile finds them by it.
const MonthlyBudgetMessage = "the calls of thirty days are used"

func (e *MonthlyBudgetError) Error() string {
	var forAccount, reserved string
	if e.account != "" {
		forAccount = " for account " + e.account
	}
	if e.Limit < e.Monthly {
		reserved = ", the rest is reserved for requests of an operator for one object"
	}
	return fmt.Sprintf("%s: %d of %d%s (api.monthly%s); calls resume at %s, or when api.monthly is raised",
		MonthlyBudgetMessage, e.Limit, e.Monthly, forAccount, reserved, e.until.UTC().Format(time.RFC3339))
}

// budgetResumesAt returns when enough of the oldest days stop counting. spent is false if there are
// fewer calls than the limit, or no limit is set. The keys of calls are days since 1970.
func budgetResumesAt(calls map[int64]int64, limit int64) (at time.Time, spent bool) {
	var all int64
	for _, n := range calls {
		all += n
	}
	if limit == 0 || all < limit {
		return time.Time{}, false
	}
	for _, day := range slices.Sorted(maps.Keys(calls)) {
		if all -= calls[day]; all < limit {
			at = time.Unix((day+monthlyWindowDays+1)*24*60*60, 0).UTC()
			break
		}
	}
	return at, true
}

// logSpent logs that calls wait. It logs once, until a call is made again.
func (b *budget) logSpent(e *MonthlyBudgetError) {
	if b.spentLogged.CompareAndSwap(false, true) {
		b.log.Warn("calls to the API wait", "account", b.account, "reason", e.Error())
	}
}

// monthlyCallsSQL counts the calls of each account, and takes the account with the most.
const monthlyCallsSQL = `
SELECT s.name, coalesce(max(m.calls), 0)::float8 FROM sources s LEFT JOIN rate_budgets b ON b.source = s.number
LEFT JOIN LATERAL (SELECT sum(c.value::bigint) AS calls FROM jsonb_each_text(b.calls) c
  WHERE c.key::int >= (SELECT floor(extract(epoch FROM clock_now()) / 86400)::int) - $2::int) m ON true
WHERE s.name = ANY($1::text[]) GROUP BY s.name ORDER BY s.name`

// MonthlyCalls returns the number of calls within thirty days by the name of the source, of the
// account with the most calls.
func MonthlyCalls(ctx context.Context, pool *pgxpool.Pool, sources []string) (map[string]float64, error) {
	rows, err := pool.Query(ctx, monthlyCallsSQL, sources, monthlyWindowDays)
	if err != nil {
		return nil, err
	}
	bySource, name, calls := map[string]float64{}, "", 0.0
	_, err = pgx.ForEachRow(rows, []any{&name, &calls}, func() error {
		bySource[name] = calls
		return nil
	})
	return bySource, err
}
