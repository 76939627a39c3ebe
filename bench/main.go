// Command bench measures Postern beside references on one machine: see docs/benchmarks.md. It runs
// in the folder bench.
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

	"github.com/postern-gateway/postern/bench/plan"
)

// options are what the command line says.
type options struct {
	quick, list, strict, docs, gate, record bool
	only, out, dir, profile                 string
	rounds                                  int
	// postgres are settings, and traces says that traces are sent, beside what is shipped.
	postgres settings
	traces   bool
	// command is how the program was called.
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

// parse reads the arguments; flags is a set with nothing in it.
func parse(flags *flag.FlagSet, args []string) (options, error) {
	o := options{postgres: settings{}}
	flags.BoolVar(&o.quick, "quick", false, "the main rows, short: in under three minutes")
	flags.BoolVar(&o.list, "list", false, "list the rows and how long they take, about")
	flags.BoolVar(&o.strict, "strict", false, "exit with status 1 if a bound does not hold or, when all rows are "+
		"run, was not measured")
	flags.BoolVar(&o.docs, "docs", false, "write docs/benchmarks.md and its pictures from -out's results.json, or if "+
		"there is none from those that the page was made of")
	flags.BoolVar(&o.gate, "gate", false, "compare a minute of measuring with gate.json: exit status 1 if something "+
		"became much worse")
	flags.BoolVar(&o.record, "gate-record", false, "measure what -gate compares with and write gate.json")
	flags.StringVar(&o.only, "only", "", "only these rows, separated by commas; a * at the end stands for any end")
	flags.StringVar(&o.out, "out", "out", "folder for results.json, results.md and the pictures")
	flags.StringVar(&o.dir, "dir", "", "folder below which PostgreSQL and NATS store; by default the system's for "+
		"temporary files. It must lie on the disk that is to be measured")
	flags.StringVar(&o.profile, "profile", "", "instead of measuring, put profiles of Postern and the references "+
		"under load into this folder")
	flags.IntVar(&o.rounds, "rounds", 0, "rounds of the main rows; by default 5, with -quick 2")
	flags.Var(o.postgres, "postgres", "a setting of PostgreSQL, `name=value`, on top of those that it has; may come "+
		"many times")
	flags.BoolVar(&o.traces, "traces", false, "have gateway and processor send traces of everything, to a sink in "+
		"this program")
	if err := flags.Parse(args); err != nil {
		return o, err
	}
	o.command = command(flags)
	if flags.NArg() > 0 {
		return o, fmt.Errorf("unexpected %q: rows are chosen with -only", flags.Args())
	}
	if (o.gate || o.record) && (o.traces || len(o.postgres) > 0) {
		return o, errors.New("-gate and -gate-record are about what is shipped: leave out -postgres and -traces, or " +
			"measure with -only")
	}
	return o, nil
}

func run(ctx context.Context) error {
	o, err := parse(flag.CommandLine, os.Args[1:])
	if err != nil {
		return err
	}
	rows := plan.Full(o.rounds)
	if o.quick {
		rows = plan.Quick(o.rounds)
	}
	if o.only != "" {
		if rows, err = plan.Choose(rows, strings.Split(o.only, ",")); err != nil {
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

func list(rows []plan.Row) error {
	w := tabwriter.NewWriter(os.Stdout, 0, 0, 2, ' ', 0)
	for _, row := range rows {
		fmt.Fprintf(w, "%s\t%s\t%s\n", row.Name, clock(row.Takes), row.About)
	}
	fmt.Fprintf(w, "in all, about\t%s\n", clock(plan.Estimate(rows)))
	return w.Flush()
}

var (
	errBounds     = errors.New("not all bounds hold")
	errUnmeasured = errors.New("not all bounds were measured, though all rows were run")
)

// judge is what -strict makes of verdicts. Chosen rows need not measure every bound; all of them
// must.
func (o options) judge(verdicts []plan.Verdict) error {
	switch {
	case !o.strict:
		return nil
	case plan.Failed(verdicts) > 0:
		return errBounds
	case !o.quick && o.only == "" && plan.Unmeasured(verdicts) > 0:
		return errUnmeasured
	}
	return nil
}
