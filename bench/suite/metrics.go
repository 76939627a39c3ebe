package suite

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/bench/load"
)

// metrics has the values of a process, by name with labels as /metrics writes it.
type metrics map[string]float64

// scrapeWithin limits the time to read the metrics.
const scrapeWithin = 10 * time.Second

// scrape reads /metrics at an admin address.
func scrape(ctx context.Context, admin string) (metrics, error) {
	text, err := load.Get(ctx, "http://"+admin+"/metrics", scrapeWithin)
	if err != nil {
		return nil, fmt.Errorf("read metrics: %w", err)
	}
	return parse(bytes.NewReader(text))
}

// parse reads Prometheus's text format, without time stamps.
func parse(r io.Reader) (metrics, error) {
	m, lines := metrics{}, bufio.NewScanner(r)
	for lines.Scan() {
		line := lines.Text()
		at := strings.LastIndexByte(line, ' ')
		if strings.HasPrefix(line, "#") || at < 0 {
			continue
		}
		value, err := strconv.ParseFloat(line[at+1:], 64)
		if err != nil {
			return nil, fmt.Errorf("read metric %q: %w", line, err)
		}
		m[line[:at]] = value
	}
	return m, lines.Err()
}

// sum adds the values of a metric whose labels contain the given text. "" matches all.
func (m metrics) sum(name, label string) float64 {
	total := 0.0
	for key, value := range m {
		bare, labels, _ := strings.Cut(key, "{")
		if bare == name && strings.Contains(labels, label) {
			total += value
		}
	}
	return total
}

// published returns how many events the gateway stored, and how many of them it did not publish.
// The republisher publishes these later.
func (m metrics) published() (stored, unpublished float64) {
	const publishes = "postern_publishes_total"
	return m.sum("postern_events_total", `result="stored"`),
		m.sum(publishes, `result="overflowed"`) + m.sum(publishes, `result="withheld"`) +
			m.sum(publishes, `result="failed"`)
}

// allocations adds the gateway's allocations per delivery between two readings to a sample.
func allocations(sample *Sample, before, after metrics) {
	n := float64(max(sample.Events+sample.Errors, 1))
	sample.more("allocations", (after["go_memstats_mallocs_total"]-before["go_memstats_mallocs_total"])/n)
	sample.more("allocated_bytes", (after["go_memstats_alloc_bytes_total"]-before["go_memstats_alloc_bytes_total"])/n)
}
