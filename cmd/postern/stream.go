package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/stream"
)

func newStreamCommand(c *cli) *cobra.Command {
	return group("stream", "Show and republish the streams that carry events and changes", newStreamStatusCommand(c),
		newStreamRepublishCommand(c))
}

func newStreamStatusCommand(c *cli) *cobra.Command {
	return command{
		use: "status", short: "Show the backlog of the streams and the state of the republisher",
		long: `Show the backlog of the streams: events without an outcome and how many of them are in
no stream, failed events, changes that are not published yet, the messages and consumers of each
stream, and the last pass of the republisher with what it published. Your own consumers are listed
too: pending are the messages that they have not received yet.

The exit status is 1 if NATS does not respond; the state of the log is shown anyway.`,
		example: `  postern stream status
  postern stream status -o json --config /etc/postern/processor.yaml`,
		run: showStreamStatus,
	}.build(c)
}

func showStreamStatus(x *call) error {
	conn, failure, err := x.connectStream(x.ctx)
	if err != nil {
		return err
	}
	if conn != nil {
		defer conn.Close()
	}
	v, err := operations.Stream(x.ctx, x.pool, conn)
	if err == nil && failure != nil {
		v.Failure = failure.Error()
	}
	if err := show(x, v, err, printStream); err != nil {
		return err
	}
	if v.Failure != "" {
		return errors.New("the streams are not known: " + v.Failure)
	}
	return nil
}

func printStream(x *call, v *operations.StreamView) error {
	missing, requested := "not known", ""
	if v.Failure == "" {
		missing = fmt.Sprintf("about %d", v.NotInStream)
	}
	a := &v.Republisher
	if a.Requested > 0 {
		requested = countOf(int(a.Requested), "pass") + " requested with postern stream republish, not ended yet"
	}
	if err := printFields(x.out, "events without an outcome", describeBacklog(v.Unapplied), "of these in no stream",
		missing, "failed events", describeBacklog(v.Failed), "of these due for an attempt", describeBacklog(v.Retries),
		"batches of unsent changes", describeBacklog(v.Unsent), "republisher", describeRepublisher(a), "passed",
		describePassed(a), "last published", describePublished(a.RepublishCounts), "requested", requested); err != nil {
		return err
	}
	for i := range v.Streams {
		if err := printOneStream(x.out, &v.Streams[i]); err != nil {
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
	detail := a.Detail
	if detail != "" {
		detail = ": " + detail
	}
	switch {
	case a.Process == "":
		return "none: no processor runs"
	case a.EndedAt == nil:
		return a.Process + ", no pass has ended yet" + detail
	case detail != "":
		return fmt.Sprintf("%s, a pass last ended at %s; the current one has not%s", a.Process, a.EndedAt, detail)
	}
	return fmt.Sprintf("%s, a pass last ended at %s", a.Process, a.EndedAt)
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

var streamConsumers = []column[stream.ConsumerStatus]{
	{"CONSUMER", func(s stream.ConsumerStatus) any { return s.Name }},
	{"PENDING", func(s stream.ConsumerStatus) any { return s.Pending }},
	{"UNACKNOWLEDGED", func(s stream.ConsumerStatus) any { return s.Unacknowledged }},
	{"REDELIVERED", func(s stream.ConsumerStatus) any { return s.Redelivered }},
	{"WAITING", func(s stream.ConsumerStatus) any { return s.Waiting }},
}

func printOneStream(out io.Writer, s *stream.Status) error {
	if s.Missing {
		_, err := fmt.Fprintf(out, "\n%s: does not exist\n", s.Name)
		return err
	}
	fmt.Fprintf(out, "\n%s: %d messages of at most %d, %d MiB of at most %d\n", s.Name, s.Messages, s.MaxMessages,
		s.Bytes>>20, s.MaxBytes>>20)
	return printTable(out, s.Consumers, streamConsumers)
}

func newStreamRepublishCommand(c *cli) *cobra.Command {
	return command{
		use: "republish", short: "Republish events that are lost from the stream",
		long: `Request a pass of the republisher now. It publishes again each event without an outcome
that is not in the stream, and failed events that are due. It does so automatically once they are a
minute old (processor.republisher); this pass includes events from an age of 5 s, when their first
publication has timed out. It publishes at most processor.republisher.rate events per second, and never
fills the stream beyond half its limits: the rest follows as processors apply events. Events that
are in the stream are not published again.

The command waits for the end of the pass and prints what was published; Ctrl-C stops only the
waiting. The exit status is 1 if no processor is the republisher.`,
		example: `  postern stream republish --reason 'NATS lost its disk'
  postern stream republish --no-wait -o json`,
		params: operations.Params(operations.ReasonParams{}),
		flags:  []flag{{noWaitFlag.name, "do not wait: request the pass and exit", false}},
		run: func(x *call) error {
			v, err := operations.Republish(x.ctx, x.pool, operations.ReasonParams{Reason: x.reason()}, operator())
			if err == nil && !x.has(noWaitFlag.name) {
				v, err = waitForRepublish(x, v.ID)
			}
			return show(x, v, err, func(x *call, v *processor.RepublishView) error {
				_, err := fmt.Fprintln(x.out, describeRepublish(v))
				return err
			})
		},
	}.build(c)
}

func describeRepublish(v *processor.RepublishView) string {
	if v.EndedAt == nil {
		return fmt.Sprintf("Pass %d is requested; postern stream status shows the republisher's progress.", v.ID)
	}
	return fmt.Sprintf("Pass %d has ended: %s without an outcome and %s republished.", v.ID,
		countOf(int(v.Missing), "event"), countOf(int(v.Due), "failed event"))
}

// republishLineInterval is the interval of progress lines. republisherTimeout is how long no
// processor may be the republisher before the command gives up.
const (
	republishLineInterval = 5 * time.Second
	republisherTimeout    = time.Minute
)

// waitForRepublish waits for the end of a pass and reports what it waits for.
func waitForRepublish(x *call, pass int64) (*processor.RepublishView, error) {
	startedAt := time.Now()
	for printedAt := startedAt; ; {
		v, err := processor.ShowRepublish(x.ctx, x.pool, pass)
		if err != nil || v.EndedAt != nil {
			return v, err
		}
		if time.Since(printedAt) > republishLineInterval {
			printedAt = time.Now()
			republisher, err := processor.ReadRepublisher(x.ctx, x.pool)
			if err != nil {
				return nil, err
			}
			if republisher.Process == "" && time.Since(startedAt) > republisherTimeout {
				return nil, fmt.Errorf("no processor is the republisher: start a processor, and it makes pass %d", pass)
			}
			fmt.Fprintf(x.errs, "postern: %s republished so far; %s\n", countOf(int(v.Missing+v.Due), "event"),
				escapeControl(describeRepublishWait(v, &republisher)))
		}
		select {
		case <-x.ctx.Done():
			return nil, context.Cause(x.ctx)
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
