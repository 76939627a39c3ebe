package reconcile

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/runs"
)

// monthlyBudgetError reports that all calls that an account may make within thirty days are used.
type monthlyBudgetError struct {
	account string
	// limit is the number of calls that applied to this caller, and monthly is the configured
	// number.
	limit, monthly int
	// until is when the oldest of them stop counting, on the database's clock. wait is the time
	// until then.
	until time.Time
	wait  time.Duration
}

// monthlyBudgetMessage begins the messages of runs and refetch requests that wait for calls.
// resumeBudgetWaitsSQL finds the requests by it.
const monthlyBudgetMessage = "the calls of thirty days are used"

func (e *monthlyBudgetError) Error() string {
	var forAccount, reserved string
	if e.account != "" {
		forAccount = " for account " + e.account
	}
	if e.limit < e.monthly {
		reserved = ", the rest is reserved for requests of an operator for one object"
	}
	return fmt.Sprintf("%s: %d of %d%s (api.monthly%s); calls resume at %s, or when api.monthly is raised",
		monthlyBudgetMessage, e.limit, e.monthly, forAccount, reserved, e.until.UTC().Format(time.RFC3339))
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
func (b *budget) logSpent(e *monthlyBudgetError) {
	if b.spentLogged.CompareAndSwap(false, true) {
		b.log.Warn("calls to the API wait", "account", b.account, "reason", e.Error())
	}
}

// deferForBudget defers a run that waits for calls. It returns any other error unchanged.
func (w *execution) deferForBudget(err error) error {
	var spent *monthlyBudgetError
	if !errors.As(err, &spent) {
		return err
	}
	return runs.Requeue(min(spent.wait, w.Settings.MaxPollDelay), spent.Error())
}

// callStats is the number of calls of a source within thirty days, of the account with the most.
type callStats struct {
	Source string
	Calls  float64
}

var (
	monthlyCallsDesc = prometheus.NewDesc("postern_api_monthly_calls", "Calls to a provider's API in the last thirty "+
		"days. If the source has several accounts, the value is that of the account with the most "+
		"calls."+databaseHelp, []string{"source"}, nil)
	monthlyLimitDesc = prometheus.NewDesc("postern_api_monthly_limit_calls", "Maximum number of calls for one account "+
		"within thirty days (api.monthly). The last tenth is reserved for calls that an operator requests. 0 means no "+
		"limit.",
		[]string{"source"},
		nil)
)

const monthlyCallsSQL = `
SELECT s.name, coalesce(max(m.calls), 0)::float8 FROM sources s LEFT JOIN rate_budgets b ON b.source = s.number
LEFT JOIN LATERAL (SELECT sum(c.value::bigint) AS calls FROM jsonb_each_text(b.calls) c
  WHERE c.key::int >= (SELECT floor(extract(epoch FROM clock_now()) / 86400)::int) - $2::int) m ON true
WHERE s.name = ANY($1::text[]) GROUP BY s.name ORDER BY s.name`
