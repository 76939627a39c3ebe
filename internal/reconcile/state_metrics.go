package reconcile

import (
	"context"
	"log/slog"
	"math"
	"sync"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/providerapi"
)

// StateMetrics are metrics that are read from the database, of the sources whose API can be read:
// refetch requests, completeness, scan results, and numbers of calls.
type StateMetrics struct {
	sources *providerapi.Sources

	mu           sync.Mutex
	refetches    []refetchStats
	completeness []completenessStats
	drifts       []driftStats
	// calls are the calls within thirty days by source, of the account with the most.
	calls    map[string]float64
	excluded []excludedStats
}

// refetchStats are the numbers of a source's refetch requests.
type refetchStats struct {
	Source              string
	Requests, Suspended float64
	// OldestWait is for how many seconds the request that has been due for longest has waited.
	OldestWait float64
}

// completenessStats is until when (Unix time) something is complete for all accounts of a source
// with a watermark, without the excluded accounts.
type completenessStats struct {
	Source, Subject string
	Until           float64
}

const databaseHelp = " Every processor reads this value from the database every 10 s and reports the same; NaN while " +
	"the database does not respond."

var (
	refetchesDesc = prometheus.NewDesc("postern_refetches_pending", "Objects that wait for a refetch from the "+
		"provider's API, including the suspended ones."+databaseHelp, []string{"source"}, nil)
	suspendedDesc = prometheus.NewDesc("postern_refetches_suspended", "Objects whose refetch is suspended, because "+
		"the API has no call for the object or does not return the whole object. postern refetches list shows "+
		"them."+databaseHelp, []string{"source"}, nil)
	oldestWaitDesc = prometheus.NewDesc("postern_refetches_oldest_seconds", "How long the oldest due refetch has "+
		"been due; 0 if none is due."+databaseHelp, []string{"source"}, nil)
	completeUntilDesc = prometheus.NewDesc("postern_complete_until_timestamp_seconds", "Unix time, on the provider's "+
		"clock, until which data is complete. The label subject names the data: events, or for an object type all "+
		"objects, only their versions, or only their changes. If the source has several accounts, the value is that "+
		"of the account that is furthest behind. It does not cover excluded accounts "+
		"(postern_accounts_excluded)."+databaseHelp, []string{"source", "subject"}, nil)
	monthlyCallsDesc = prometheus.NewDesc("postern_api_monthly_calls", "Calls to a provider's API in the last thirty "+
		"days. If the source has several accounts, the value is that of the account with the most "+
		"calls."+databaseHelp, []string{"source"}, nil)
	monthlyLimitDesc = prometheus.NewDesc("postern_api_monthly_limit_calls", "Maximum number of calls for one "+
		"account within thirty days (api.monthly). The last tenth is reserved for calls that an operator requests. 0 "+
		"means no limit.", []string{"source"}, nil)
)

// NewStateMetrics registers the metrics.
func NewStateMetrics(reg prometheus.Registerer, sources *providerapi.Sources) (*StateMetrics, error) {
	o := &StateMetrics{sources: sources}
	return o, reg.Register(o)
}

const (
	refetchStatsSQL = `
SELECT s.name, count(h.source)::float8, (count(*) FILTER (WHERE h.due = 'infinity'))::float8,
  coalesce(extract(epoch FROM clock_now() - min(h.due) FILTER (WHERE h.due <= clock_now())), 0)::float8
FROM sources s LEFT JOIN refetch_requests h ON h.source = s.number WHERE s.name = ANY($1::text[]) GROUP BY s.name
	ORDER BY s.name`

	completenessStatsSQL = `
SELECT s.name, m.subject, extract(epoch FROM min(m.until))::float8 FROM watermarks m
	JOIN sources s ON s.number = m.source
WHERE s.name = ANY($1::text[]) AND m.subject NOT LIKE 'run %'
  AND NOT EXISTS (SELECT FROM unnest($2::int[], $3::text[]) AS w(source, account) WHERE w.source = m.source
  	AND w.account = m.account)
GROUP BY s.name, m.subject ORDER BY s.name, m.subject`
)

// How often the tables are read, and the timeout for it.
const (
	readInterval = 10 * time.Second
	readTimeout  = 5 * time.Second
)

