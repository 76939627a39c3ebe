// Package suite runs the rows of the benchmark: each target under each load, in turn, and what they
// cost.
package suite

import (
	"fmt"
	"time"
)

// Shape is a load.
type Shape struct {
	// Connections are kept alive; Rate is arrivals per second of an open loop, 0: closed.
	Connections int
	Rate        float64
	// Body is the size of a body in bytes; Duplicates the share sent again; Sources how many names
	// they come to.
	Body       int
	Duplicates float64
	Sources    int
	// Objects is how many objects the events are about, chosen at random, 0: each is about one of
	// its own.
	Objects int
	For     time.Duration
	// Applied: a processor runs beside. Replayed: it replays everything that is stored, as fast as
	// it can.
	Applied, Replayed bool
	// Database is the database to copy, "": an empty one. InPlace: not a copy, but itself.
	Database string
	InPlace  bool
}

// String is the load in words.
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
	// Events were answered with 2xx (or applied), in Seconds; Rate is both divided.
	Events  int64   `json:"events"`
	Seconds float64 `json:"seconds"`
	Rate    float64 `json:"events_per_second"`
	// Errors are deliveries not answered with 2xx.
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
	// Memory is the most resident at once, in MiB, by program (PostgreSQL: at the end).
	Memory map[string]float64 `json:"memory_mib"`
	// More is what only some rows have.
	More map[string]float64 `json:"more,omitempty"`
}

// more keeps what only some rows have.
func (s *Sample) more(name string, value float64) {
	if s.More == nil {
		s.More = map[string]float64{}
	}
	s.More[name] = value
}

// ServerCPU is what gateway (or reference), PostgreSQL and NATS took together, in microseconds per
// event.
func (s *Sample) ServerCPU() float64 {
	sum := 0.0
	for _, us := range s.CPU {
		sum += us
	}
	return sum
}
