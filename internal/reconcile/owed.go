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
)

// Owed measures what looks are owed, what is proven, what sweeps have found, and how many calls were made, of the sources whose API can be read.
type Owed struct {
	sources *Sources

	mu     sync.Mutex
	hints  []hintNumbers
	proven []provenNumbers
	drifts []driftNumbers
	calls  []callNumbers
	left   []leftOutNumbers
}

// hintNumbers are a source's hints.
type hintNumbers struct {
	Source        string
	Hints, Parked float64
	// Waiting is for how many seconds the one that is due for longest has been.
	Waiting float64
}

// provenNumbers is until when (Unix time) something is proven for all accounts of a source of which it ever was, but for those that are left out.
type provenNumbers struct {
	Source, What string
	Until        float64
}

const asTold = " As the database says every 10 s, the same in every processor; NaN while it does not answer."

var (
	hintsDesc   = prometheus.NewDesc("postern_hints", "Objects that owe a look at the provider's API, the parked ones too."+asTold, []string{"source"}, nil)
	parkedDesc  = prometheus.NewDesc("postern_hints_parked", "Objects that owe a look which the API has no call for, or does not answer whole: postern hints list."+asTold, []string{"source"}, nil)
	waitingDesc = prometheus.NewDesc("postern_hints_waiting_seconds", "How long the look that is due for longest has been; 0 where none is."+asTold, []string{"source"}, nil)
	provenDesc  = prometheus.NewDesc("postern_proven_until_timestamp_seconds",
		"Until when, on the provider's clock, something (events; of a type all objects, their versions alone, or the changes) is proven, Unix time; of several accounts the one that is furthest behind, but for those that are left out (postern_accounts_left_out)."+asTold,
		[]string{"source", "what"}, nil)
)

// NewOwed registers the metrics.
func NewOwed(reg prometheus.Registerer, sources *Sources) (*Owed, error) {
	o := &Owed{sources: sources}
	return o, reg.Register(o)
}

const (
	hintNumbersSQL = `
SELECT s.name, count(h.source)::float8, (count(*) FILTER (WHERE h.due = 'infinity'))::float8,
  coalesce(extract(epoch FROM clock_now() - min(h.due) FILTER (WHERE h.due <= clock_now())), 0)::float8
FROM sources s LEFT JOIN hints h ON h.source = s.number WHERE s.name = ANY($1::text[]) GROUP BY s.name ORDER BY s.name`

	provenNumbersSQL = `
SELECT s.name, m.what, extract(epoch FROM min(m.until))::float8 FROM watermarks m JOIN sources s ON s.number = m.source
WHERE s.name = ANY($1::text[]) AND m.what NOT LIKE 'run %'
  AND NOT EXISTS (SELECT FROM unnest($2::int[], $3::text[]) AS w(source, account) WHERE w.source = m.source AND w.account = m.account)
GROUP BY s.name, m.what ORDER BY s.name, m.what`
)

// How often the tables are asked, and how long that may take.
const (
	measureEvery  = 10 * time.Second
	measureWithin = 5 * time.Second
)

// Watch reads the tables now and then, until ctx ends.
func (o *Owed) Watch(ctx context.Context, pool *pgxpool.Pool, log *slog.Logger) error {
	tick := time.NewTicker(measureEvery)
	defer tick.Stop()
	for {
		if err := o.Read(ctx, pool); err != nil {
			log.Debug("what looks are owed is not known", "error", err)
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Read reads them once.
func (o *Owed) Read(ctx context.Context, pool *pgxpool.Pool) error {
	ctx, cancel := lifecycle.WithTimeout(ctx, "read what looks are owed", measureWithin)
	defer cancel()
	var names []string
	for _, s := range o.sources.All() {
		names = append(names, s.Name)
	}
	if len(names) == 0 {
		o.clear()
		return nil
	}
	w, left, err := o.leftOut(ctx, pool)
	if err != nil {
		o.forget()
		return err
	}
	hints, err := numbers[hintNumbers](ctx, pool, hintNumbersSQL, names)
	if err != nil {
		o.forget()
		return err
	}
	proven, err := numbers[provenNumbers](ctx, pool, provenNumbersSQL, names, w.sources, w.accounts)
	if err != nil {
		o.forget()
		return err
	}
	drifts, err := numbers[driftNumbers](ctx, pool, driftNumbersSQL, names, w.sources, w.accounts)
	if err != nil {
		o.forget()
		return err
	}
	calls, err := numbers[callNumbers](ctx, pool, callsSQL, names, allotted)
	if err != nil {
		o.forget()
		return err
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	o.hints, o.proven, o.drifts, o.calls, o.left = hints, proven, drifts, calls, left
	return nil
}

func numbers[T any](ctx context.Context, pool *pgxpool.Pool, sql string, args ...any) ([]T, error) {
	rows, err := pool.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, pgx.RowToStructByPos[T])
}

// clear removes all numbers: no source has an API.
func (o *Owed) clear() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.hints, o.proven, o.drifts, o.calls, o.left = nil, nil, nil, nil, nil
}

// forget: what was read is not known to be so any more.
func (o *Owed) forget() {
	o.mu.Lock()
	defer o.mu.Unlock()
	for i := range o.hints {
		o.hints[i].Hints, o.hints[i].Parked, o.hints[i].Waiting = math.NaN(), math.NaN(), math.NaN()
	}
	for i := range o.proven {
		o.proven[i].Until = math.NaN()
	}
	for i := range o.drifts {
		o.drifts[i].forget()
	}
	for i := range o.calls {
		o.calls[i].Calls = math.NaN()
	}
	for i := range o.left {
		o.left[i].Accounts = math.NaN()
	}
}

// Describe is prometheus.Collector's.
func (o *Owed) Describe(out chan<- *prometheus.Desc) {
	for _, d := range []*prometheus.Desc{hintsDesc, parkedDesc, waitingDesc, provenDesc, driftDesc, checkedDesc, hiddenDesc, mendedDesc, leftDesc, callsDesc, allowedDesc, leftOutDesc} {
		out <- d
	}
}

// Collect is prometheus.Collector's.
func (o *Owed) Collect(out chan<- prometheus.Metric) {
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, h := range o.hints {
		out <- prometheus.MustNewConstMetric(hintsDesc, prometheus.GaugeValue, h.Hints, h.Source)
		out <- prometheus.MustNewConstMetric(parkedDesc, prometheus.GaugeValue, h.Parked, h.Source)
		out <- prometheus.MustNewConstMetric(waitingDesc, prometheus.GaugeValue, h.Waiting, h.Source)
	}
	for _, p := range o.proven {
		out <- prometheus.MustNewConstMetric(provenDesc, prometheus.GaugeValue, p.Until, p.Source, p.What)
	}
	for i := range o.drifts {
		o.drifts[i].collect(out)
	}
	for _, c := range o.calls {
		out <- prometheus.MustNewConstMetric(callsDesc, prometheus.GaugeValue, c.Calls, c.Source)
	}
	for _, l := range o.left {
		out <- prometheus.MustNewConstMetric(leftOutDesc, prometheus.GaugeValue, l.Accounts, l.Source, l.Why)
	}
	for _, s := range o.sources.All() {
		out <- prometheus.MustNewConstMetric(allowedDesc, prometheus.GaugeValue, float64(s.API.Monthly), s.Name)
	}
}
