package main

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
)

// measurement is a value that may be unknown: null in JSON, a dash in text.
type measurement float64

var unknownValue = measurement(math.NaN())

// MarshalJSON writes six decimal places, and null for an unknown value.
func (n measurement) MarshalJSON() ([]byte, error) {
	if !n.isKnown() {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, math.Round(float64(n)*1e6)/1e6, 'f', -1, 64), nil
}

func (n measurement) isKnown() bool { return !math.IsNaN(float64(n)) && !math.IsInf(float64(n), 0) }

// view is what `postern top` shows for one interval. Rates are per second, times in seconds.
type view struct {
	At        time.Time       `json:"at"`
	Seconds   float64         `json:"seconds"`
	Processes []processView   `json:"processes"`
	Ingest    ingestView      `json:"ingest"`
	Stream    streamView      `json:"stream"`
	Apply     applyView       `json:"apply"`
	Backlog   backlogView     `json:"backlog"`
	Database  []poolView      `json:"database"`
	Sources   []sourceView    `json:"sources"`
	Outcomes  []outcomeView   `json:"outcomes"`
	Rejected  []rejectionView `json:"rejections"`
}

type processView struct {
	From string `json:"from"`
	Up   bool   `json:"up"`
	// Error says why a process did not respond.
	Error string `json:"error,omitempty"`
	// UpSeconds is the time since the process started.
	UpSeconds measurement `json:"up_seconds"`
}

type ingestView struct {
	Deliveries  measurement `json:"deliveries_per_second"`
	AckP50      measurement `json:"ack_p50_seconds"`
	AckP99      measurement `json:"ack_p99_seconds"`
	Queue       measurement `json:"queue_deliveries"`
	QueueOldest measurement `json:"queue_oldest_seconds"`
	HeldBytes   measurement `json:"held_bytes"`
	BatchMean   measurement `json:"append_batch_mean_deliveries"`
	AppendP50   measurement `json:"append_p50_seconds"`
	AppendP99   measurement `json:"append_p99_seconds"`
}

type streamView struct {
	LagMessages measurement `json:"lag_messages"`
	LagSeconds  measurement `json:"lag_seconds"`
	Published   measurement `json:"published_per_second"`
	// Unpublished are events that were not published; the republisher publishes them later.
	Unpublished     measurement `json:"left_to_republisher_per_second"`
	Republished     measurement `json:"republished_per_second"`
	LostConnections int         `json:"connections_lost"`
	Requeued        measurement `json:"requeued_per_second"`
}

type applyView struct {
	Events    measurement `json:"events_per_second"`
	BatchMean measurement `json:"batch_mean_events"`
	P50       measurement `json:"p50_seconds"`
	P99       measurement `json:"p99_seconds"`
	LagP50    measurement `json:"lag_p50_seconds"`
	LagP99    measurement `json:"lag_p99_seconds"`
	Changes   measurement `json:"changes_per_second"`
}

type backlogView struct {
	Failed        measurement `json:"failed_events"`
	Dead          measurement `json:"dead_events"`
	Unsent        measurement `json:"changes_unsent_batches"`
	UnsentSeconds measurement `json:"changes_unsent_seconds"`
}

type poolView struct {
	Role  string      `json:"role"`
	InUse measurement `json:"in_use"`
	Limit measurement `json:"limit"`
	Waits measurement `json:"waits_per_second"`
}

type sourceView struct {
	// Source is "" for requests to unknown sources.
	Source     string      `json:"source"`
	Deliveries measurement `json:"deliveries_per_second"`
	Stored     measurement `json:"events_per_second"`
	Duplicates measurement `json:"duplicates_per_second"`
	Conflicts  measurement `json:"conflicts_per_second"`
	Rejected   measurement `json:"rejected_per_second"`
	// Refused are requests with a status other than 2xx and 401: too large, too many, database
	// unavailable.
	Refused measurement `json:"refused_per_second"`
	// Total is the number of deliveries since the start.
	Total measurement `json:"deliveries_total"`
}

type outcomeView struct {
	Status string      `json:"status"`
	Rate   measurement `json:"per_second"`
	Total  measurement `json:"total"`
}

type rejectionView struct {
	Source string      `json:"source"`
	Reason string      `json:"reason"`
	Rate   measurement `json:"per_second"`
	Total  measurement `json:"total"`
}

// scrapePair holds two pages of one process. Rates need two pages; the current state needs one.
type scrapePair struct {
	before, after metricFamilies
	seconds       float64
}

// interval holds the pages of two consecutive scrapes of all processes.
type interval struct {
	pairs []scrapePair
	now   []metricFamilies
}

