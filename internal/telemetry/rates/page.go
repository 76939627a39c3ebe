package rates

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"

	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"
)

// Page is a page of metrics: its series by their names, and the value of each. A histogram is the
// series NAME_bucket (by le), NAME_sum and NAME_count.
type Page struct {
	byName map[string]model.Vector
	values map[model.Fingerprint]float64
}

// ParsePage reads Prometheus's text format. It returns an error for a page of another program.
func ParsePage(r io.Reader) (*Page, error) {
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(r)
	if err != nil {
		return nil, fmt.Errorf("the response is not a page of metrics: %w", err)
	}
	if _, ok := families["postern_build_info"]; !ok {
		return nil, errors.New("the response is not a page of Postern's metrics")
	}
	samples, err := expfmt.ExtractSamples(&expfmt.DecodeOptions{}, slices.Collect(maps.Values(families))...)
	if err != nil {
		return nil, err
	}
	p := &Page{byName: map[string]model.Vector{}, values: map[model.Fingerprint]float64{}}
	for _, s := range samples {
		name := string(s.Metric[model.MetricNameLabel])
		p.byName[name] = append(p.byName[name], s)
		p.values[s.Metric.Fingerprint()] = float64(s.Value)
	}
	return p, nil
}

// series returns the series with all the given labels (name, value, ...).
func (p *Page) series(name string, labels []string) (found model.Vector) {
	for _, s := range p.byName[name] {
		matches := true
		for i := 0; i+1 < len(labels); i += 2 {
			matches = matches && string(s.Metric[model.LabelName(labels[i])]) == labels[i+1]
		}
		if matches {
			found = append(found, s)
		}
	}
	return found
}

// sum adds up series; ok is false if there is none.
func (p *Page) sum(name string, labels ...string) (sum float64, ok bool) {
	for _, s := range p.series(name, labels) {
		sum, ok = sum+float64(s.Value), true
	}
	return sum, ok
}

// pair holds two pages of one process. Rates need two pages; the current state needs one.
type pair struct {
	before, after *Page
	seconds       float64
}

// increase returns how much counters grew. A counter that fell belongs to a restarted process, so
// all of it is new.
func (p pair) increase(name string, labels ...string) (sum float64) {
	for _, s := range p.after.series(name, labels) {
		oldValue, newValue := p.before.values[s.Metric.Fingerprint()], float64(s.Value)
		if newValue < oldValue {
			oldValue = 0
		}
		sum += newValue - oldValue
	}
	return sum
}

// interval holds the pages of two consecutive scrapes of all processes.
type interval struct {
	pairs []pair
	now   []*Page
}

// labels returns the sorted values of a label.
func (in *interval) labels(name, of string) []string {
	found := map[string]bool{}
	for _, p := range in.now {
		for _, s := range p.byName[name] {
			found[string(s.Metric[model.LabelName(of)])] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// rate returns how fast counters grew over all processes together; unknown if no process has two
// pages.
func (in *interval) rate(name string, labels ...string) Value {
	if len(in.pairs) == 0 {
		return Unknown
	}
	sum := 0.0
	for _, p := range in.pairs {
		sum += p.increase(name, labels...) / p.seconds
	}
	return Value(sum)
}

// increase is the increase of counters over all processes.
func (in *interval) increase(name string, labels ...string) (sum float64) {
	for _, p := range in.pairs {
		sum += p.increase(name, labels...)
	}
	return sum
}

// sum adds up a gauge, or the totals of a counter, over all processes; unknown if no process has
// it.
func (in *interval) sum(name string, labels ...string) Value {
	sum, known := 0.0, false
	for _, p := range in.now {
		if v, ok := p.sum(name, labels...); ok {
			sum, known = sum+v, true
		}
	}
	if !known {
		return Unknown
	}
	return Value(sum)
}

// highest returns the highest value that any process reports; unknown if none reports it.
func (in *interval) highest(name string) Value {
	most := Unknown
	for _, p := range in.now {
		if v, ok := p.sum(name); ok && !math.IsNaN(v) && !(float64(most) >= v) {
			most = Value(v)
		}
	}
	return most
}

func (in *interval) lostConnections() (lost int) {
	for _, p := range in.now {
		for _, s := range p.byName["postern_stream_connected"] {
			if s.Value == 0 {
				lost++
			}
		}
	}
	return lost
}

// mean returns the mean of what a histogram counted in the interval; unknown if that is nothing.
func (in *interval) mean(name string) Value {
	n := in.increase(name + "_count")
	if n <= 0 {
		return Unknown
	}
	return Value(in.increase(name+"_sum") / n)
}

// quantile estimates a quantile of what a histogram counted in the interval; unknown if that is
// nothing.
func (in *interval) quantile(q float64, name string) Value {
	type bucket struct{ bound, count float64 }
	var buckets []bucket
	for _, le := range in.labels(name+"_bucket", model.BucketLabel) {
		bound, err := strconv.ParseFloat(le, 64)
		if err == nil {
			buckets = append(buckets, bucket{bound, in.increase(name+"_bucket", model.BucketLabel, le)})
		}
	}
	slices.SortFunc(buckets, func(a, b bucket) int { return cmp.Compare(a.bound, b.bound) })
	bounds, counts := make([]float64, len(buckets)), make([]float64, len(buckets))
	for i, b := range buckets {
		bounds[i], counts[i] = b.bound, b.count
	}
	return quantile(q, bounds, counts)
}

// quantile estimates a quantile within its bucket, as Prometheus does. It assumes that values are
// spread evenly between the bounds, that the first bucket starts at 0, and that the last one ends
// at its lower bound. counts are cumulative, by the upper bounds of the same index. Unknown if
// nothing was counted.
func quantile(q float64, bounds, counts []float64) Value {
	if len(counts) == 0 || counts[len(counts)-1] <= 0 {
		return Unknown
	}
	rank := q * counts[len(counts)-1]
	i, _ := slices.BinarySearch(counts, rank)
	i = min(i, len(bounds)-1)
	lower, below := 0.0, 0.0
	if i > 0 {
		lower, below = bounds[i-1], counts[i-1]
	}
	if math.IsInf(bounds[i], 1) || counts[i] == below {
		return Value(lower)
	}
	return Value(lower + (bounds[i]-lower)*(rank-below)/(counts[i]-below))
}
