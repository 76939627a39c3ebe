package main

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/postern-gateway/postern/bench/suite"
)

// summary returns the text for a terminal: each row's rates, and the measured bounds.
func (r *results) summary() string {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 2, ' ', 0)
	fmt.Fprintln(w, "ROW\tTARGET\tEVENTS/S\tP50 MS\tP99 MS\tP99.9 MS\tMAX MS\tERRORS\tCPU µs/EVENT")
	for _, row := range r.Rows {
		for _, target := range r.Samples.Targets(row.Name) {
			fmt.Fprintf(w, "%s\t%s", row.Name, target)
			for _, c := range commonColumns {
				fmt.Fprintf(w, "\t%s", cell(r.Samples.Value(row.Name, target, c.metric), c.zero))
			}
			fmt.Fprintln(w)
		}
	}
	fmt.Fprintln(w, "\nWHAT\tMEASURED\tMUST BE\t\tHOW")
	for _, v := range r.Bounds {
		if v.Status != suite.Missing {
			fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\n", v.What, spread(v.Figure, v.Unit), formatLimit(v), v.Status,
				v.Formula)
		}
	}
	_ = w.Flush() // a strings.Builder returns no error
	return b.String()
}
