// Package suite defines the rows of the benchmark, their order and length, and the bounds that the
// results must meet. It puts each target under the load of a row, in turn, and measures what that
// costs.
package suite

import (
	"fmt"
	"time"
)

// Shape is a load.
type Shape struct {
	// Connections is the number of connections, which are kept alive. Rate is the arrivals per
	// second of an open loop, 0 for a closed loop.
	Connections int
	Rate        float64
	// Body is the size of a body in bytes. Duplicates is the share of repeated deliveries. Sources
	// is the number of sources.
	Body       int
	Duplicates float64
	Sources    int
	// Objects is the number of objects, of which each event gets a random one. With 0 each event
	// has its own object.
	Objects int
	For     time.Duration
	// Applied starts a processor too. Replayed makes it replay all stored events at full speed
	// meanwhile. Drained watches its backlog, and waits at the end until it has applied all events.
	Applied, Replayed, Drained bool
	// Database is the database to copy, "" for an empty one. InPlace uses it without copying.
	Database string
	InPlace  bool
}

// String describes the load.
func (s Shape) String() string {
	out := fmt.Sprintf("%d connections, %.1f KB", s.Connections, float64(s.Body)/1000)
	if s.Rate > 0 {
		out = fmt.Sprintf("%.0f/s, %.1f KB", s.Rate, float64(s.Body)/1000)
	}
	if s.Duplicates > 0 {
		out += fmt.Sprintf(", %.0f %% duplicates", 100*s.Duplicates)
	}
	if s.Sources > 1 {
		out += fmt.Sprintf(", %d sources", s.Sources)
	}
	return out
}

// Sample is one run of a target under a load.
type Sample struct {
	Row    string `json:"row"`
	Target string `json:"target"`
	Round  int    `json:"round"`
	// Events counts the deliveries with a 2xx response, or the applied events, within Seconds. Rate
	// is their quotient.
	Events  int64   `json:"events"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"events_per_second"`
	// Errors counts the deliveries without a 2xx response.
	Errors int64 `json:"errors"`
	// Offered is the arrival rate of an open loop.
	Offered float64 `json:"offered_per_second,omitempty"`
	// Latencies in milliseconds.
	P50  float64 `json:"p50_ms"`
	P99  float64 `json:"p99_ms"`
	P999 float64 `json:"p999_ms"`
	Max  float64 `json:"max_ms"`
	// CPU is processor time in microseconds per event, by program.
	CPU map[string]float64 `json:"cpu_us_per_event"`
	// WAL is bytes logged by PostgreSQL per event.
	WAL float64 `json:"wal_bytes_per_event"`
	// Memory is the largest resident memory in MiB, by program. For PostgreSQL it is the value at
	// the end.
	Memory map[string]float64 `json:"memory_mib"`
	// More has numbers that only some rows have.
	More map[string]float64 `json:"more,omitempty"`
}

// rated returns the sample of a number of events within some seconds.
func rated(events int64, seconds float64) Sample {
	return Sample{Events: events, Seconds: seconds, Rate: float64(events) / seconds}
}

// more adds a number that only some rows have.
func (s *Sample) more(name string, value float64) {
	if s.More == nil {
		s.More = map[string]float64{}
	}
	s.More[name] = value
}

// ServerCPU returns the processor time of all servers together, in microseconds per event.
func (s *Sample) ServerCPU() float64 {
	sum := 0.0
	for _, us := range s.CPU {
		sum += us
	}
	return sum
}
