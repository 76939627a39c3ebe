package main

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/postern-gateway/postern/bench/suite"
)

// inventedResults returns invented results: three rounds of two targets in a closed and an open
// loop.
func inventedResults() *results {
	r := &results{Rows: suite.Full(0), Gaps: []suite.Gap{{Row: "growth", Error: "no\nspace"}}}
	for round := range 3 {
		for i, target := range []string{suite.Bare, suite.Postern} {
			program := []string{"bare", "gateway"}[i]
			s := suite.Sample{Row: "closed-64", Target: target, Round: round, Rate: 10_000 - 1000*float64(i) +
				float64(round), P50: 4, P99: 12.34, WAL: 2600,
				CPU: map[string]float64{program: 50, "postgresql": 40}, Memory: map[string]float64{program: 80}}
			r.Samples = append(r.Samples, s)
			for _, percent := range suite.OfferedShares {
				s.Row, s.Offered = suite.Offered(percent), float64(100-i)*float64(percent)
				r.Samples = append(r.Samples, s)
			}
		}
	}
	r.judge()
	return r
}

func TestMarkdown_results_hasTablesAndRatios(t *testing.T) {
	t.Parallel()
	text := inventedResults().markdown()
	for _, want := range []string{
		"| ingest, 64 connections | 0.90 × | ≥ 0.75 × (aim 0.85 ×) | pass | events/s of postern / events/s of bare |",
		"| ingest, 64 connections | – | ≥ 2.00 × | not measured | events/s of postern / events/s of afternoon |",
		"Not measured: `growth`: no space",
		"`closed-64`: closed loop, 64 connections, 2.4 KB\n\n| | events/s | p50 ms | p99 ms | errors | CPU µs/event " +
			"| own | PostgreSQL | WAL B/event | own MiB |",
		"| bare | 10,001 | 4.00 | 12.3 | 0 | 90.0 | 50.0 | 40.0 | 2,600 | 80.0 |",
		"postern / bare: events/s 0.90 ×; p50 1.00 ×; p99 1.00 ×; CPU 1.00 ×; WAL 1.00 ×.",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the tables do not have:\n%s\n\n%s", want, text)
		}
	}
	if strings.Contains(text, "closed-256`") {
		t.Error("a row without samples has a table")
	}
	if n := strings.Count(text, "postern / bare"); n != 1 {
		t.Errorf("targets are compared in %d rows, want 1: targets with different offered loads cannot be compared", n)
	}
}

func TestBrief_results_foldsRowsWithRates(t *testing.T) {
	t.Parallel()
	text := inventedResults().brief()
	for _, want := range []string{
		"| 64 | 9,001 | 10,001 | – | – | 4.00 | 12.3 | 90.0 |",
		"| ingest, 64 connections | 0.90 × | ≥ 0.75 × (aim 0.85 ×) | pass |",
		"Not measured: `growth`: no space",
		"<details>\n<summary>Closed loop</summary>\n\n`closed-64`: closed loop, 64 connections, 2.4 KB\n\n" +
			"| | events/s | p50 ms | p99 ms | CPU µs/event | WAL B/event | own MiB |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the page's tables do not have:\n%s\n\n%s", want, text)
		}
	}
	if open, ended := strings.Count(text, "<details>"), strings.Count(text, "</details>"); open != 2 || ended != open {
		t.Errorf("%d folds are opened and %d ended, want 2", open, ended)
	}
}

func TestRead_savedResults_areEqual(t *testing.T) {
	t.Parallel()
	dir, r := t.TempDir(), inventedResults()
	r.Rows = []suite.Row{{Name: "closed-64", Chapter: "Closed loop", About: "64 connections"}}
	if err := r.save(dir); err != nil {
		t.Fatal(err)
	}
	again, err := readResults(filepath.Join(dir, "results.json"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(r, again, cmpopts.IgnoreUnexported(suite.Row{})); diff != "" {
		t.Errorf("(-saved +read)\n%s", diff)
	}
}

func TestMachineString_showsSettingsAndTraces(t *testing.T) {
	t.Parallel()
	m := machine{NATS: "2", PostgreSQL: "15", Settings: map[string]string{"work_mem": "5MB", "fsync": "on"}}
	if text := m.String(); !strings.Contains(text, "PostgreSQL 15 (fsync on, work_mem 5MB)") ||
		strings.Contains(text, "traces") {
		t.Errorf("without traces: %s", text)
	}
	m.Traces = true
	if text := m.String(); !strings.HasSuffix(text, "NATS 2 with file storage; traces on") {
		t.Errorf("with traces: %s", text)
	}
}

func TestWrite_results_drawsPictures(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	if err := inventedResults().write(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"throughput.svg", "latency.svg", "cpu.svg"} {
		text, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"</svg>", "postern", "sans-serif", "fill:#FFFFFF",
			"@media (prefers-color-scheme: dark)"} {
			if !strings.Contains(string(text), want) {
				t.Errorf("%s has no %s", name, want)
			}
		}
	}
	if err := (&results{}).write(t.TempDir()); err != nil {
		t.Errorf("no samples: %v", err)
	}
}

func TestFill_textBetweenMarks_isReplaced(t *testing.T) {
	t.Parallel()
	const begin, end = "<!-- results -->", "<!-- end of results -->"
	got, err := fillPage("a\n"+begin+"\nold\n"+end+"\nz", "new")
	if err != nil {
		t.Fatal(err)
	}
	if want := fmt.Sprintf("a\n%s\n\nnew\n%s\nz", begin, end); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	again, err := fillPage(got, "new")
	if err != nil || again != got {
		t.Errorf("Fill applied twice returned: %q, %v", again, err)
	}
	if _, err := fillPage("no marks", "new"); err == nil {
		t.Error("Fill accepted a page without marks")
	}
}

// docs/benchmarks.md must show the results that are stored next to it.
func TestText_committedResults_matchDocs(t *testing.T) {
	t.Parallel()
	page := docsPage()
	r, err := page.results()
	if err != nil {
		t.Fatal(err)
	}
	want, err := page.text(r)
	if err != nil {
		t.Fatal(err)
	}
	have, err := os.ReadFile(page.File)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(have)); diff != "" {
		t.Errorf("docs/benchmarks.md differs from its results.json: run cd bench && go run . -docs (-data +page)\n%s",
			diff)
	}
}
