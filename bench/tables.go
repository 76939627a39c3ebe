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
	b.WriteString(r.bounds())
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

// brief returns the tables of docs/benchmarks.md: the capacity of each target, the bounds, and the
// main columns of each row with a rate. The rows are folded, one fold for each chapter.
func (r *results) brief() string {
	var b strings.Builder
	b.WriteString(r.ground())
	b.WriteString("\n### Capacity\n\n" + r.capacityTable())
	b.WriteString(r.bounds())
	b.WriteString("\n### All rows\n\nOwn MiB is the memory of the target's program: the gateway, or the reference.\n")
	chapter := ""
	for _, row := range r.Rows {
		table := r.briefTable(row)
		if table == "" {
			continue
		}
		if row.Chapter != chapter {
			b.WriteString(endFold(chapter) + "\n<details>\n<summary>" + row.Chapter + "</summary>\n")
			chapter = row.Chapter
		}
		b.WriteString("\n" + table)
	}
	return b.String() + endFold(chapter)
}

// endFold ends the fold of a chapter, if there is one.
func endFold(chapter string) string {
	if chapter == "" {
		return ""
	}
	return "\n</details>\n"
}

// bounds returns the bounds with their figures, and the rows that could not be measured.
func (r *results) bounds() string {
	var b strings.Builder
	b.WriteString("\n### Bounds\n\n" + verdictTable(r.Bounds))
	for _, gap := range r.Gaps {
		fmt.Fprintf(&b, "\nNot measured: `%s`: %s\n", gap.Row, strings.ReplaceAll(gap.Error, "\n", " "))
	}
	return b.String()
}

// capacityTable returns the events per second of each target in a closed loop, one line for each
// number of connections, and what they cost Postern.
func (r *results) capacityTable() string {
	var b strings.Builder
	for _, row := range r.Rows {
		if row.Name == suite.Closed(64) {
			fmt.Fprintf(&b, "Row `%s`: %s.\n\n", row.Name, row.About)
		}
	}
	b.WriteString("| connections |")
	for _, s := range styles {
		b.WriteString(" " + s.target + ", events/s |")
	}
	b.WriteString(" postern, p50 ms | p99 ms | CPU µs/event |\n|" + strings.Repeat(" ---: |", len(styles)+4) + "\n")
	for _, n := range connections {
		row := suite.Closed(n)
		if len(r.Samples.Targets(row)) == 0 {
			continue
		}
		fmt.Fprintf(&b, "| %d |", n)
		for _, s := range styles {
			b.WriteString(" " + cell(r.Samples.Value(row, s.target, suite.Rate), false) + " |")
		}
		for _, m := range []suite.Metric{suite.P50, suite.P99, suite.CPU} {
			b.WriteString(" " + cell(r.Samples.Value(row, suite.Postern, m), false) + " |")
		}
		b.WriteByte('\n')
	}
	return b.String()
}

// ground describes when, how and on which machine the results were measured.
func (r *results) ground() string {
	return fmt.Sprintf("Measured on %s in %s with `%s` at commit %s: %s. All programs, also the sender, ran on this "+
		"machine.\n"+
		"Rows of another day or machine say so. Figures are medians over rounds; the brackets have the lowest and "+
		"the highest round.\n",
		r.Began.Format(time.DateOnly), r.Took, r.Command, r.Commit, r.Machine)
}

// verdictTable returns the table of bounds.
func verdictTable(verdicts []suite.Verdict) string {
	var b strings.Builder
	b.WriteString("| what | measured | must be | result | figure |\n| --- | --- | --- | --- | --- |\n")
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
	return r.grid(row, targets, r.columns(row.Name, targets)) + r.more(row.Name, targets) + r.ratios(row.Name, targets)
}

// briefHeads are the columns of docs/benchmarks.md.
var briefHeads = []string{"events/s", "p50 ms", "p99 ms", "CPU µs/event", "WAL B/event", "own MiB", "processor MiB"}

// briefTable returns the main columns of a row, and nothing for a row without a rate.
func (r *results) briefTable(row suite.Row) string {
	targets := r.Samples.Targets(row.Name)
	columns := slices.DeleteFunc(r.columns(row.Name, targets), func(c column) bool {
		return !slices.Contains(briefHeads, c.head)
	})
	if len(columns) == 0 || columns[0].head != briefHeads[0] {
		return ""
	}
	return r.grid(row, targets, columns)
}

// grid returns the heading and the given columns of a row.
func (r *results) grid(row suite.Row, targets []string, columns []column) string {
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
	return b.String()
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
