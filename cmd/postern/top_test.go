package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/telemetry/rates"
	"github.com/postern-gateway/postern/internal/testkit"
)

// metricsPage reads a page as a process would send it.
func metricsPage(t *testing.T, lines ...string) *rates.Page {
	t.Helper()
	p, err := rates.ParsePage(strings.NewReader("postern_build_info 1\n" + strings.Join(lines, "\n") + "\n"))
	testkit.Must(t, err)
	return p
}

// scraped is a process's response, some seconds after a fixed time.
func scraped(from string, seconds float64, p *rates.Page) rates.Scrape {
	at := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC).Add(time.Duration(seconds * float64(time.Second)))
	s := rates.Scrape{Address: from, At: at, Page: p}
	if p == nil {
		s.Err = errors.New("connection refused")
	}
	return s
}

func TestView_frame(t *testing.T) {
	t.Parallel()
	before := []rates.Scrape{scraped("http://a/metrics", 0,
		metricsPage(t, "postern_deliveries_total{source=\"stripe\",result=\"accepted\"} 0",
			"postern_events_total{source=\"stripe\",result=\"stored\"} 0")), scraped("http://b/metrics", 0, nil)}
	after := []rates.Scrape{scraped("http://a/metrics", 2, metricsPage(t, "process_start_time_seconds 1.795262e+09",
		`postern_deliveries_total{source="stripe",result="accepted"} 2500`,
		`postern_deliveries_total{source="stripe",result="rejected"} 4`,
		`postern_deliveries_total{source="stripe",result="overloaded"} 3`,
		`postern_deliveries_total{source="",result="unknown_source"} 1`,
		`postern_deliveries_total{source="quiet",result="accepted"} 0`,
		`postern_events_total{source="stripe",result="stored"} 2400`,
		`postern_events_total{source="stripe",result="duplicate"} 100`,
		`postern_rejections_total{source="stripe",reason="wrong_signature"} 4`,
		"postern_queue_deliveries{source=\"stripe\"} 17", "postern_queue_oldest_seconds 0.0123",
		"postern_body_memory_bytes 70000", "postern_stream_lag_messages 1234567", "postern_stream_lag_seconds 61.5",
		`postern_publishes_total{result="acknowledged"} 2300`,
		`postern_publishes_total{result="withheld"} 100`, `postern_stream_connected{connection="gateway"} 0`,
		`postern_outcomes_total{status="dead"} 1`,
		`postern_outcomes_total{status="applied"} 2000`, "postern_failed_events 2", "postern_dead_events 1",
		"postern_messages_requeued_total 5",
		`postern_database_connections{role="gateway",state="in_use"} 3`,
		`postern_database_connections_limit{role="gateway"} 16`,
		`postern_database_waits_total{role="gateway"} 1`)), scraped("http://b/metrics", 2, nil)}
	v := rates.NewView(before, after)
	const want = `postern top   12:00:02   rates over 2.0 s   1 of 2 processes
  http://a/metrics   up 6m
  http://b/metrics   DOWN: connection refused

INGEST   1,254 deliveries/s    ack p50 -, p99 -             queue 17, 12 ms
APPEND   - per batch           took p50 -, p99 -            memory 68.4 KiB
STREAM   1,150 published/s     0 republished/s              50 unsent/s
APPLY    1,001 events/s        took p50 -, p99 -            - per batch
LAG      1,234,567 messages    p50 -, p99 -                 oldest 61.5 s
CHANGES  0 sent/s              unsent - batches             oldest -
BACKLOG  2 failed              1 dead
DATABASE waits 0.50/s   in use gateway 3/16
LOST     1 connection to JetStream
REQUEUED 2.5 messages/s

OUTCOMES     APPLIED  DEAD
events/s       1,000  0.50
since start    2,000     1

REJECTED BY  REASON           PER s  SINCE START
stripe       wrong_signature      2            4

SOURCE, PER s  DELIVERIES  EVENTS  DUPLICATE  CONFLICT  REJECTED  NOT STORED
stripe              1,254   1,200         50         0         2         1.5
(unknown)            0.50       0          0         0         0        0.50

no delivery since the start from 1 source`
	testkit.Equal(t, "frame", want, strings.Join(fitLines(newFrame(&v, math.MaxInt, math.MaxInt), 200, 100),
		"\n"))
	small := fitLines(newFrame(&v, math.MaxInt, math.MaxInt), 20, 5)
	if len(small) != 5 || small[0] != "postern top   12:00…" || !strings.HasPrefix(small[4], "... 18 lines more") {
		t.Errorf("on a small screen: %q", small)
	}
}

