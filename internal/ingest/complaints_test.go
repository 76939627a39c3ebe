package ingest_test

import (
	"context"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

// Whatever a stranger sends, and however often, makes a line in the log for each source and reason, not for each request. What was proven is told each time, and all is counted.
func TestFloodsOfStrangersAreFewLines(t *testing.T) {
	t.Parallel()
	const flood = 100
	log, tune := logging(slog.LevelInfo)
	b := setupIdle(t, testkit.Database(t), tune)
	handler := b.server.Handler()
	wrong := b.invoice(t, 1)
	wrong.Body = append(wrong.Body, ' ')
	old := b.signAt(t, "stripe", b.sample(t, "stripe", "invoice.paid", 2), time.Now().Add(-time.Hour))
	unsigned := &provider.Delivery{Header: http.Header{}, Body: []byte("{}")}
	gzipped := &provider.Delivery{Header: http.Header{"Content-Encoding": {"gzip"}}}
	greeting := b.sign(t, "polite", line("ping"))
	ask := func(method, path string) {
		handler.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(method, path, http.NoBody))
	}
	b.server.Drain()
	for n := range flood {
		serve(handler, "stripe", wrong)
		serve(handler, "stripe", old)
		serve(handler, "shop", unsigned)
		serve(handler, "shop", gzipped)
		serve(handler, fmt.Sprint("nobody", n), unsigned)
		ask(http.MethodPut, "/webhooks/stripe")
		ask(http.MethodOptions, "/webhooks/shop")
		ask(http.MethodGet, "/webhooks/polite?challenge=a")
		ask(http.MethodGet, fmt.Sprint("/", n))
		ask(http.MethodGet, "/readyz")
		serve(handler, "polite", greeting)
	}
	lines := map[string]int{}
	for _, l := range log.all(t) {
		lines[fmt.Sprint(l["msg"], " ", l["source"], " ", l["result"], " ", l["reason"])]++
	}
	for _, c := range []struct {
		line string
		want int
	}{
		{"delivery stripe rejected wrong_signature", 1},
		{"delivery stripe rejected stale_timestamp", 1},
		{"delivery shop rejected missing_signature", 1},
		{"delivery shop encoding <nil>", 1},
		{"delivery nobody0 unknown_source <nil>", 1},
		{"delivery stripe method <nil>", 1},
		{"delivery shop method <nil>", 1},
		{"delivery polite challenge <nil>", 1},
		{"request refused <nil> not_found <nil>", 1},
		{"not ready <nil> <nil> <nil>", 1},
		{"delivery polite greeting <nil>", flood},
	} {
		if lines[c.line] != c.want {
			t.Errorf("%s: %d lines, want %d", c.line, lines[c.line], c.want)
		}
		delete(lines, c.line)
	}
	if len(lines) > 0 {
		t.Errorf("and besides: %v", lines)
	}
	for _, labels := range [][]string{{"source=stripe", "reason=wrong_signature"}, {"source=stripe", "reason=stale_timestamp"}, {"source=shop", "reason=missing_signature"}} {
		if n := b.counter(t, "postern_rejections_total", labels...); n != flood {
			t.Errorf("%v: %v counted", labels, n)
		}
	}
}

// A refusal is told when none was for a minute, with how many were kept back.
func TestComplaintsTellHowManyWereKeptBack(t *testing.T) {
	t.Parallel()
	var c ingest.Complaints
	began := time.Unix(1_800_000_000, 0)
	for _, step := range []struct {
		after  time.Duration
		source string
		reason provider.Reason
		since  int
		due    bool
	}{
		{0, "shop", provider.WrongSignature, 0, true},
		{0, "shop", provider.WrongSignature, 0, false},
		{0, "shop", provider.MissingSignature, 0, true},
		{0, "other", provider.WrongSignature, 0, true},
		{time.Minute - 1, "shop", provider.WrongSignature, 0, false},
		{time.Minute, "shop", provider.WrongSignature, 2, true},
		{time.Minute, "shop", provider.WrongSignature, 0, false},
		{time.Minute, "shop", provider.MissingSignature, 0, true},
		{time.Hour, "shop", provider.WrongSignature, 1, true},
	} {
		if since, due := c.Due(step.source, "rejected", step.reason, began.Add(step.after)); since != step.since || due != step.due {
			t.Errorf("%+v: told %v, since the last %d", step, due, since)
		}
	}
}

// A flood that is over is told whole when its minute is, or the gateway stops; and one that goes on is still one line a minute.
func TestComplaintsTellTheEndOfAFlood(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, stop := context.WithCancel(t.Context())
		log := &logged{}
		refuse, ended := ingest.Refusing(ctx, slog.New(slog.NewJSONHandler(log, nil)))
		expect := func(when string, want ...string) {
			t.Helper()
			synctest.Wait()
			var got []string
			for _, l := range log.all(t) {
				got = append(got, fmt.Sprint(l["source"], " ", l["result"], " ", l["more_since"]))
			}
			slices.Sort(got)
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("%s (-want +got):\n%s", when, diff)
			}
		}
		began := time.Now()
		until := func(d time.Duration) { <-time.After(time.Until(began.Add(d))) }
		for range 10 {
			refuse("shop", "rejected")
			refuse("", "not_found")
		}
		refuse("other", "rejected")
		expect("at once", " not_found 0", "other rejected 0", "shop rejected 0")
		until(59 * time.Second)
		expect("within the minute")
		until(61 * time.Second)
		expect("after it", " not_found 9", "shop rejected 9")
		until(90 * time.Second)
		refuse("shop", "rejected")
		expect("soon after")
		until(125 * time.Second)
		expect("a minute after the last line", "shop rejected 1")
		until(10 * time.Minute)
		expect("when nothing comes")
		refuse("shop", "rejected")
		refuse("shop", "rejected")
		expect("again", "shop rejected 0")
		stop()
		<-ended
		expect("at the end", "shop rejected 1")
	})
}
