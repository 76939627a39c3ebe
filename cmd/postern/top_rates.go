package main

import (
	"cmp"
	"maps"
	"math"
	"slices"
	"strconv"
	"time"
)

// quantity is a value that may not be known: null in JSON, a dash for a person.
type quantity float64

var unknown = quantity(math.NaN())

// MarshalJSON writes six places after the point, and null for what is not known.
func (n quantity) MarshalJSON() ([]byte, error) {
	if !n.known() {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, math.Round(float64(n)*1e6)/1e6, 'f', -1, 64), nil
}

func (n quantity) known() bool { return !math.IsNaN(float64(n)) && !math.IsInf(float64(n), 0) }

// view is what `postern top` shows for one interval: rates are per second of it, times in seconds.
type view struct {
	At        time.Time       `json:"at"`
	Seconds   float64         `json:"seconds"`
	Processes []processView   `json:"processes"`
	Ingest    ingestView      `json:"ingest"`
	Stream    streamView      `json:"stream"`
	Apply     applyView       `json:"apply"`
	Left      leftView        `json:"left"`
	Database  []poolView      `json:"database"`
	Sources   []sourceView    `json:"sources"`
	Outcomes  []outcomeView   `json:"outcomes"`
	Rejected  []rejectionView `json:"rejections"`
}

type processView struct {
	From string `json:"from"`
	Up   bool   `json:"up"`
	// Error says why a process that is not up did not answer.
	Error string `json:"error,omitempty"`
	// UpSeconds is how long it has run.
	UpSeconds quantity `json:"up_seconds"`
}

type ingestView struct {
	Deliveries  quantity `json:"deliveries_per_second"`
	AckP50      quantity `json:"ack_p50_seconds"`
	AckP99      quantity `json:"ack_p99_seconds"`
	Queue       quantity `json:"queue_deliveries"`
	QueueOldest quantity `json:"queue_oldest_seconds"`
	HeldBytes   quantity `json:"held_bytes"`
	BatchMean   quantity `json:"append_batch_mean_deliveries"`
	AppendP50   quantity `json:"append_p50_seconds"`
	AppendP99   quantity `json:"append_p99_seconds"`
}

type streamView struct {
	LagMessages quantity `json:"lag_messages"`
	LagSeconds  quantity `json:"lag_seconds"`
	Published   quantity `json:"published_per_second"`
	// Left are events not published, which the auditor brings back.
	Left       quantity `json:"left_to_auditor_per_second"`
	Audited    quantity `json:"audited_per_second"`
	NotUp      int      `json:"connections_lost"`
	HandedBack quantity `json:"handed_back_per_second"`
}

type applyView struct {
	Events    quantity `json:"events_per_second"`
	BatchMean quantity `json:"batch_mean_events"`
	P50       quantity `json:"p50_seconds"`
	P99       quantity `json:"p99_seconds"`
	LagP50    quantity `json:"lag_p50_seconds"`
	LagP99    quantity `json:"lag_p99_seconds"`
	Changes   quantity `json:"changes_per_second"`
}

type leftView struct {
	Failed        quantity `json:"failed_events"`
	Dead          quantity `json:"dead_events"`
	Unsent        quantity `json:"changes_unsent_batches"`
	UnsentSeconds quantity `json:"changes_unsent_seconds"`
}

type poolView struct {
	Role  string   `json:"role"`
	InUse quantity `json:"in_use"`
	Limit quantity `json:"limit"`
	Waits quantity `json:"waits_per_second"`
}

type sourceView struct {
	// Source is "" for requests to sources that there are not.
	Source     string   `json:"source"`
	Deliveries quantity `json:"deliveries_per_second"`
	Stored     quantity `json:"events_per_second"`
	Duplicates quantity `json:"duplicates_per_second"`
	Conflicts  quantity `json:"conflicts_per_second"`
	Rejected   quantity `json:"rejected_per_second"`
	// Refused are those answered neither 2xx nor 401: too large, too many, no database.
	Refused quantity `json:"refused_per_second"`
	// Total are the deliveries since the start.
	Total quantity `json:"deliveries_total"`
}

type outcomeView struct {
	Status string   `json:"status"`
	Rate   quantity `json:"per_second"`
	Total  quantity `json:"total"`
}

type rejectionView struct {
	Source string   `json:"source"`
	Reason string   `json:"reason"`
	Rate   quantity `json:"per_second"`
	Total  quantity `json:"total"`
}

