package report

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/bench/plan"
	"github.com/postern-gateway/postern/bench/suite"
)

// Markdown is everything as tables.
func (r *Results) Markdown() string {
	var b strings.Builder
	b.WriteString(r.ground())
	b.WriteString("\n### What must hold\n\n" + Verdicts(r.Bounds))
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

// ground says where, when and with what.
func (r *Results) ground() string {
	return fmt.Sprintf("Measured on %s in %s with `%s` at commit %s: %s. Everything, the sender too, on this one "+
		"machine.\n"+
		"Figures are medians over rounds; in brackets the least and most of them.\n", r.Began.Format(time.DateOnly),
		r.Took, r.Command, r.Commit, r.Machine)
}

// Verdicts is the table of bounds.
func Verdicts(verdicts []plan.Verdict) string {
	var b strings.Builder
	b.WriteString("| what | measured | must be | | how |\n| --- | --- | --- | --- | --- |\n")
	for _, v := range verdicts {
		status := string(v.Status)
		if v.Status == plan.Pass && v.Aim != 0 && !v.Aimed {
			status += ", short of the aim"
		}
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %s |\n", v.What, spread(v.Figure, v.Unit), Limit(v), status, v.Formula)
	}
	return b.String()
}

// Limit is a bound in words.
func Limit(v plan.Verdict) string {
	sign := "≤ "
	if v.Least {
		sign = "≥ "
	}
	words := sign + with(v.Limit, v.Unit)
	if v.Aim != 0 {
		words += " (aim " + with(v.Aim, v.Unit) + ")"
	}
	return words
}

// columns are those of every row's table; a program's columns come where it ran.
type column struct {
	head   string
	metric plan.Metric
	// zero is a figure too.
	zero bool
}

var common = []column{
	{"events/s", plan.Rate, false}, {"p50 ms", plan.P50, false}, {"p99 ms", plan.P99, false},
	{"p99.9 ms", plan.P999, false}, {"max ms", plan.Max, false},
	{"errors", plan.Errors, true}, {"CPU µs/event", plan.CPU, false},
}

// table is a row: its targets, and how Postern stands to each of the others.
func (r *Results) table(row Row) string {
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

// programs are those besides the target's own, in the order of their columns.
var programs = []string{"postgresql", "nats", "processor"}

// columns are those that have anything to say in a row.
func (r *Results) columns(row string, targets []string) []column {
	own := func(of func(suite.Sample) map[string]float64) plan.Metric {
		return func(s suite.Sample) (float64, bool) {
			for name, v := range of(s) {
				if !slices.Contains(programs, name) {
					return v, true
				}
			}
			return 0, false
		}
	}
	all := slices.Clone(common)
	all = append(all, column{head: "own", metric: own(func(s suite.Sample) map[string]float64 { return s.CPU })})
	for _, p := range programs {
		all = append(all, column{head: names[p], metric: plan.CPUOf(p)})
	}
	all = append(all, column{head: "WAL B/event", metric: plan.WAL},
		column{head: "own MiB", metric: own(func(s suite.Sample) map[string]float64 { return s.Memory })})
	for _, p := range programs {
		all = append(all, column{head: names[p] + " MiB", metric: plan.Memory(p)})
	}
	return slices.DeleteFunc(all, func(c column) bool {
		return !slices.ContainsFunc(targets, func(target string) bool {
			return c.zero || r.Samples.Value(row, target, c.metric).Max > 0
		})
	})
}

var names = map[string]string{"postgresql": "PostgreSQL", "nats": "NATS", "processor": "processor",
	"gateway": "gateway"}

// more is what only some rows have, a line per target.
func (r *Results) more(row string, targets []string) string {
	var b strings.Builder
	for _, target := range targets {
		keys := map[string]bool{}
		for _, s := range r.Samples.Of(row, target) {
			for key := range s.More {
				keys[key] = true
			}
		}
		var said []string
		for _, key := range slices.Sorted(maps.Keys(keys)) {
			said = append(said, strings.ReplaceAll(key, "_", " ")+" "+
				spread(r.Samples.Value(row, target, plan.More(key)), ""))
		}
		if len(said) > 0 {
			fmt.Fprintf(&b, "\n%s: %s.\n", target, strings.Join(said, "; "))
		}
	}
	return b.String()
}

// compared are the figures of which a row gives ratios.
var compared = []column{{"events/s", plan.Rate, false}, {"p50", plan.P50, false}, {"p99", plan.P99, false},
	{"CPU", plan.CPU, false}, {"WAL", plan.WAL, false}}

// ratios are Postern's figures divided by the others' in the same round.
func (r *Results) ratios(row string, targets []string) string {
	var b strings.Builder
	for _, other := range targets {
		if other == suite.Postern || r.offered(row, other) != r.offered(row, suite.Postern) {
			continue
		}
		var said []string
		for _, c := range compared {
			if f := r.Samples.Ratio(row, suite.Postern, other, c.metric); f.Rounds > 0 && f.Max > 0 {
				said = append(said, c.head+" "+spread(f, "x"))
			}
		}
		if len(said) > 0 {
			fmt.Fprintf(&b, "\npostern / %s: %s.\n", other, strings.Join(said, "; "))
		}
	}
	return b.String()
}

// offered is the arrival rate that a target was given. Targets with rates of their own are not
// compared.
func (r *Results) offered(row, target string) float64 {
	return r.Samples.Value(row, target, func(s suite.Sample) (float64, bool) { return s.Offered, true }).Median
}