// newView compares two scrapes of the same processes.
func newView(before, after []scrapeResult) view {
	var in interval
	v := view{Processes: make([]processView, len(after))}
	for i, s := range after {
		v.At = laterTime(v.At, s.at)
		v.Processes[i] = processView{From: s.address, Up: s.err == nil, UpSeconds: unknownValue}
		if s.err != nil {
			v.Processes[i].Error = s.err.Error()
			continue
		}
		in.now = append(in.now, s.page)
		if began, ok := s.page.value("process_start_time_seconds"); ok {
			v.Processes[i].UpSeconds = measurement(max(0, float64(s.at.UnixMilli())/1000-began))
		}
		if took := s.at.Sub(before[i].at).Seconds(); before[i].err == nil && took > 0 {
			in.pairs = append(in.pairs, scrapePair{before[i].page, s.page, took})
			v.Seconds = max(v.Seconds, took)
		}
	}
	v.Ingest, v.Stream, v.Apply, v.Backlog = in.ingest(), in.stream(), in.apply(), in.backlog()
	v.Database, v.Sources, v.Outcomes, v.Rejected = in.pools(), in.sources(), in.outcomes(), in.rejections()
	return v
}

func laterTime(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (in *interval) ingest() ingestView {
	ack, batch, took := in.histogramIncrease("postern_ack_seconds"),
		in.histogramIncrease("postern_append_batch_deliveries"), in.histogramIncrease("postern_append_seconds")
	return ingestView{Deliveries: in.rate("postern_deliveries_total"), AckP50: ack.quantile(0.5),
		AckP99: ack.quantile(0.99),
		Queue:  in.sum("postern_queue_deliveries"), QueueOldest: in.highest("postern_queue_oldest_seconds"),
		HeldBytes: in.sum("postern_body_memory_bytes"),
		BatchMean: batch.mean(), AppendP50: took.quantile(0.5), AppendP99: took.quantile(0.99)}
}

func (in *interval) stream() streamView {
	v := streamView{LagMessages: in.highest("postern_stream_lag_messages"),
		LagSeconds:  in.highest("postern_stream_lag_seconds"),
		Published:   in.rate("postern_publishes_total", "result", "acknowledged"),
		Republished: in.rate("postern_republisher_events_total"),
		Requeued:    in.rate("postern_messages_requeued_total")}
	v.Unpublished = in.rate("postern_publishes_total") - v.Published
	for _, p := range in.now {
		for _, m := range p["postern_stream_connected"].GetMetric() {
			if metricValue(m) == 0 {
				v.LostConnections++
			}
		}
	}
	return v
}

func (in *interval) apply() applyView {
	batch, took, lag := in.histogramIncrease("postern_apply_batch_events"),
		in.histogramIncrease("postern_apply_seconds"), in.histogramIncrease("postern_apply_lag_seconds")
	return applyView{Events: in.rate("postern_outcomes_total"), BatchMean: batch.mean(), P50: took.quantile(0.5),
		P99:    took.quantile(0.99),
		LagP50: lag.quantile(0.5), LagP99: lag.quantile(0.99), Changes: in.rate("postern_changes_total", "result",
			"acknowledged")}
}

func (in *interval) backlog() backlogView {
	return backlogView{Failed: in.highest("postern_failed_events"), Dead: in.highest("postern_dead_events"),
		Unsent:        in.highest("postern_changes_unsent_batches"),
		UnsentSeconds: in.highest("postern_changes_unsent_seconds")}
}

func (in *interval) pools() []poolView {
	out := []poolView{}
	for _, role := range in.labels("postern_database_connections_limit", "role") {
		out = append(out, poolView{Role: role, InUse: in.sum("postern_database_connections", "role", role, "state",
			"in_use"),
			Limit: in.sum("postern_database_connections_limit", "role", role),
			Waits: in.rate("postern_database_waits_total", "role", role)})
	}
	return out
}

// sources are sorted by their current rate, because a small screen cuts off the last ones.
func (in *interval) sources() []sourceView {
	out := []sourceView{}
	for _, source := range in.labels("postern_deliveries_total", "source") {
		s := sourceView{Source: source, Deliveries: in.rate("postern_deliveries_total", "source", source),
			Total: in.sum("postern_deliveries_total", "source", source)}
		event := func(result string) measurement {
			return in.rate("postern_events_total", "source", source, "result", result)
		}
		s.Stored, s.Duplicates, s.Conflicts = event("stored"), event("duplicate"), event("conflict")
		s.Rejected = in.rate("postern_deliveries_total", "source", source, "result", "rejected")
		s.Refused = s.Deliveries - s.Rejected
		for _, accepted := range []string{"accepted", "challenge", "handshake"} {
			s.Refused -= in.rate("postern_deliveries_total", "source", source, "result", accepted)
		}
		s.Refused = max(s.Refused, 0) // rounding of the subtraction
		out = append(out, s)
	}
	// they are sorted by name already
	slices.SortStableFunc(out, func(a, b sourceView) int { return cmp.Compare(b.Deliveries, a.Deliveries) })
	return out
}

func (in *interval) outcomes() []outcomeView {
	out := []outcomeView{}
	found := in.labels("postern_outcomes_total", "status")
	slices.SortStableFunc(found, func(a, b string) int { return cmp.Compare(statusRank(a), statusRank(b)) })
	for _, status := range found {
		out = append(out, outcomeView{status, in.rate("postern_outcomes_total", "status", status),
			in.sum("postern_outcomes_total", "status", status)})
	}
	return out
}

// statusRank orders outcomes: successful ones first, then those that need an operator.
func statusRank(status string) int {
	order := []string{"applied", "unchanged", "stale", "ignored", "ambiguous", "failed", "dead"}
	if i := slices.Index(order, status); i >= 0 {
		return i
	}
	return len(order)
}

// rejections are sorted by their current rate, then by their total.
func (in *interval) rejections() []rejectionView {
	const name = "postern_rejections_total"
	out := []rejectionView{}
	for _, source := range in.labels(name, "source") {
		for _, reason := range in.labels(name, "reason") {
			labels := []string{"source", source, "reason", reason}
			if total := in.sum(name, labels...); total > 0 {
				out = append(out, rejectionView{source, reason, in.rate(name, labels...), total})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b rejectionView) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(b.Total, a.Total))
	})
	return out
}

