package rates

import (
	"cmp"
	"math"
	"slices"
	"strconv"
	"time"
)

// Value is a value that may be unknown: NaN here, null in JSON.
type Value float64

// Unknown is the value of what no process reports.
var Unknown = Value(math.NaN())

// Known reports whether the value is known.
func (n Value) Known() bool { return !math.IsNaN(float64(n)) && !math.IsInf(float64(n), 0) }

// MarshalJSON writes six decimal places, and null for an unknown value.
func (n Value) MarshalJSON() ([]byte, error) {
	if !n.Known() {
		return []byte("null"), nil
	}
	return strconv.AppendFloat(nil, math.Round(float64(n)*1e6)/1e6, 'f', -1, 64), nil
}

// View is what `postern top` shows for one interval, over all processes. Rates are per second, and
// times are in seconds.
type View struct {
	At        time.Time   `json:"at"`
	Seconds   float64     `json:"seconds"`
	Processes []Process   `json:"processes"`
	Ingest    Ingest      `json:"ingest"`
	Stream    Stream      `json:"stream"`
	Apply     Apply       `json:"apply"`
	Backlog   Backlog     `json:"backlog"`
	Database  []Pool      `json:"database"`
	Sources   []Source    `json:"sources"`
	Outcomes  []Outcome   `json:"outcomes"`
	Rejected  []Rejection `json:"rejections"`
}

// Process is the state of one process.
type Process struct {
	From string `json:"from"`
	Up   bool   `json:"up"`
	// Error says why a process did not respond.
	Error string `json:"error,omitempty"`
	// UpSeconds is the time since the process started.
	UpSeconds Value `json:"up_seconds"`
}

// Ingest is what gateways receive and store.
type Ingest struct {
	Deliveries  Value `json:"deliveries_per_second"`
	AckP50      Value `json:"ack_p50_seconds"`
	AckP99      Value `json:"ack_p99_seconds"`
	Queue       Value `json:"queue_deliveries"`
	QueueOldest Value `json:"queue_oldest_seconds"`
	HeldBytes   Value `json:"held_bytes"`
	BatchMean   Value `json:"append_batch_mean_deliveries"`
	AppendP50   Value `json:"append_p50_seconds"`
	AppendP99   Value `json:"append_p99_seconds"`
}

// Stream is what is published, and how far the processors are behind.
type Stream struct {
	LagMessages Value `json:"lag_messages"`
	LagSeconds  Value `json:"lag_seconds"`
	Published   Value `json:"published_per_second"`
	// Unpublished are events that were not published; the republisher publishes them later.
	Unpublished     Value `json:"left_to_republisher_per_second"`
	Republished     Value `json:"republished_per_second"`
	LostConnections int   `json:"connections_lost"`
	Requeued        Value `json:"requeued_per_second"`
}

// Apply is what processors apply.
type Apply struct {
	Events    Value `json:"events_per_second"`
	BatchMean Value `json:"batch_mean_events"`
	P50       Value `json:"p50_seconds"`
	P99       Value `json:"p99_seconds"`
	LagP50    Value `json:"lag_p50_seconds"`
	LagP99    Value `json:"lag_p99_seconds"`
	Changes   Value `json:"changes_per_second"`
}

// Backlog is the work that waits.
type Backlog struct {
	Failed        Value `json:"failed_events"`
	Dead          Value `json:"dead_events"`
	Unsent        Value `json:"changes_unsent_batches"`
	UnsentSeconds Value `json:"changes_unsent_seconds"`
}

// Pool is the use of database connections by one role.
type Pool struct {
	Role  string `json:"role"`
	InUse Value  `json:"in_use"`
	Limit Value  `json:"limit"`
	Waits Value  `json:"waits_per_second"`
}

// Source is what one source receives.
type Source struct {
	// Source is "" for requests to unknown sources.
	Source     string `json:"source"`
	Deliveries Value  `json:"deliveries_per_second"`
	Stored     Value  `json:"events_per_second"`
	Duplicates Value  `json:"duplicates_per_second"`
	Conflicts  Value  `json:"conflicts_per_second"`
	Rejected   Value  `json:"rejected_per_second"`
	// Refused are requests with a status other than 2xx and 401: too large, too many, database
	// unavailable.
	Refused Value `json:"refused_per_second"`
	// Total is the number of deliveries since the start.
	Total Value `json:"deliveries_total"`
}

// Outcome counts the outcomes of one status.
type Outcome struct {
	Status string `json:"status"`
	Rate   Value  `json:"per_second"`
	Total  Value  `json:"total"`
}

// Rejection counts the rejections of one source for one reason.
type Rejection struct {
	Source string `json:"source"`
	Reason string `json:"reason"`
	Rate   Value  `json:"per_second"`
	Total  Value  `json:"total"`
}

