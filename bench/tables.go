package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/bench/suite"
)

// markdown returns all results as tables.
func (r *results) markdown() string {
	var b strings.Builder
	b.WriteString(r.ground())
	b.WriteString("\n### What must hold\n\n" + verdictTable(r.Bounds))
	for _, gap := range r.Gaps {
		fmt.Fprintf(&b, "\nNot measured: `%s`: %s\n", gap.Row, strings.ReplaceAll(gap.Error, "\n", " "))
	}
	chapter := ""
	for _, row := range r.Rows {
		if len(r.Samples.Targets(row.Name)) == 0 {
			continue
		}
		if row.Chapter != chapter {
			chapter = row.Chapter
			b.WriteString("\n### " + chapter + "\n")
		}
		b.WriteString("\n" + r.table(row))
	}
	return b.String()
}

// ground describes when, how and on which machine the results were measured.
func (r *results) ground() string {
	return fmt.Sprintf("Measured on %s in %s with `%s` at commit %s: %s. All programs, also the sender, ran on this "+
		"machine.\n"+
		"Figures are medians over rounds; the brackets have the lowest and the highest round.\n",
		r.Began.Format(time.DateOnly), r.Took, r.Command, r.Commit, r.Machine)
}

// verdictTable returns the table of bounds.
func verdictTable(verdicts []suite.Verdict) string {
	var b strings.Builder
	b.WriteString("| what | measured | must be | | how |\n| --- | --- | --- | --- | --- |\n")
	for _, v := range verdicts {
		status := string(v.Status)
		if v.Status == suite.Pass && v.Aim != 0 && !v.Aimed {
			status += ", short of the aim"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", v.What, spread(v.Figure, v.Unit), formatLimit(v), status,
			v.Formula)
	}
	return b.String()
}

// formatLimit formats the limit of a bound and its aim.
func formatLimit(v suite.Verdict) string {
	sign := "≤ "
	if v.Least {
		sign = "≥ "
	}
	words := sign + withUnit(v.Limit, v.Unit)
	if v.Aim != 0 {
		words += " (aim " + withUnit(v.Aim, v.Unit) + ")"
	}
	return words
}

// column is one column of a row's table. Columns of a program appear only where it ran.
type column struct {
	head   string
	metric suite.Metric
	// zero means that 0 is a valid value.
	zero bool
}

var commonColumns = []column{
	{"events/s", suite.Rate, false}, {"p50 ms", suite.P50, false}, {"p99 ms", suite.P99, false},
	{"p99.9 ms", suite.P999, false}, {"max ms", suite.Max, false},
	{"errors", suite.Errors, true}, {"CPU µs/event", suite.CPU, false},
}

// table returns the table of a row and the ratios of Postern to the other targets.
func (r *results) table(row suite.Row) string {
	targets := r.Samples.Targets(row.Name)
	columns := r.columns(row.Name, targets)
	var b strings.Builder
	fmt.Fprintf(&b, "`%s`: %s\n\n| |", row.Name, row.About)
	for _, c := range columns {
		b.WriteString(" " + c.head + " |")
	}
	b.WriteString("\n| --- |" + strings.Repeat(" ---: |", len(columns)) + "\n")
	for _, target := range targets {
		b.WriteString("| " + target + " |")
		for _, c := range columns {
			b.WriteString(" " + cell(r.Samples.Value(row.Name, target, c.metric), c.zero) + " |")
		}
		b.WriteByte('\n')
	}
	return b.String() + r.more(row.Name, targets) + r.ratios(row.Name, targets)
}

// programs are the programs other than the target's own, in the order of their columns.
var programs = []string{"postgresql", "nats", "processor"}

// columns returns the columns that have a value in a row.
func (r *results) columns(row string, targets []string) []column {
	own := func(of func(suite.Sample) map[string]float64) suite.Metric {
		return func(s suite.Sample) (float64, bool) {
			for name, v := range of(s) {
				if !slices.Contains(programs, name) {
					return v, true
				}
			}
			return 0, false
		}
	}
	all := slices.Clone(commonColumns)
	all = append(all, column{head: "own", metric: own(func(s suite.Sample) map[string]float64 { return s.CPU })})
	for _, p := range programs {
		all = append(all, column{head: programNames[p], metric: suite.CPUOf(p)})
	}
	all = append(all, column{head: "WAL B/event", metric: suite.WAL},
		column{head: "own MiB", metric: own(func(s suite.Sample) map[string]float64 { return s.Memory })})
	for _, p := range programs {
		all = append(all, column{head: programNames[p] + " MiB", metric: suite.Memory(p)})
	}
	return slices.DeleteFunc(all, func(c column) bool {
		return !slices.ContainsFunc(targets, func(target string) bool {
			return c.zero || r.Samples.Value(row, target, c.metric).Max > 0
		})
	})
}

var programNames = map[string]string{"postgresql": "PostgreSQL", "nats": "NATS", "processor": "processor",
	"gateway": "gateway"}

// more lists the numbers that only some rows have, one line per target.
func (r *results) more(row string, targets []string) string {
	var b strings.Builder
	for _, target := range targets {
		keys := map[string]bool{}
		for _, s := range r.Samples.Of(row, target) {
			for key := range s.More {
				keys[key] = true
			}
		}
		var parts []string
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			parts = append(parts, strings.ReplaceAll(key, "_", " ")+" "+
				spread(r.Samples.Value(row, target, suite.More(key)), ""))
		}
		if len(parts) > 0 {
			fmt.Fprintf(&b, "\n%s: %s.\n", target, strings.Join(parts, "; "))
		}
	}
	return b.String()
}

// comparedColumns are the figures for which a row shows ratios.
var comparedColumns = []column{{"events/s", suite.Rate, false}, {"p50", suite.P50, false}, {"p99", suite.P99, false},
	{"CPU", suite.CPU, false}, {"WAL", suite.WAL, false}}

// ratios lists Postern's figures divided by the others' in the same round.
func (r *results) ratios(row string, targets []string) string {
	var b strings.Builder
	for _, other := range targets {
		if other == suite.Postern || r.offered(row, other) != r.offered(row, suite.Postern) {
			continue
		}
		var parts []string
		for _, c := range comparedColumns {
			if f := r.Samples.Ratio(row, suite.Postern, other, c.metric); f.Rounds > 0 && f.Max > 0 {
				parts = append(parts, c.head+" "+spread(f, "x"))
			}
		}
		if len(parts) > 0 {
			fmt.Fprintf(&b, "\npostern / %s: %s.\n", other, strings.Join(parts, "; "))
		}
	}
	return b.String()
}

// offered returns the arrival rate that a target was given. Targets with different rates are not
// compared.
func (r *results) offered(row, target string) float64 {
	return r.Samples.Value(row, target, func(s suite.Sample) (float64, bool) { return s.Offered, true }).Median
}