// labels returns the sorted values of a label.
func (in *interval) labels(name, of string) []string {
	found := map[string]bool{}
	for _, p := range in.now {
		for _, m := range p[name].GetMetric() {
			found[labelValue(m, of)] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// rate returns how fast counters grew over all processes together; unknown if no process has two
// pages. A counter that fell belongs to a restarted process, so all of it is new.
func (in *interval) rate(name string, labels ...string) measurement {
	if len(in.pairs) == 0 {
		return unknownValue
	}
	sum := 0.0
	for _, p := range in.pairs {
		for _, m := range p.after[name].GetMetric() {
			if !hasLabels(m, labels) {
				continue
			}
			var allLabels []string
			for _, l := range m.GetLabel() {
				allLabels = append(allLabels, l.GetName(), l.GetValue())
			}
			oldValue, _ := p.before.value(name, allLabels...)
			newValue := metricValue(m)
			if newValue < oldValue {
				oldValue = 0
			}
			sum += (newValue - oldValue) / p.seconds
		}
	}
	return measurement(sum)
}

// histogramIncrease returns what a histogram counted in the interval.
func (in *interval) histogramIncrease(name string) histogram {
	var all histogram
	for _, p := range in.pairs {
		before, after := p.before.histogram(name), p.after.histogram(name)
		all = all.addScaled(after, 1)
		if before.count <= after.count {
			all = all.addScaled(before, -1)
		}
	}
	return all
}

// sum adds up a gauge, or the totals of a counter, over all processes; unknown if no process has
// it.
func (in *interval) sum(name string, labels ...string) measurement {
	sum, known := 0.0, false
	for _, p := range in.now {
		if v, ok := p.value(name, labels...); ok {
			sum, known = sum+v, true
		}
	}
	if !known {
		return unknownValue
	}
	return measurement(sum)
}

// highest returns the highest value that any process reports; unknown if none reports it.
func (in *interval) highest(name string) measurement {
	most := unknownValue
	for _, p := range in.now {
		if v, ok := p.value(name); ok && !math.IsNaN(v) && !(float64(most) >= v) {
			most = measurement(v)
		}
	}
	return most
}

// mean returns the mean of the counted values; unknown if there are none.
func (h histogram) mean() measurement {
	if h.count <= 0 {
		return unknownValue
	}
	return measurement(h.sum / h.count)
}

// quantile estimates a quantile within its bucket, as Prometheus does. It assumes that values are
// spread evenly between the bounds, that the first bucket starts at 0, and that the last one ends
// at its lower bound. Unknown if nothing was counted.
func (h histogram) quantile(q float64) measurement {
	if h.count <= 0 || len(h.bounds) == 0 {
		return unknownValue
	}
	rank := q * h.count
	i, _ := slices.BinarySearch(h.counts, rank)
	i = min(i, len(h.bounds)-1)
	lower, below := 0.0, 0.0
	if i > 0 {
		lower, below = h.bounds[i-1], h.counts[i-1]
	}
	if math.IsInf(h.bounds[i], 1) || h.counts[i] == below {
		return measurement(lower)
	}
	return measurement(lower + (h.bounds[i]-lower)*(rank-below)/(h.counts[i]-below))
}
