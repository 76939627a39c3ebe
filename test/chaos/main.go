// Command chaos lets things fail in a small production of real processes while deliveries come in,
// and then compares what was promised with what there is. See docs/reliability.md.
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

// asked is what the command line says.
type asked struct {
	seed    uint64
	lasts   time.Duration
	calm    time.Duration
	clients int
	fsync   bool
	keep    string
	dry     bool
	mutants bool
}

// String is what makes the same run again.
func (a asked) String() string {
	text := fmt.Sprintf("-seed %d -for %s -calm %s -clients %d", a.seed, a.lasts, a.calm, a.clients)
	if a.fsync {
		text += " -fsync"
	}
	return text
}

func command(ctx context.Context, args []string, out io.Writer) error {
	var a asked
	flags := flag.NewFlagSet("chaos", flag.ContinueOnError)
	flags.Uint64Var(&a.seed, "seed", 0, "makes the schedule of faults and the deliveries; 0: another one each time")
	flags.DurationVar(&a.lasts, "for", 10*time.Minute, "how long deliveries come in while things fail")
	flags.DurationVar(&a.calm, "calm", 6*time.Second, "the longest calm between two faults of a lane; less of it is "+
		"more faults")
	flags.IntVar(&a.clients, "clients", 24, "how many senders there are at once")
	flags.BoolVar(&a.fsync, "fsync", false, "have PostgreSQL write as carefully as it does by default, which killed "+
		"processes do not need")
	flags.StringVar(&a.keep, "keep", "", "where a failed run leaves its journal and logs, a `folder`; empty: nowhere")
	flags.BoolVar(&a.dry, "dry", false, "print the schedule and do nothing")
	flags.BoolVar(&a.mutants, "mutants", false, "instead, break the product on purpose, in one way after the other, "+
		"and fail unless each is noticed")
	if err := flags.Parse(args); err != nil {
		return err
	}
	if a.seed == 0 {
		a.seed = uint64(time.Now().UnixNano())
	}
	if a.dry {
		printSchedule(out, schedule(a.seed, a.lasts, a.calm))
		return nil
	}
	if a.mutants {
		return everyMutant(ctx, out, a)
	}
	return chaos(ctx, out, a)
}

// chaos is one run from nothing to its report.
func chaos(ctx context.Context, out io.Writer, a asked) (err error) {
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
	faults := disk.without(schedule(a.seed, a.lasts, a.calm))
	failed := r.carry(ctx, a.lasts, a.clients, faults)
	var c *checker
	if failed == nil {
		c, failed = r.examine(ctx, settleWithin+a.lasts/2)
	}
	if c != nil {
		r.report(c)
		failed = errors.Join(failed, c.found())
	}
	if failed != nil {
		printSchedule(out, faults)
		failed = errors.Join(fmt.Errorf("the run failed; again: make chaos ARGS=%q", a), failed, keep(s, a.keep))
	}
	return failed
}

func printSchedule(out io.Writer, faults [][]fault) {
	for i, lane := range faults {
		fmt.Fprintf(out, "lane %d\n", i+1)
		for _, f := range lane {
			fmt.Fprintln(out, "  ", f)
		}
	}
}

// keep copies what a person needs to find out what went wrong.
func keep(s *site.Site, folder string) error {
	if folder == "" {
		return nil
	}
	return os.CopyFS(folder, logs{os.DirFS(s.Dir)})
}
