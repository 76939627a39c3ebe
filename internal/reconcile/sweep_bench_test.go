package reconcile_test

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/versioning"
)

// long is a list of so many objects that never change, a hundred a page, behind a server of its own.
type long struct {
	objects int
	url     string
}

const longPage = 100

// thing is the n-th object, about a kilobyte of it.
func thing(n int) string {
	return fmt.Sprintf(`{"id":"obj_%08d","name":"Somebody %d","email":"somebody.%d@example.org","address":{"city":"Berlin","country":"DE","line1":"Unter den Linden %d","postal_code":"10117"},
		"balance":%d,"created":1700000000,"currency":"eur","metadata":{"order":"%d","text":"%s"},"version":%d,"shipping":null,"tags":["a","b","c"]}`,
		n, n, n, n%100, n*7, n, strings.Repeat("lorem ipsum ", 40), sim.Start)
}

func (l *long) Download(context.Context, string, string, int64) (io.ReadCloser, error) {
	return nil, errDown
}

func (l *long) page(from int) []byte {
	var out strings.Builder
	out.WriteString(`{"things":[`)
	for n := from; n < min(from+longPage, l.objects); n++ {
		if n > from {
			out.WriteByte(',')
		}
		fmt.Fprintf(&out, `{"id":"obj_%08d","answer":{"unit":1000000,"own":true,"version":%d,"object":%s}}`, n, sim.Start, thing(n))
	}
	next := ""
	if from+longPage < l.objects {
		next = strconv.Itoa(from + longPage)
	}
	fmt.Fprintf(&out, `],"next":"%s"}`, next)
	return []byte(out.String())
}

func (l *long) serve(b *testing.B) {
	pages := make([][]byte, 0, l.objects/longPage) // made before anybody is measured
	for from := 0; from < l.objects; from += longPage {
		pages = append(pages, l.page(from))
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		from, _ := strconv.Atoi(r.URL.Query().Get("cursor"))
		if r.URL.Path == "/list" {
			_, _ = w.Write(pages[from/longPage])
			return
		}
		_, _ = w.Write([]byte(`{}`))
	}))
	b.Cleanup(s.Close)
	l.url = s.URL
}

func (l *long) Now() time.Time       { return time.Now() }
func (*long) Longest() time.Duration { return 0 }
func (*long) Skew() time.Duration    { return 0 }

func (l *long) Do(_ context.Context, c provider.Call) (*reconcile.Response, error) {
	began := time.Now()
	body, err := l.get(c.Path + "?" + c.Query.Encode())
	return &reconcile.Response{Verdict: provider.Verdict{Kind: provider.Found}, Status: 200, Body: body, Date: time.Now().Truncate(time.Second), Elapsed: time.Since(began)}, err
}

func (l *long) get(path string) ([]byte, error) {
	a, err := http.Get(l.url + path)
	if err != nil {
		return nil, err
	}
	defer a.Body.Close()
	return io.ReadAll(a.Body)
}

// fill makes the mirror's rows of the objects.
func (l *long) fill(b *testing.B, db interface {
	CopyFrom(context.Context, pgx.Identifier, []string, pgx.CopyFromSource) (int64, error)
}, source int32) {
	columns := []string{"source", "account", "object_type", "object_id", "version_final", "version_at", "version_seen", "version_rank", "tie_set", "overflow", "window_lo", "window_hi",
		"look_after", "ambiguous", "deleted", "state_hash", "exact_hash", "state", "repaired", "last_event_id", "revision", "rule_version", "created_at", "updated_at"}
	_, err := db.CopyFrom(b.Context(), pgx.Identifier{"postern", "objects"}, columns, pgx.CopyFromSlice(l.objects, func(n int) ([]any, error) {
		v, err := canonical.Parse([]byte(thing(n)))
		if err != nil {
			return nil, err
		}
		s := versioning.NewState(v, false, nil)
		return []any{source, "", "thing", fmt.Sprintf("obj_%08d", n), false, sim.Start, int64(0), int16(1), json.RawMessage(`[]`), false, sim.Start, sim.Start + 999_999, int64(0), false, false,
			s.Hash[:], s.Exact[:], json.RawMessage(s.JSON), false, int64(1), int64(1), int32(1), time.Now(), time.Now()}, nil
	}))
	if err != nil {
		b.Fatal(err)
	}
}

// BenchmarkSweep holds objects that have not changed against the mirror, and beside it a loop that fetches and parses the same pages and does nothing with them.
func BenchmarkSweep(b *testing.B) {
	l := &long{objects: 100_000}
	l.serve(b)
	log := applied.New(b)
	p, gateway := log.Processor(b, nil), log.DB.Role(b, "gateway")
	l.fill(b, log.DB.Pool, log.Source)
	log.DB.Exec(b, `ANALYZE objects`)
	bare := func(b *testing.B, into func() any) {
		for b.Loop() {
			for from := 0; from < l.objects; from += longPage {
				body, err := l.get("/list?cursor=" + strconv.Itoa(from))
				if err != nil {
					b.Fatal(err)
				}
				if err := json.Unmarshal(body, into()); err != nil {
					b.Fatal(err)
				}
			}
		}
		b.ReportMetric(float64(l.objects)*float64(b.N)/b.Elapsed().Seconds(), "objects/s")
	}
	b.Run("bare-any", func(b *testing.B) { bare(b, func() any { return new(any) }) })
	b.Run("bare-raw", func(b *testing.B) {
		bare(b, func() any {
			return new(struct {
				Things []struct{ Answer json.RawMessage }
				Next   string
			})
		})
	})
	b.Run("sweep", func(b *testing.B) {
		r := &reconcile.Runner{Pool: log.Pool, Log: gateway, Processor: p, Sources: &reconcile.Sources{}, Settings: reconcile.DefaultSettings}
		r.Sources.Replace(&reconcile.Source{Name: applied.Name, Number: log.Source, Config: &provider.Source{Name: applied.Name}, API: &provider.API{Concurrency: 5},
			Provider: sim.Provider{}, Reader: sim.Provider{}, Caller: l})
		for b.Loop() {
			if _, err := runs.Ask(b.Context(), log.Operator, runs.Order{Job: reconcile.Job, Asked: reconcile.Order{Source: log.Source, What: reconcile.Objects}, Who: "bench"}); err != nil {
				b.Fatal(err)
			}
			h, err := runs.Take(b.Context(), log.Pool, "bench", time.Minute, reconcile.Job)
			if err != nil || h == nil {
				b.Fatal(h, err)
			}
			if status, err := r.Carry(b.Context(), h, slog.New(slog.DiscardHandler)); err != nil || status != runs.Running || h.Counts[reconcile.Equal] != int64(l.objects) {
				b.Fatal(status, err, h.Counts)
			}
			if err := h.End(b.Context(), runs.Done, ""); err != nil {
				b.Fatal(err)
			}
		}
		b.ReportMetric(float64(l.objects)*float64(b.N)/b.Elapsed().Seconds(), "objects/s")
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		b.ReportMetric(float64(m.HeapInuse)/1e6, "MB-heap")
	})
}
