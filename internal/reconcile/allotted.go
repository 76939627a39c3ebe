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

// spentError: all calls of thirty days are used that may be made for an account.
type spentError struct {
	account string
	// bound are those that are used, and monthly are those that there are.
	bound, monthly int
	// until is when the first of them count no more, on the database's clock, and wait how long that is.
	until time.Time
	wait  time.Duration
}

// spentWords begin what runs and hints say that wait for calls.
const spentWords = "the calls of thirty days are used"

func (e *spentError) Error() string {
	var of, rest string
	if e.account != "" {
		of = " for account " + e.account
	}
	if e.bound < e.monthly {
		rest = ", the rest is for what a person asks for by its name"
	}
	return fmt.Sprintf("%s: %d of %d%s (api.monthly%s); it goes on at %s, or once api.monthly is raised", spentWords, e.bound, e.monthly, of, rest, e.until.UTC().Format(time.RFC3339))
}

// goesOn is when the oldest days that have too many calls are over; spent is false where there are fewer than the bound, or none is set. Days are counted from 1970.
func goesOn(calls map[int64]int64, bound int64) (at time.Time, spent bool) {
	var all int64
	for _, n := range calls {
		all += n
	}
	if bound == 0 || all < bound {
		return time.Time{}, false
	}
	for _, day := range slices.Sorted(maps.Keys(calls)) {
		if all -= calls[day]; all < bound {
			at = time.Unix((day+allotted+1)*24*60*60, 0).UTC()
			break
		}
	}
	return at, true
}

// tell tells the log that calls wait, once until one is made again.
func (b *budget) tell(e *spentError) {
	if b.told.CompareAndSwap(false, true) {
		b.log.Warn("calls to the API wait", "account", b.account, "reason", e.Error())
	}
}

// affordable hands a run back that waits for calls; any other error stays as it is.
func (w *work) affordable(err error) error {
	var spent *spentError
	if !errors.As(err, &spent) {
		return err
	}
	return runs.Later(min(spent.wait, w.Settings.Poll), spent.Error())
}

// callNumbers are the calls of thirty days of a source, for the account that has the most.
type callNumbers struct {
	Source string
	Calls  float64
}

var (
	callsDesc   = prometheus.NewDesc("postern_api_monthly_calls", "Calls to a provider's API of the last thirty days, of several accounts those for the one that has the most."+asTold, []string{"source"}, nil)
	allowedDesc = prometheus.NewDesc("postern_api_monthly_limit_calls", "Calls that may be made for an account within thirty days (api.monthly), the last tenth for what a person asks for; 0: no bound.", []string{"source"}, nil)
)

const callsSQL = `
SELECT s.name, coalesce(max(m.calls), 0)::float8 FROM sources s LEFT JOIN budgets b ON b.source = s.number
LEFT JOIN LATERAL (SELECT sum(c.value::bigint) AS calls FROM jsonb_each_text(b.calls) c
  WHERE c.key::int >= (SELECT floor(extract(epoch FROM clock_now()) / 86400)::int) - $2::int) m ON true
WHERE s.name = ANY($1::text[]) GROUP BY s.name ORDER BY s.name`