// pair is two answers of one process. Rates come from processes that answered twice; the state now from those that answer.
type pair struct {
	before, after page
	seconds       float64
}

// interval is all that was told between two rounds of questions.
type interval struct {
	pairs []pair
	now   []page
}

// newView compares two rounds of answers of the same processes.
func newView(before, after []scrape) view {
	var in interval
	v := view{Processes: make([]processView, len(after))}
	for i, s := range after {
		v.At = later(v.At, s.at)
		v.Processes[i] = processView{From: s.from, Up: s.err == nil, UpSeconds: unknown}
		if s.err != nil {
			v.Processes[i].Error = s.err.Error()
			continue
		}
		in.now = append(in.now, s.page)
		if began, ok := s.page.value("process_start_time_seconds"); ok {
			v.Processes[i].UpSeconds = quantity(max(0, float64(s.at.UnixMilli())/1000-began))
		}
		if took := s.at.Sub(before[i].at).Seconds(); before[i].err == nil && took > 0 {
			in.pairs = append(in.pairs, pair{before[i].page, s.page, took})
			v.Seconds = max(v.Seconds, took)
		}
	}
	v.Ingest, v.Stream, v.Apply, v.Left = in.ingest(), in.stream(), in.apply(), in.left()
	v.Database, v.Sources, v.Outcomes, v.Rejected = in.pools(), in.sources(), in.outcomes(), in.rejections()
	return v
}

func later(a, b time.Time) time.Time {
	if a.After(b) {
		return a
	}
	return b
}

func (in *interval) ingest() ingestView {
	ack, batch, took := in.spread("postern_ack_seconds"), in.spread("postern_append_batch_deliveries"), in.spread("postern_append_seconds")
	return ingestView{Deliveries: in.rate("postern_deliveries_total"), AckP50: ack.quantile(0.5), AckP99: ack.quantile(0.99),
		Queue: in.sum("postern_queue_deliveries"), QueueOldest: in.most("postern_queue_oldest_seconds"), HeldBytes: in.sum("postern_held_bytes"),
		BatchMean: batch.mean(), AppendP50: took.quantile(0.5), AppendP99: took.quantile(0.99)}
}

func (in *interval) stream() streamView {
	v := streamView{LagMessages: in.most("postern_stream_lag_messages"), LagSeconds: in.most("postern_stream_lag_seconds"),
		Published: in.rate("postern_publishes_total", "result", "acknowledged"), Audited: in.rate("postern_audited_events_total"),
		HandedBack: in.rate("postern_messages_handed_back_total")}
	v.Left = in.rate("postern_publishes_total") - v.Published
	for _, p := range in.now {
		for _, m := range p["postern_stream_connected"].GetMetric() {
			if plainValue(m) == 0 {
				v.NotUp++
			}
		}
	}
	return v
}

func (in *interval) apply() applyView {
	batch, took, lag := in.spread("postern_apply_batch_events"), in.spread("postern_apply_seconds"), in.spread("postern_apply_lag_seconds")
	return applyView{Events: in.rate("postern_outcomes_total"), BatchMean: batch.mean(), P50: took.quantile(0.5), P99: took.quantile(0.99),
		LagP50: lag.quantile(0.5), LagP99: lag.quantile(0.99), Changes: in.rate("postern_changes_total", "result", "acknowledged")}
}

func (in *interval) left() leftView {
	return leftView{Failed: in.most("postern_failed_events"), Dead: in.most("postern_dead_events"), Unsent: in.most("postern_changes_unsent_batches"),
		UnsentSeconds: in.most("postern_changes_unsent_seconds")}
}

func (in *interval) pools() []poolView {
	out := []poolView{}
	for _, role := range in.labels("postern_database_connections_limit", "role") {
		out = append(out, poolView{Role: role, InUse: in.sum("postern_database_connections", "role", role, "state", "in_use"),
			Limit: in.sum("postern_database_connections_limit", "role", role), Waits: in.rate("postern_database_waits_total", "role", role)})
	}
	return out
}

