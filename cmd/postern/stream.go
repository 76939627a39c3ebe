package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
)

func newStreamCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "stream", Short: "Show and republish the streams that carry events and changes",
		RunE: showHelpOrError,
		Args: cobra.ArbitraryArgs}
	cmd.AddCommand(newStreamStatusCommand(c), newStreamRepublishCommand(c))
	return cmd
}

func newStreamStatusCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show the backlog of the streams and the state of the republisher",
		Long: `Show the backlog of the streams: events without an outcome and how many of them are in
no stream, failed events, changes that are not published yet, the messages and consumers of each
stream, and the last pass of the republisher with what it published. Your own consumers are listed
too: pending are the messages that they have not received yet.

The exit status is 1 if NATS does not respond; the state of the log is shown anyway.`,
		Example: `  postern stream status
  postern stream status -o json --config /etc/postern/processor.yaml`,
		Args: wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			return c.withPool(ctx, cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
				conn, failure, err := c.connectStream(ctx)
				if err != nil {
					return err
				}
				if conn != nil {
					defer conn.Close()
				}
				v, err := admin.Stream(ctx, pool, conn)
				if err != nil {
					return err
				}
				if failure != nil {
					v.Failure = failure.Error()
				}
				return printStreamStatus(cmd.OutOrStdout(), c, v)
			})
		},
	}
}

func printStreamStatus(out io.Writer, c *cli, v *admin.StreamView) error {
	printView := printStream
	if c.output == "json" {
		printView = func(out io.Writer, v *admin.StreamView) error { return printJSON(out, v) }
	}
	if err := printView(out, v); err != nil {
		return err
	}
	if v.Failure != "" {
		return errors.New("the streams are not known: " + v.Failure)
	}
	return nil
}

func printStream(out io.Writer, v *admin.StreamView) error {
	missing := "not known"
	if v.Failure == "" {
		missing = "about " + strconv.FormatInt(v.NotInStream, 10)
	}
	a := &v.Republisher
	if err := printFields(out, "events without an outcome", describeBacklog(v.Unapplied), "of these in no stream",
		missing, "failed events", describeBacklog(v.Failed), "of these due for an attempt", describeBacklog(v.Retries),
		"batches of unsent changes", describeBacklog(v.Unsent), "republisher", describeRepublisher(a), "passed",
		describePassed(a), "last published", describePublished(a.RepublishCounts), "requested",
		describeRequestedPasses(a.Requested)); err != nil {
		return err
	}
	for i := range v.Streams {
		if err := printOneStream(out, &v.Streams[i]); err != nil {
			return err
		}
	}
	return nil
}

func describeBacklog(l processor.PendingCount) string {
	switch {
	case l.Since == nil:
		return "0"
	case l.Count >= processor.MaxPendingCount:
		return fmt.Sprintf("%d or more, the oldest since %s (%s)", l.Count, l.Since, durationOf(l.Seconds))
	}
	return fmt.Sprintf("%d, the oldest since %s (%s)", l.Count, l.Since, durationOf(l.Seconds))
}

func durationOf(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Second)
}

func describeRepublisher(a *processor.RepublisherStatus) string {
	switch {
	case a.Process == "":
		return "none: no processor runs"
	case a.EndedAt == nil:
		return a.Process + ", no pass has ended yet" + detailSuffix(a.Detail)
	case a.Detail != "":
		return fmt.Sprintf("%s, a pass last ended at %s; the current one has not%s", a.Process, a.EndedAt,
			detailSuffix(a.Detail))
	}
	return fmt.Sprintf("%s, a pass last ended at %s", a.Process, a.EndedAt)
}

func detailSuffix(detail string) string {
	if detail == "" {
		return ""
	}
	return ": " + detail
}

func describePassed(a *processor.RepublisherStatus) string {
	if a.AppliedUntil == nil {
		return "nothing yet"
	}
	return fmt.Sprintf("all events stored up to %s have an outcome", a.AppliedUntil)
}

func describePublished(p processor.RepublishCounts) string {
	if p.PublishedAt == nil {
		return "nothing yet"
	}
	return fmt.Sprintf("%s: %d without an outcome, %d due for an attempt", p.PublishedAt, p.Missing, p.Due)
}

func describeRequestedPasses(n int64) string {
	if n == 0 {
		return ""
	}
	return countOf(int(n), "pass") + " requested with postern stream republish, not ended yet"
}