// busyView shows a gateway and a processor with many sources: source n has n of everything, and
// other numbers are large.
func busyView(t *testing.T, sources int) rates.View {
	t.Helper()
	var gateway []string
	for n := range sources {
		name := fmt.Sprintf("%02d-source-with-a-long-name", n)
		for _, result := range []string{"accepted", "rejected", "overloaded"} {
			gateway = append(gateway, fmt.Sprintf("postern_deliveries_total{source=%q,result=%q} %d", name, result,
				300*n+1))
		}
		for _, result := range []string{"stored", "duplicate", "conflict"} {
			gateway = append(gateway, fmt.Sprintf("postern_events_total{source=%q,result=%q} %d", name, result,
				300*n+1))
		}
		gateway = append(gateway, fmt.Sprintf("postern_rejections_total{source=%q,reason=\"malformed_signature\"} %d",
			name, 300*n+1))
	}
	gateway = append(gateway, "postern_queue_deliveries 4096", "postern_queue_oldest_seconds 0.999",
		"postern_body_memory_bytes 1e+09", "postern_stream_lag_messages 12345678", "postern_stream_lag_seconds 12345",
		`postern_publishes_total{result="acknowledged"} 123456`, `postern_publishes_total{result="withheld"} 123456`,
		"postern_republisher_events_total 123456")
	processor := []string{"postern_failed_events 100000", "postern_dead_events 100000",
		"postern_changes_unsent_batches 100000", "postern_changes_unsent_seconds 12345"}
	for _, status := range []string{"applied", "unchanged", "stale", "ignored", "ambiguous", "failed", "dead"} {
		processor = append(processor, fmt.Sprintf("postern_outcomes_total{status=%q} 123456", status))
	}
	for _, role := range []string{"gateway", "processor", "operator", "registrar", "maintenance"} {
		gateway = append(gateway, fmt.Sprintf("postern_database_connections{role=%q,state=\"in_use\"} 16", role),
			fmt.Sprintf("postern_database_connections_limit{role=%q} 16", role),
			fmt.Sprintf("postern_database_waits_total{role=%q} 1000", role))
	}
	for _, name := range []string{"postern_ack_seconds", "postern_append_seconds"} {
		gateway = append(gateway, slow(name)...)
	}
	for _, name := range []string{"postern_apply_seconds", "postern_apply_lag_seconds"} {
		processor = append(processor, slow(name)...)
	}
	return rates.NewView([]rates.Scrape{scraped("http://127.0.0.1:8081/metrics", 0, metricsPage(t)),
		scraped("http://127.0.0.1:8082/metrics", 0, metricsPage(t))},
		[]rates.Scrape{scraped("http://127.0.0.1:8081/metrics", 1, metricsPage(t, gateway...)),
			scraped("http://127.0.0.1:8082/metrics", 1, metricsPage(t, processor...))})
}

// slow is a histogram with long durations.
func slow(name string) []string {
	return []string{"# TYPE " + name + " histogram", name + `_bucket{le="0.9"} 50`, name + `_bucket{le="119"} 100`,
		name + `_bucket{le="+Inf"} 100`,
		name + "_sum 100", name + "_count 100"}
}

// On a normal screen the important lines are not cut off, whatever the number of sources, and the
// busiest sources stay.
func TestView_frameOnUsualScreen_fits(t *testing.T) {
	t.Parallel()
	v := busyView(t, 19)
	const want = `postern top   12:00:01   rates over 1.0 s   2 of 2 processes
  http://127.0.0.1:8081/metrics   up -
  http://127.0.0.1:8082/metrics   up -
INGEST   153,957 deliveries/s  ack p50 900 ms, p99 116.6 s  queue 4,096, 999 ms
APPEND   - per batch           took p50 900 ms, p99 116.6 s  memory 953.7 MiB
STREAM   123,456 published/s   123,456 republished/s        123,456 unsent/s
APPLY    864,192 events/s      took p50 900 ms, p99 116.6 s  - per batch
LAG      12,345,678 messages   p50 900 ms, p99 116.6 s      oldest 3h25m
CHANGES  0 sent/s              unsent 100,000 batches       oldest 3h25m
BACKLOG  100,000 failed        100,000 dead
DATABASE waits 5,000/s   in use gateway 16/16, maintenance 16/16,
         operator 16/16, processor 16/16, registrar 16/16
OUTCOMES     APPLIED  UNCHANGED    STALE  IGNORED  AMBIGUOUS   FAILED     DEAD
events/s     123,456    123,456  123,456  123,456    123,456  123,456  123,456
since start  123,456    123,456  123,456  123,456    123,456  123,456  123,456
REJECTED BY                 REASON               PER s  SINCE START
18-source-with-a-long-name  malformed_signature  5,401        5,401
17-source-with-a-long-name  malformed_signature  5,101        5,101
... 17 more: use --once
SOURCE, PER s      DELIVERIES  EVENTS  DUPLICATE  CONFLICT  REJECTED  NOT STORED
18-source-with-a…      16,203   5,401      5,401     5,401     5,401       5,401
17-source-with-a…      15,303   5,101      5,101     5,101     5,101       5,101
16-source-with-a…      14,403   4,801      4,801     4,801     4,801       4,801
... 16 lines more: enlarge the window, or use --once`
	got := fitLines(newFrame(&v, 80, screenRejections), 80, 24)
	testkit.Equal(t, "frame", want, strings.Join(got, "\n"))
	for _, l := range newFrame(&v, 80, screenRejections) {
		if l := strings.TrimRight(l, " "); utf8.RuneCountInString(l) > 80 {
			t.Errorf("wider than the screen: %q", l)
		}
	}
	if all := strings.Join(newFrame(&v, math.MaxInt, math.MaxInt), "\n"); strings.Count(all,
		"-source-with-a-long-name ") != 2*19 ||
		strings.Contains(all, "…") {
		t.Errorf("an unlimited frame is cut:\n%s", all)
	}
}