// sources are sorted by what is going on now: what a screen has no room for is the least of it.
func (in *interval) sources() []sourceView {
	out := []sourceView{}
	for _, source := range in.labels("postern_deliveries_total", "source") {
		s := sourceView{Source: source, Deliveries: in.rate("postern_deliveries_total", "source", source),
			Total: in.sum("postern_deliveries_total", "source", source)}
		event := func(result string) quantity {
			return in.rate("postern_events_total", "source", source, "result", result)
		}
		s.Stored, s.Duplicates, s.Conflicts = event("stored"), event("duplicate"), event("conflict")
		s.Rejected = in.rate("postern_deliveries_total", "source", source, "result", "rejected")
		s.Refused = s.Deliveries - s.Rejected
		for _, welcome := range []string{"accepted", "challenge", "greeting"} {
			s.Refused -= in.rate("postern_deliveries_total", "source", source, "result", welcome)
		}
		s.Refused = max(s.Refused, 0) // what the subtraction rounds
		out = append(out, s)
	}
	slices.SortStableFunc(out, func(a, b sourceView) int { return cmp.Compare(b.Deliveries, a.Deliveries) }) // by name they are already
	return out
}

func (in *interval) outcomes() []outcomeView {
	out := []outcomeView{}
	found := in.labels("postern_outcomes_total", "status")
	slices.SortStableFunc(found, func(a, b string) int { return cmp.Compare(place(a), place(b)) })
	for _, status := range found {
		out = append(out, outcomeView{status, in.rate("postern_outcomes_total", "status", status), in.sum("postern_outcomes_total", "status", status)})
	}
	return out
}

// place of an outcome: the good ones first, then those that need somebody.
func place(status string) int {
	order := []string{"applied", "unchanged", "stale", "ignored", "ambiguous", "failed", "dead"}
	if i := slices.Index(order, status); i >= 0 {
		return i
	}
	return len(order)
}

// rejections are sorted by what is going on now, then by what was.
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

// labels are the values of a label that are in use, sorted.
func (in *interval) labels(name, of string) []string {
	found := map[string]bool{}
	for _, p := range in.now {
		for _, m := range p[name].GetMetric() {
			found[label(m, of)] = true
		}
	}
	return slices.Sorted(maps.Keys(found))
}

// rate is how fast counters grew, over all processes together; unknown where no process was asked twice. A counter that fell
// belongs to a process that started anew: then all of it is new.
func (in *interval) rate(name string, labels ...string) quantity {
	if len(in.pairs) == 0 {
		return unknown
	}
	sum := 0.0
	for _, p := range in.pairs {
		for _, m := range p.after[name].GetMetric() {
			if !hasLabels(m, labels) {
				continue
			}
			var own []string
			for _, l := range m.GetLabel() {
				own = append(own, l.GetName(), l.GetValue())
			}
			was, _ := p.before.value(name, own...)
			is := plainValue(m)
			if is < was {
				was = 0
			}
			sum += (is - was) / p.seconds
		}
	}
	return quantity(sum)
}

// spread is what histograms counted in the interval.
func (in *interval) spread(name string) histogram {
	var all histogram
	for _, p := range in.pairs {
		before, after := p.before.histogram(name), p.after.histogram(name)
		all = all.plus(after, 1)
		if before.count <= after.count {
			all = all.plus(before, -1)
		}
	}
	return all
}

// sum adds up a gauge, or the totals of a counter, over all processes; unknown where none has it.
func (in *interval) sum(name string, labels ...string) quantity {
	sum, known := 0.0, false
	for _, p := range in.now {
		if v, ok := p.value(name, labels...); ok {
			sum, known = sum+v, true
		}
	}
	if !known {
		return unknown
	}
	return quantity(sum)
}

// most is the greatest of what several processes tell of one thing; unknown where none knows.
func (in *interval) most(name string) quantity {
	most := unknown
	for _, p := range in.now {
		if v, ok := p.value(name); ok && !math.IsNaN(v) && !(float64(most) >= v) {
			most = quantity(v)
		}
	}
	return most
}

// mean of what was counted; unknown where nothing was.
func (h histogram) mean() quantity {
	if h.count <= 0 {
		return unknown
	}
	return quantity(h.sum / h.count)
}

// quantile estimates within the bucket that holds it, as Prometheus does: values lie evenly between the bounds, the first bucket
// begins at 0, and the last ends at its lower bound. Unknown where nothing was counted.
func (h histogram) quantile(q float64) quantity {
	if h.count <= 0 || len(h.bounds) == 0 {
		return unknown
	}
	rank := q * h.count
	i, _ := slices.BinarySearch(h.counts, rank)
	i = min(i, len(h.bounds)-1)
	lower, below := 0.0, 0.0
	if i > 0 {
		lower, below = h.bounds[i-1], h.counts[i-1]
	}
	if math.IsInf(h.bounds[i], 1) || h.counts[i] == below {
		return quantity(lower)
	}
	return quantity(lower + (h.bounds[i]-lower)*(rank-below)/(h.counts[i]-below))
}