// NewView compares two scrapes of the same processes.
func NewView(before, after []Scrape) View {
	var in interval
	v := View{Processes: make([]Process, len(after))}
	for i, s := range after {
		if s.At.After(v.At) {
			v.At = s.At
		}
		v.Processes[i] = Process{From: s.Address, Up: s.Err == nil, UpSeconds: Unknown}
		if s.Err != nil {
			v.Processes[i].Error = s.Err.Error()
			continue
		}
		in.now = append(in.now, s.Page)
		if began, ok := s.Page.sum("process_start_time_seconds"); ok {
			v.Processes[i].UpSeconds = Value(max(0, float64(s.At.UnixMilli())/1000-began))
		}
		if took := s.At.Sub(before[i].At).Seconds(); before[i].Err == nil && took > 0 {
			in.pairs = append(in.pairs, pair{before[i].Page, s.Page, took})
			v.Seconds = max(v.Seconds, took)
		}
	}
	v.Ingest = Ingest{Deliveries: in.rate("postern_deliveries_total"),
		AckP50: in.quantile(0.5, "postern_ack_seconds"), AckP99: in.quantile(0.99, "postern_ack_seconds"),
		Queue: in.sum("postern_queue_deliveries"), QueueOldest: in.highest("postern_queue_oldest_seconds"),
		HeldBytes: in.sum("postern_body_memory_bytes"), BatchMean: in.mean("postern_append_batch_deliveries"),
		AppendP50: in.quantile(0.5, "postern_append_seconds"), AppendP99: in.quantile(0.99, "postern_append_seconds")}
	published := in.rate("postern_publishes_total", "result", "acknowledged")
	v.Stream = Stream{LagMessages: in.highest("postern_stream_lag_messages"),
		LagSeconds: in.highest("postern_stream_lag_seconds"), Published: published,
		Unpublished: in.rate("postern_publishes_total") - published,
		Republished: in.rate("postern_republisher_events_total"),
		Requeued:    in.rate("postern_messages_requeued_total"), LostConnections: in.lostConnections()}
	v.Apply = Apply{Events: in.rate("postern_outcomes_total"), BatchMean: in.mean("postern_apply_batch_events"),
		P50: in.quantile(0.5, "postern_apply_seconds"), P99: in.quantile(0.99, "postern_apply_seconds"),
		LagP50: in.quantile(0.5, "postern_apply_lag_seconds"), LagP99: in.quantile(0.99, "postern_apply_lag_seconds"),
		Changes: in.rate("postern_changes_total", "result", "acknowledged")}
	v.Backlog = Backlog{Failed: in.highest("postern_failed_events"), Dead: in.highest("postern_dead_events"),
		Unsent:        in.highest("postern_changes_unsent_batches"),
		UnsentSeconds: in.highest("postern_changes_unsent_seconds")}
	v.Database, v.Sources, v.Outcomes, v.Rejected = in.pools(), in.sources(), in.outcomes(), in.rejections()
	return v
}

func (in *interval) pools() []Pool {
	out := []Pool{}
	for _, role := range in.labels("postern_database_connections_limit", "role") {
		out = append(out, Pool{Role: role, Limit: in.sum("postern_database_connections_limit", "role", role),
			InUse: in.sum("postern_database_connections", "role", role, "state", "in_use"),
			Waits: in.rate("postern_database_waits_total", "role", role)})
	}
	return out
}

// sources are sorted by their current rate, because a small screen cuts off the last ones.
func (in *interval) sources() []Source {
	out := []Source{}
	for _, source := range in.labels("postern_deliveries_total", "source") {
		s := Source{Source: source, Deliveries: in.rate("postern_deliveries_total", "source", source),
			Total: in.sum("postern_deliveries_total", "source", source)}
		event := func(result string) Value {
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
	slices.SortStableFunc(out, func(a, b Source) int { return cmp.Compare(b.Deliveries, a.Deliveries) })
	return out
}

func (in *interval) outcomes() []Outcome {
	out := []Outcome{}
	found := in.labels("postern_outcomes_total", "status")
	slices.SortStableFunc(found, func(a, b string) int { return cmp.Compare(statusRank(a), statusRank(b)) })
	for _, status := range found {
		out = append(out, Outcome{Status: status, Rate: in.rate("postern_outcomes_total", "status", status),
			Total: in.sum("postern_outcomes_total", "status", status)})
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
func (in *interval) rejections() []Rejection {
	const name = "postern_rejections_total"
	out := []Rejection{}
	for _, source := range in.labels(name, "source") {
		for _, reason := range in.labels(name, "reason") {
			labels := []string{"source", source, "reason", reason}
			if total := in.sum(name, labels...); total > 0 {
				out = append(out, Rejection{source, reason, in.rate(name, labels...), total})
			}
		}
	}
	slices.SortStableFunc(out, func(a, b Rejection) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(b.Total, a.Total))
	})
	return out
}
