// Command chaos starts a small production of real processes, sends deliveries and injects faults.
// Then it compares what the senders were promised with what is stored. See
// docs/explanation/guarantees.md.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"
	"time"

	"github.com/postern-gateway/postern/internal/testkit/site"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := command(ctx, os.Args[1:], os.Stdout)
	stop()
	if errors.Is(err, flag.ErrHelp) {
		return
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "chaos:", err)
		os.Exit(1)
	}
}

// options are the parsed command line.
type options struct {
	seed    uint64
	lasts   time.Duration
	pause   time.Duration
	clients int
	fsync   bool
	keep    string
	dry     bool
	mutants bool
}

// String returns the arguments that repeat the run.
func (a options) String() string {
	text := fmt.Sprintf("-seed %d -for %s -pause %s -clients %d", a.seed, a.lasts, a.pause, a.clients)
	if a.fsync {
		text += " -fsync"
	}
	return text
}

func command(ctx context.Context, args []string, out io.Writer) error {
	var a options
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.Uint64Var(&a.seed, "seed", 0, "determines the schedule of faults and the deliveries (0: random)")
	flags.DurationVar(&a.lasts, "for", 10*time.Minute, "how long deliveries are sent and faults are injected")
	flags.DurationVar(&a.pause, "pause", 6*time.Second, "the longest pause between two faults of a group; a shorter "+
		"one means more faults")
	flags.IntVar(&a.clients, "clients", 24, "the number of concurrent senders")
	flags.BoolVar(&a.fsync, "fsync", false, "make PostgreSQL flush to disk as it does by default; killed processes do "+
		"not need that")
	flags.StringVar(&a.keep, "keep", "",
		"the `folder` for the journal and logs of a failed run (default: they are deleted)")
	flags.BoolVar(&a.dry, "dry", false, "print the schedule and do nothing")
	flags.BoolVar(&a.mutants, "mutants", false, "instead of a run, test the checks: build the product with one "+
		"deliberate fault after the other, and fail unless the checks notice each")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if a.seed == 0 {
		a.seed = uint64(time.Now().UnixNano())
	}
	if a.dry {
		printSchedule(out, schedule(a.seed, a.lasts, a.pause))
		return nil
	}
	if a.mutants {
		return everyMutant(ctx, out, a)
	}
	return chaos(ctx, out, a)
}

// chaos executes one run, from the build to the report.
func chaos(ctx context.Context, out io.Writer, a options) (err error) {
	fmt.Fprintf(out, "seed %d\n", a.seed)
	bin, err := os.MkdirTemp("", "postern-chaos-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(bin)
	if err := site.Build(ctx, bin, append(site.Daemons(), site.Tools()...)); err != nil {
		return err
	}
	disk, err := mountSmallDisk(bin)
	if err != nil {
		return err
	}
	defer disk.remove()
	s, err := site.Start(ctx, site.Options{Bin: bin, Settings: sources, SpoolDirs: [2]string{disk.spool},
		Fsync: a.fsync})
	defer func() { err = errors.Join(err, s.Close()) }()
	if err != nil {
		return err
	}
	r, err := newRun(s, a.seed, out)
	if err != nil {
		return err
	}
	faults := disk.without(schedule(a.seed, a.lasts, a.pause))
	failed := r.execute(ctx, a.lasts, a.clients, faults)
	var c *checker
	if failed == nil {
		c, failed = r.checkPromises(ctx, finishWithin+a.lasts/2)
	}
	if c != nil {
		r.report(c)
		failed = errors.Join(failed, c.found())
	}
	if failed != nil {
		printSchedule(out, faults)
		failed = errors.Join(fmt.Errorf("the run failed; repeat it with: make chaos ARGS=%q", a), failed,
			keep(s, a.keep))
	}
	return failed
}

func printSchedule(out io.Writer, faults [][]fault) {
	for i, group := range faults {
		fmt.Fprintf(out, "group %d\n", i+1)
		for _, f := range group {
			fmt.Fprintln(out, "  ", f)
		}
	}
}

// keep copies the files that help to find the cause of a failure.
func keep(s *site.Site, folder string) error {
	if folder == "" {
		return nil
	}
	return os.CopyFS(folder, logs{os.DirFS(s.Dir)})
}
