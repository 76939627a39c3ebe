package reconcile

import (
	"context"
	"log/slog"
	"maps"
	"math"
	"slices"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/refetch"
)

// StateMetrics are metrics that are read from the database, of the sources whose API can be read:
// refetch requests, completeness, scan results, and numbers of calls.
type StateMetrics struct {
	sources *providerapi.Sources

	mu     sync.Mutex
	values []stateValue
}

// stateValue is the value of a metric with its labels.
type stateValue struct {
	desc   *prometheus.Desc
	labels []string
	value  float64
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

// excludedByConfig marks the accounts that the configuration excludes.
const excludedByConfig = "excluded"

var excludedDesc = prometheus.NewDesc("postern_accounts_excluded", "Accounts that do not count in "+
	"postern_complete_until_timestamp_seconds and in the results of scans, by reason: excluded "+
	"(reconcile.own_account or reconcile.exclude of the source excludes them) or disconnected (the API rejects them "+
	"with a key that works for other accounts)."+databaseHelp, []string{"source", "reason"}, nil)

const newestScanHelp = " The value covers the newest finished scan of the type in each account, without dry runs. It " +
	"is the sum over all accounts except the excluded ones (postern_accounts_excluded)." + databaseHelp

var (
	driftDesc = prometheus.NewDesc("postern_drift_objects", "Objects that differ between the mirror and the provider, "+
		"by kind: missing, mirror_older, mirror_newer (needs no repair), content_differs or orphan."+newestScanHelp,
		[]string{"source", "type", "kind"}, nil)
	checkedDesc = prometheus.NewDesc("postern_drift_checked_objects", "Objects that were compared with the provider. "+
		"An object was equal if it does not count as missing, mirror_older, mirror_newer or "+
		"content_differs."+newestScanHelp, []string{"source", "type"}, nil)
	notListedDesc = prometheus.NewDesc("postern_drift_not_listed_objects",
		"Mirrored objects that the provider's lists do not show although they exist. A refetch of each object, "+
			"with one call, found that it exists."+newestScanHelp, []string{"source", "type"}, nil)
	repairedDesc = prometheus.NewDesc("postern_drift_repaired_objects", "Objects that differed and were repaired."+
		newestScanHelp, []string{"source", "type"}, nil)
	unrepairedDesc = prometheus.NewDesc("postern_drift_unrepaired_objects", "Objects that differed and could not be "+
		"repaired. postern drift report RUN lists them."+newestScanHelp, []string{"source", "type"}, nil)
)

// NewStateMetrics registers the metrics.
func NewStateMetrics(reg prometheus.Registerer, sources *providerapi.Sources) (*StateMetrics, error) {
	o := &StateMetrics{sources: sources}
	return o, reg.Register(o)
}

// completenessStatsSQL returns until when (Unix time) something is complete for all accounts of a
// source with a watermark, without the excluded accounts.
const completenessStatsSQL = `
SELECT s.name, m.subject, extract(epoch FROM min(m.until))::float8 FROM watermarks m
	JOIN sources s ON s.number = m.source
WHERE s.name = ANY($1::text[]) AND m.subject NOT LIKE 'run %'
  AND NOT EXISTS (SELECT FROM unnest($2::int[], $3::text[]) AS w(source, account) WHERE w.source = m.source
  	AND w.account = m.account)
GROUP BY s.name, m.subject ORDER BY s.name, m.subject`

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

// Read reads the tables once. After an error all values are NaN.
func (o *StateMetrics) Read(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := lifecycle.WithTimeout(ctx, "read the metrics of refetches and completeness", readTimeout)
	defer cancel()
	values, err := o.load(ctx, pool)
	o.mu.Lock()
	defer o.mu.Unlock()
	if err == nil {
		o.values = values
		return nil
	}
	for i := range o.values {
		o.values[i].value = math.NaN()
	}
	return err
}

// load reads the values of all metrics; none if no source has an API.
func (o *StateMetrics) load(ctx context.Context, pool *pgxpool.Pool) (values []stateValue, err error) {
	var names []string
	for _, s := range o.sources.All() {
		names = append(names, s.Name)
	}
	if len(names) == 0 {
		return nil, nil
	}
	add := func(desc *prometheus.Desc, value float64, labels ...string) {
		values = append(values, stateValue{desc, labels, value})
	}
	excluded, err := o.loadExcluded(ctx, pool, add)
	if err != nil {
		return nil, err
	}
	refetches, err := refetch.ReadStats(ctx, pool, names)
	if err != nil {
		return nil, err
	}
	for _, h := range refetches {
		add(refetchesDesc, h.Requests, h.Source)
		add(suspendedDesc, h.Suspended, h.Source)
		add(oldestWaitDesc, h.OldestWait, h.Source)
	}
	var name, subject string
	var until float64
	if err := postgres.ForEach(ctx, pool, completenessStatsSQL, []any{names, excluded.sources, excluded.accounts},
		[]any{&name, &subject, &until}, func() error {
			add(completeUntilDesc, until, name, subject)
			return nil
		}); err != nil {
		return nil, err
	}
	if err := objectscan.ReadStats(ctx, pool, names, excluded.sources, excluded.accounts,
		func(d *objectscan.Stats) { addDrift(add, d) }); err != nil {
		return nil, err
	}
	calls, err := providerapi.MonthlyCalls(ctx, pool, names)
	if err != nil {
		return nil, err
	}
	for source, n := range calls {
		add(monthlyCallsDesc, n, source)
	}
	return values, nil
}

func addDrift(add func(desc *prometheus.Desc, value float64, labels ...string), d *objectscan.Stats) {
	for kind, n := range d.Drift {
		add(driftDesc, n, d.Source, d.ObjectType, kind)
	}
	add(checkedDesc, d.Checked, d.Source, d.ObjectType)
	add(notListedDesc, d.NotListed, d.Source, d.ObjectType)
	add(repairedDesc, d.Repaired, d.Source, d.ObjectType)
	add(unrepairedDesc, d.Unrepaired, d.Source, d.ObjectType)
}

// loadExcluded finds the accounts that do not count, and adds their numbers by reason.
func (o *StateMetrics) loadExcluded(ctx context.Context, pool *pgxpool.Pool,
	add func(desc *prometheus.Desc, value float64, labels ...string)) (w excludedAccounts, err error) {
	all := o.sources.All()
	numbers := slices.Sorted(maps.Keys(all))
	disconnected := map[sourceAccount]bool{}
	var one sourceAccount
	if err := postgres.ForEach(ctx, pool, disconnectedAllSQL, []any{numbers}, []any{&one.Source, &one.Account},
		func() error { disconnected[one] = true; return nil }); err != nil {
		return w, err
	}
	for _, number := range numbers {
		s, n := all[number], 0
		for d := range disconnected {
			if d.Source == number && !slices.Contains(s.ExcludedAccounts, d.Account) {
				n++
			}
		}
		add(excludedDesc, float64(len(s.ExcludedAccounts)), s.Name, excludedByConfig)
		add(excludedDesc, float64(n), s.Name, Disconnected)
	}
	err = postgres.ForEach(ctx, pool, knownAccountsSQL, []any{numbers}, []any{&one.Source, &one.Account}, func() error {
		if s := all[one.Source]; excludes(s, one.Account) ||
			disconnected[sourceAccount{one.Source, providerAccount(s, one.Account)}] {
			w.sources, w.accounts = append(w.sources, one.Source), append(w.accounts, one.Account)
		}
		return nil
	})
	return w, err
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
	for _, v := range o.values {
		out <- prometheus.MustNewConstMetric(v.desc, prometheus.GaugeValue, v.value, v.labels...)
	}
	for _, s := range o.sources.All() {
		out <- prometheus.MustNewConstMetric(monthlyLimitDesc, prometheus.GaugeValue, float64(s.API.MonthlyCalls),
			s.Name)
	}
}
