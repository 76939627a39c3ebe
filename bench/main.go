// Command bench measures Postern and reference programs on one machine: see docs/benchmarks.md. It
// must be started in the folder bench.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"text/tabwriter"

	"github.com/postern-gateway/postern/bench/suite"
)

// options are the parsed command line.
type options struct {
	quick, list, strict, docs, gate, record bool
	only, out, dir, profile                 string
	rounds                                  int
	// postgres has settings of PostgreSQL, and traces enables traces. Both are off as shipped.
	postgres settings
	traces   bool
	// command is the command line, for the results.
	command string
}

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer cancel()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

// parse reads the arguments. flags must be empty.
func parse(flags *flag.FlagSet, args []string) (options, error) {
	o := options{postgres: settings{}}
	flags.BoolVar(&o.quick, "quick", false, "run only the main rows, short: under three minutes")
	flags.BoolVar(&o.list, "list", false, "list the rows and about how long each takes")
	flags.BoolVar(&o.strict, "strict", false, "exit with status 1 if a bound does not hold or, if all rows are run, "+
		"was not measured")
	flags.BoolVar(&o.docs, "docs", false, "write docs/benchmarks.md and its pictures from results.json in -out or, if "+
		"there is none, from docs/benchmarks/results.json")
	flags.BoolVar(&o.gate, "gate", false, "measure for a minute and compare with gate.json: exit with status 1 if a "+
		"figure is much worse")
	flags.BoolVar(&o.record, "gate-record", false, "measure the figures that -gate compares with and write gate.json")
	flags.StringVar(&o.only, "only", "", "run only these rows, separated by commas; a * at the end of a name matches "+
		"any rest")
	flags.StringVar(&o.out, "out", "out", "folder for results.json, results.md and the pictures")
	flags.StringVar(&o.dir, "dir", "", "folder for the data of PostgreSQL and NATS, on the disk to be measured "+
		"(default: the system's folder for temporary files)")
	flags.StringVar(&o.profile, "profile", "", "take profiles of Postern and the references under load into this "+
		"folder, instead of measuring")
	flags.IntVar(&o.rounds, "rounds", 0, "rounds of the main rows (default 5, with -quick 2)")
	flags.Var(o.postgres, "postgres", "an additional setting of PostgreSQL, `name=value`; may be repeated")
	flags.BoolVar(&o.traces, "traces", false, "make gateway and processor send all traces to a sink in this program")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.command = command(flags)
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected %q: rows are chosen with -only", flags.Args())
	}
	if (o.gate || o.record) && (o.traces || len(o.postgres) > 0) {
		return o, errors.New("-gate and -gate-record measure Postern as shipped: leave out -postgres and -traces, or " +
			"measure with -only")
	}
	return o, nil
}

func run(ctx context.Context) error {
	o, err := parse(flag.CommandLine, os.Args[1:])
	if err != nil {
		return err
	}
	rows := suite.Full(o.rounds)
	if o.quick {
		rows = suite.Quick(o.rounds)
	}
	if o.only != "" {
		if rows, err = suite.Choose(rows, strings.Split(o.only, ",")); err != nil {
			return err
		}
	}
	p := newProgress(os.Stderr)
	log := slog.New(p)
	switch {
	case o.list:
		return list(rows)
	case o.docs:
		return document(o.out)
	case o.profile != "":
		return takeProfiles(ctx, o, log)
	case o.gate:
		return gated(ctx, o, log)
	case o.record:
		return record(ctx, o, log)
	}
	return measure(ctx, o, rows, p, log)
}

func list(rows []suite.Row) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\n", row.Name, clock(row.Takes), row.About)
	}
	fmt.Fprintf(w, "in all, about\t%s\n", clock(suite.Estimate(rows)))
	return w.Flush()
}

var (
	errBounds     = errors.New("not all bounds hold")
	errUnmeasured = errors.New("not all bounds were measured, though all rows were run")
)

// strictError returns the error that -strict reports for some verdicts. A bound that was not
// measured is an error only if all rows were run.
func (o options) strictError(verdicts []suite.Verdict) error {
	switch {
	case !o.strict:
		return nil
	case suite.Failed(verdicts) > 0:
		return errBounds
	case !o.quick && o.only == "" && suite.Unmeasured(verdicts) > 0:
		return errUnmeasured
	}
	return nil
}