// Text from a hostile process cannot control the terminal.
func TestView_frameWithControlCharacters_escapesThem(t *testing.T) {
	t.Parallel()
	p := metricsPage(t, "postern_deliveries_total{source=\"\x1b[2J\\n\",result=\"accepted\"} 1",
		"postern_outcomes_total{status=\"\x1b]0;x\"} 1")
	v := rates.NewView([]rates.Scrape{scraped("a", 0, p)}, []rates.Scrape{scraped("a", 1, p)})
	v.Processes[0].Error, v.Processes[0].Up = "\x1b[31m", false
	for _, l := range newFrame(&v, math.MaxInt, math.MaxInt) {
		if strings.ContainsAny(l, "\x1b\r") {
			t.Errorf("control characters in %q", l)
		}
	}
}

func TestTop_severalProcesses_readsAll(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/metrics" {
			http.NotFound(w, r)
			return
		}
		fmt.Fprintf(w, "postern_build_info 1\npostern_deliveries_total{source=\"stripe\",result=\"accepted\"} %d\n",
			1000*asked.Add(1))
	}))
	t.Cleanup(up.Close)
	foreign := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter,
		_ *http.Request) {
		fmt.Fprintln(w, "go_goroutines 1")
	}))
	t.Cleanup(foreign.Close)
	gone := httptest.NewServer(nil)
	gone.Close()
	top := func(args ...string) result {
		return execute(t.Context(), "", append([]string{"top", "--every", "100ms"}, args...)...)
	}

	top("--from", up.URL, "--from", gone.URL, "--from", foreign.URL).want(t, 0, "DOWN: connect: connection refused", "")
	top("--from", strings.TrimPrefix(up.URL, "http://"), "--once").want(t, 0, "stripe", "")
	top("--from", foreign.URL).want(t, 1, "DOWN: the response is not a page of Postern's metrics",
		"no process responds")
	top("--from", up.URL+"/elsewhere").want(t, 1, "DOWN: responds with 404 Not Found", "no process responds")
	top("--from", "ftp://x").want(t, 2, "", "is not a valid URL")
	top("--every", "1ms").want(t, 2, "", "too short")
	top("--dir", t.TempDir()).want(t, 1, "", "or name processes with --from URL")

	var v struct {
		Ingest struct {
			Rate float64  `json:"deliveries_per_second"`
			P99  *float64 `json:"ack_p99_seconds"`
		} `json:"ingest"`
	}
	r := top("--from", up.URL, "--once", "-o", "json")
	if err := json.Unmarshal([]byte(r.out), &v); err != nil || v.Ingest.Rate <= 0 || v.Ingest.P99 != nil {
		t.Errorf("%+v, %v in %s", v, err, r.out)
	}
}

// With -o json it prints one line after another until it is interrupted, which is no error.
func TestTop_json_printsIntervalsUntilInterrupted(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	enough := make(chan struct{})
	up := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintln(w, "postern_build_info 1")
		if asked.Add(1) == 4 {
			close(enough)
		}
	}))
	t.Cleanup(up.Close)
	b := &testBundle{dir: t.TempDir()}
	b.write(t, &config.Instance{AdminURL: up.URL})
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan result, 1)
	go func() { ended <- execute(ctx, "", "--dir", b.dir, "top", "--every", "100ms", "-o", "json") }()
	testkit.Eventually(t, time.Minute, func() error {
		select {
		case <-enough:
			return nil
		default:
			return errors.New("not asked four times")
		}
	})
	cancel()
	r := <-ended
	if r.want(t, 0, "{", ""); strings.Count(r.out, "\n") < 2 {
		t.Errorf("printed %q", r.out)
	}
}
