package rates

import (
	"errors"
	"fmt"
	"math"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// metricsPage reads a page as a process would send it.
func metricsPage(t *testing.T, lines ...string) *Page {
	t.Helper()
	p, err := ParsePage(strings.NewReader("postern_build_info 1\n" + strings.Join(lines, "\n") + "\n"))
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// scraped is a process's response, some seconds after a fixed time.
func scraped(from string, seconds float64, p *Page) Scrape {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC).Add(time.Duration(seconds * float64(time.Second)))
	s := Scrape{Address: from, At: at, Page: p}
	if p == nil {
		s.Err = errors.New("connection refused")
	}
	return s
}

func TestQuantile_withinBucket(t *testing.T) {
	t.Parallel()
	inf := math.Inf(1)
	for name, c := range map[string]struct {
		bounds, counts []float64
		q              float64
		want           Value
	}{
		"nothing counted":           {[]float64{1, inf}, []float64{0, 0}, 0.5, Unknown},
		"no buckets":                {nil, nil, 0.5, Unknown},
		"within the first bucket":   {[]float64{1, 2, inf}, []float64{4, 4, 4}, 0.5, 0.5},
		"between two bounds":        {[]float64{1, 2, 4, inf}, []float64{2, 6, 10, 10}, 0.8, 3},
		"at a bound":                {[]float64{1, 2, inf}, []float64{5, 10, 10}, 0.5, 1},
		"beyond the last bound":     {[]float64{1, 2, inf}, []float64{1, 1, 10}, 0.99, 2},
		"an empty bucket is passed": {[]float64{1, 2, 4, inf}, []float64{0, 0, 10, 10}, 0.5, 3},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if got := quantile(c.q, c.bounds, c.counts); got != c.want && (got.Known() || c.want.Known()) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

func TestInterval_rate(t *testing.T) {
	t.Parallel()
	const name = "postern_publishes_total"
	acks := func(n int) string { return fmt.Sprintf(name+"{result=\"acknowledged\"} %d", n) }
	fails := func(n int) string { return fmt.Sprintf(name+"{result=\"failed\"} %d", n) }
	for label, c := range map[string]struct {
		before, after []Scrape
		want          Value
	}{
		"grows": {[]Scrape{scraped("a", 0, metricsPage(t, acks(10)))},
			[]Scrape{scraped("a", 2, metricsPage(t, acks(30)))}, 10},
		"two processes": {[]Scrape{scraped("a", 0, metricsPage(t, acks(0))),
			scraped("b", 0, metricsPage(t, acks(5)))}, []Scrape{scraped("a", 1, metricsPage(t, acks(3))),
			scraped("b", 1, metricsPage(t, acks(9)))}, 7},
		"another label": {[]Scrape{scraped("a", 0, metricsPage(t, acks(1), fails(1)))},
			[]Scrape{scraped("a", 1, metricsPage(t, acks(3), fails(100)))}, 2},
		"a new series": {[]Scrape{scraped("a", 0, metricsPage(t))},
			[]Scrape{scraped("a", 1, metricsPage(t, acks(4)))}, 4},
		"restarted": {[]Scrape{scraped("a", 0, metricsPage(t, acks(1000)))},
			[]Scrape{scraped("a", 1, metricsPage(t, acks(6)))}, 6},
		"was down": {[]Scrape{scraped("a", 0, nil), scraped("b", 0, metricsPage(t, acks(1)))},
			[]Scrape{scraped("a", 1, metricsPage(t, acks(900))), scraped("b", 1, metricsPage(t, acks(2)))}, 1},
		"is down": {[]Scrape{scraped("a", 0, metricsPage(t, acks(1)))},
			[]Scrape{scraped("a", 1, nil)}, Unknown},
		"never asked before": {[]Scrape{scraped("a", 1, metricsPage(t, acks(1)))},
			[]Scrape{scraped("a", 1, metricsPage(t, acks(1)))}, Unknown},
		"a process that has no such part": {[]Scrape{scraped("a", 0, metricsPage(t))},
			[]Scrape{scraped("a", 1, metricsPage(t))}, 0},
	} {
		t.Run(label, func(t *testing.T) {
			t.Parallel()
			if got := NewView(c.before, c.after).Stream.Published; got != c.want &&
				(got.Known() || c.want.Known()) {
				t.Errorf("got %v, want %v", got, c.want)
			}
		})
	}
}

// Counts from before the interval are ignored, unless the process has restarted.
func TestInterval_histogramIncrease(t *testing.T) {
	t.Parallel()
	ack := func(upTo1, upTo2, all int) []string {
		return []string{"# TYPE postern_ack_seconds histogram", fmt.Sprintf(`postern_ack_seconds_bucket{le="1"} %d`,
			upTo1),
			fmt.Sprintf(`postern_ack_seconds_bucket{le="2"} %d`, upTo2),
			fmt.Sprintf(`postern_ack_seconds_bucket{le="+Inf"} %d`, all),
			fmt.Sprintf("postern_ack_seconds_sum %d", all), fmt.Sprintf("postern_ack_seconds_count %d", all)}
	}
	v := NewView([]Scrape{scraped("a", 0, metricsPage(t, ack(100, 100, 100)...))},
		[]Scrape{scraped("a", 1, metricsPage(t, ack(100, 110, 110)...))})
	if v.Ingest.AckP50 != 1.5 {
		t.Errorf("p50 %v, want that of the ten new ones, 1.5", v.Ingest.AckP50)
	}
	v = NewView([]Scrape{scraped("a", 0, metricsPage(t, ack(100, 100, 100)...))},
		[]Scrape{scraped("a", 1, metricsPage(t, ack(10, 10, 10)...))})
	if v.Ingest.AckP50 != 0.5 {
		t.Errorf("p50 %v after a new start, want 0.5", v.Ingest.AckP50)
	}
}

// A gauge from the database is the same in every processor, and an unknown value does not hide
// another one.
func TestInterval_highest(t *testing.T) {
	t.Parallel()
	after := []Scrape{scraped("a", 1, metricsPage(t, "postern_dead_events NaN",
		"postern_queue_deliveries{source=\"a\"} 2",
		"postern_queue_deliveries{source=\"b\"} 3")),
		scraped("b", 1, metricsPage(t, "postern_dead_events 4", "postern_queue_deliveries{source=\"a\"} 1")),
		scraped("c", 1, metricsPage(t, "postern_dead_events 3")),
		scraped("d", 1, metricsPage(t, "postern_dead_events NaN"))}
	v := NewView(after, after)
	if v.Backlog.Dead != 4 || v.Ingest.Queue != 6 || v.Backlog.Failed.Known() {
		t.Errorf("dead %v, want 4; queue %v, want 6; failed %v, want unknown", v.Backlog.Dead, v.Ingest.Queue,
			v.Backlog.Failed)
	}
}