var streamConsumers = []column[stream.ConsumerStatus]{
	{"CONSUMER", func(s stream.ConsumerStatus) string { return s.Name }},
	{"PENDING", func(s stream.ConsumerStatus) string { return strconv.FormatUint(s.Pending, 10) }},
	{"UNACKNOWLEDGED", func(s stream.ConsumerStatus) string { return strconv.Itoa(s.Unacknowledged) }},
	{"REDELIVERED", func(s stream.ConsumerStatus) string { return strconv.Itoa(s.Redelivered) }},
	{"WAITING", func(s stream.ConsumerStatus) string { return strconv.Itoa(s.Waiting) }},
}

func printOneStream(out io.Writer, s *stream.Status) error {
	if s.Missing {
		_, err := fmt.Fprintf(out, "\n%s: does not exist\n", s.Name)
		return err
	}
	fmt.Fprintf(out, "\n%s: %d messages of at most %d, %d MiB of at most %d\n", s.Name, s.Messages, s.MaxMessages,
		s.Bytes>>20, s.MaxBytes>>20)
	return (&listPrinter[stream.ConsumerStatus]{out: out, columns: streamConsumers}).add(s.Consumers)
}

func newStreamRepublishCommand(c *cli) *cobra.Command {
	var noWait bool
	cmd := &cobra.Command{
		Use:   "republish",
		Short: "Republish events that are lost from the stream",
		Long: `Request a pass of the republisher now. It publishes again each event without an outcome
that is not in the stream, and failed events that are due. It does so automatically once they are a
minute old (processor.republisher); this pass includes events from an age of 5 s, when their first
publication has timed out. It publishes at most processor.republisher.rate events per second, and never
fills the stream beyond half its limits: the rest follows as processors apply events. Events that
are in the stream are not published again.

The command waits for the end of the pass and prints what was published; Ctrl-C stops only the
waiting. The exit status is 1 if no processor is the republisher.`,
		Example: `  postern stream republish --reason 'NATS lost its disk'
  postern stream republish --no-wait -o json`,
		Args: wantArgs(),
	}
	filterFlags(cmd, admin.RepublishParams)
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait: request the pass and exit")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			return republishStream(cmd, c, pool, filterValues(cmd, admin.RepublishParams), noWait)
		})
	}
	return cmd
}

func republishStream(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, values url.Values, noWait bool) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	v, err := admin.Republish(ctx, pool, values, operator())
	if err == nil && !noWait {
		v, err = waitForRepublish(ctx, cmd.ErrOrStderr(), pool, v.ID)
	}
	if err != nil {
		return err
	}
	if c.output == "json" {
		return printJSON(out, v)
	}
	_, err = fmt.Fprintln(out, describeRepublish(v))
	return err
}

func describeRepublish(v *processor.RepublishView) string {
	if v.EndedAt == nil {
		return fmt.Sprintf("Pass %d is requested; postern stream status shows the republisher's progress.", v.ID)
	}
	return strings.Join([]string{fmt.Sprintf("Pass %d has ended:", v.ID), countOf(int(v.Missing), "event") +
		" without an outcome and", countOf(int(v.Due), "failed event"), "republished."}, " ")
}

// republishLineInterval is the interval of progress lines. republisherTimeout is how long no
// processor may be the republisher before the command gives up.
const (
	republishLineInterval = 5 * time.Second
	republisherTimeout    = time.Minute
)

// waitForRepublish waits for the end of a pass and reports what it waits for.
func waitForRepublish(ctx context.Context, errs io.Writer, pool *pgxpool.Pool, pass int64) (*processor.RepublishView,
	error) {
	startedAt := time.Now()
	for printedAt := startedAt; ; {
		v, err := processor.ShowRepublish(ctx, pool, pass)
		if err != nil || v.EndedAt != nil {
			return v, err
		}
		if time.Since(printedAt) > republishLineInterval {
			printedAt = time.Now()
			d, err := processor.ReadPendingWork(ctx, pool)
			if err != nil {
				return nil, err
			}
			if d.Republisher.Process == "" && time.Since(startedAt) > republisherTimeout {
				return nil, fmt.Errorf("no processor is the republisher: start a processor, and it makes pass %d", pass)
			}
			fmt.Fprintf(errs, "postern: %s republished so far; %s\n", countOf(int(v.Missing+v.Due), "event"),
				escapeControl(describeRepublishWait(v, &d.Republisher)))
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(watchInterval):
		}
	}
}

func describeRepublishWait(v *processor.RepublishView, a *processor.RepublisherStatus) string {
	switch {
	case a.Process == "":
		return "no processor is the republisher yet"
	case v.Detail != "":
		return v.Detail
	}
	return "the republisher, " + a.Process + ", is working"
}