// Watch reads the tables at an interval until ctx ends.
func (o *StateMetrics) Watch(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) error {
	tick := time.NewTicker(readInterval)
	defer tick.Stop()
	for {
		if err := o.Read(ctx, pool); err != nil {
			log.Debug("metrics of refetches and completeness cannot be read", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Read reads the tables once.
func (o *StateMetrics) Read(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := lifecycle.WithTimeout(ctx, "read the metrics of refetches and completeness", readTimeout)
	defer cancel()
	var names []string
	for _, s := range o.sources.All() {
		names = append(names, s.Name)
	}
	if len(names) == 0 {
		o.clear()
		return nil
	}
	excluded, excludedCounts, err := o.loadExcluded(ctx, pool)
	if err != nil {
		o.invalidate()
		return err
	}
	refetches, err := queryStats[refetchStats](ctx, pool, refetchStatsSQL, names)
	if err != nil {
		o.invalidate()
		return err
	}
	completeness, err := queryStats[completenessStats](ctx, pool, completenessStatsSQL, names, excluded.sources,
		excluded.accounts)
	if err != nil {
		o.invalidate()
		return err
	}
	drifts, err := queryStats[driftStats](ctx, pool, driftStatsSQL, names, excluded.sources, excluded.accounts)
	if err != nil {
		o.invalidate()
		return err
	}
	calls, err := providerapi.MonthlyCalls(ctx, pool, names)
	if err != nil {
		o.invalidate()
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refetches, o.completeness, o.drifts, o.calls, o.excluded = refetches, completeness, drifts, calls, excludedCounts
	return nil
}

func queryStats[T any](ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) ([]T, error) {
	rows, err := pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// clear removes all numbers: no source has an API.
func (o *StateMetrics) clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.refetches, o.completeness, o.drifts, o.calls, o.excluded = nil, nil, nil, nil, nil
}

// invalidate sets the numbers to NaN, because they could not be read again.
func (o *StateMetrics) invalidate() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range o.refetches {
		o.refetches[i].Requests, o.refetches[i].Suspended, o.refetches[i].OldestWait = math.NaN(), math.NaN(),
			math.NaN()
	}
	for i := range o.completeness {
		o.completeness[i].Until = math.NaN()
	}
	for i := range o.drifts {
		o.drifts[i].invalidate()
	}
	for source := range o.calls {
		o.calls[source] = math.NaN()
	}
	for i := range o.excluded {
		o.excluded[i].Accounts = math.NaN()
	}
}

// Describe implements prometheus.Collector.
func (o *StateMetrics) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{refetchesDesc, suspendedDesc, oldestWaitDesc, completeUntilDesc, driftDesc,
		checkedDesc, notListedDesc, repairedDesc, unrepairedDesc, monthlyCallsDesc, monthlyLimitDesc, excludedDesc} {
		out <- d
	}
}

// Collect implements prometheus.Collector.
func (o *StateMetrics) Collect(out chan<- prometheus.Metric) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, h := range o.refetches {
		out <- prometheus.MustNewConstMetric(refetchesDesc, prometheus.GaugeValue, h.Requests, h.Source)
		out <- prometheus.MustNewConstMetric(suspendedDesc, prometheus.GaugeValue, h.Suspended, h.Source)
		out <- prometheus.MustNewConstMetric(oldestWaitDesc, prometheus.GaugeValue, h.OldestWait, h.Source)
	}
	for _, p := range o.completeness {
		out <- prometheus.MustNewConstMetric(completeUntilDesc, prometheus.GaugeValue, p.Until, p.Source, p.Subject)
	}
	for i := range o.drifts {
		o.drifts[i].collect(out)
	}
	for source, n := range o.calls {
		out <- prometheus.MustNewConstMetric(monthlyCallsDesc, prometheus.GaugeValue, n, source)
	}
	for _, l := range o.excluded {
		out <- prometheus.MustNewConstMetric(excludedDesc, prometheus.GaugeValue, l.Accounts, l.Source, l.Reason)
	}
	for _, s := range o.sources.All() {
		out <- prometheus.MustNewConstMetric(monthlyLimitDesc, prometheus.GaugeValue, float64(s.API.MonthlyCalls),
			s.Name)
	}
}
