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
	cmd := &cobra.Command{Use: "stream", Short: "The streams that carry events and changes", RunE: group, Args: cobra.ArbitraryArgs}
	cmd.AddCommand(newStreamStatusCommand(c), newStreamHealCommand(c))
	return cmd
}

func newStreamStatusCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use:   "status",
		Short: "Show how much is left to publish and to apply, and what the auditor has come to",
		Long: `Show how far the streams are behind the log: events without an outcome and how many of them are in no stream, failed ones, changes that are not in the feed yet, the messages
and consumers of each stream, and when the auditor last made a pass and what it published again. Consumers of your own are told too: pending is what they were not given yet.

The exit status is 1 where NATS does not answer; what the log knows is told all the same.`,
		Example: `  postern stream status
  postern stream status -o json --config /etc/postern/processor.yaml`,
		Args: wantArgs(),
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx := cmd.Context()
			return c.withPool(ctx, cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
				conn, trouble, err := c.connectStream(ctx)
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
				if trouble != nil {
					v.Trouble = trouble.Error()
				}
				return tellStream(cmd.OutOrStdout(), c, v)
			})
		},
	}
}

func tellStream(out io.Writer, c *cli, v *admin.StreamView) error {
	print := printStream
	if c.output == "json" {
		print = func(out io.Writer, v *admin.StreamView) error { return printJSON(out, v) }
	}
	if err := print(out, v); err != nil {
		return err
	}
	if v.Trouble != "" {
		return errors.New("the streams are not known: " + v.Trouble)
	}
	return nil
}

func printStream(out io.Writer, v *admin.StreamView) error {
	missing := "not known"
	if v.Trouble == "" {
		missing = "about " + strconv.FormatInt(v.NotInStream, 10)
	}
	a := &v.Auditor
	if err := facts(out,
		"events without an outcome", left(v.Unapplied),
		"of these in no stream", missing,
		"failed events", left(v.Failed),
		"of these due for an attempt", left(v.Retries),
		"batches of unsent changes", left(v.Unsent),
		"auditor", auditorWords(a),
		"passed", passedWords(a),
		"last published", publishedWords(a.Published),
		"asked for", passesWanted(a.Wanted),
	); err != nil {
		return err
	}
	for i := range v.Streams {
		if err := printOneStream(out, &v.Streams[i]); err != nil {
			return err
		}
	}
	return nil
}

func left(l processor.Left) string {
	switch {
	case l.Since == nil:
		return "0"
	case l.Count >= processor.DueMost:
		return fmt.Sprintf("%d or more, the oldest since %s (%s)", l.Count, l.Since, seconds(l.Seconds))
	}
	return fmt.Sprintf("%d, the oldest since %s (%s)", l.Count, l.Since, seconds(l.Seconds))
}

func seconds(s float64) time.Duration {
	return time.Duration(s * float64(time.Second)).Round(time.Second)
}

func auditorWords(a *processor.Auditor) string {
	switch {
	case a.Process == "":
		return "none: no processor runs"
	case a.EndedAt == nil:
		return a.Process + ", no pass has ended yet" + detailWords(a.Detail)
	case a.Detail != "":
		return fmt.Sprintf("%s, a pass last ended at %s; the present one has not%s", a.Process, a.EndedAt, detailWords(a.Detail))
	}
	return fmt.Sprintf("%s, a pass last ended at %s", a.Process, a.EndedAt)
}

func detailWords(detail string) string {
	if detail == "" {
		return ""
	}
	return ": " + detail
}

func passedWords(a *processor.Auditor) string {
	if a.Passed == nil {
		return "nothing yet"
	}
	return fmt.Sprintf("all events stored up to %s have an outcome", a.Passed)
}

func publishedWords(p processor.Published) string {
	if p.PublishedAt == nil {
		return "nothing yet"
	}
	return fmt.Sprintf("%s: %d without an outcome, %d due for an attempt", p.PublishedAt, p.Missing, p.Due)
}

func passesWanted(n int64) string {
	if n == 0 {
		return ""
	}
	return counted(int(n), "pass") + " by postern stream heal, not ended yet"
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
		_, err := fmt.Fprintf(out, "\n%s: there is none\n", s.Name)
		return err
	}
	fmt.Fprintf(out, "\n%s: %d messages of at most %d, %d MiB of at most %d\n", s.Name, s.Messages, s.MaxMessages, s.Bytes>>20, s.MaxBytes>>20)
	return (&sink[stream.ConsumerStatus]{out: out, columns: streamConsumers}).add(s.Consumers)
}

func newStreamHealCommand(c *cli) *cobra.Command {
	var noWait bool
	cmd := &cobra.Command{
		Use:   "heal",
		Short: "Have the auditor publish now what the stream has lost",
		Long: `Have the auditor, in whichever processor it is, make a pass now: it publishes again each event that has no outcome and does not wait in the stream, and failed ones that are due. It would do
so by itself once they are a minute old (processor.auditor); this pass takes them as soon as a publish would have been given up, after 5 s. It publishes at most processor.auditor.rate events a
second, and never fills the stream beyond half its limits: the rest follows as processors work it off, until the pass is at its end. Events that wait in the stream are left alone.

The command waits for that end and says what was published; Ctrl-C ends only the waiting. The exit status is 1 where no processor is the auditor.`,
		Example: `  postern stream heal --reason 'NATS lost its disk'
  postern stream heal --no-wait -o json`,
		Args: wantArgs(),
	}
	filterFlags(cmd, admin.HealParams)
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not wait: ask for the pass and end")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			return healStream(cmd, c, pool, filterValues(cmd, admin.HealParams), noWait)
		})
	}
	return cmd
}

func healStream(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, values url.Values, noWait bool) error {
	ctx, out := cmd.Context(), cmd.OutOrStdout()
	v, err := admin.Heal(ctx, pool, values, operator())
	if err == nil && !noWait {
		v, err = awaitHeal(ctx, cmd.ErrOrStderr(), pool, v.Heal)
	}
	if err != nil {
		return err
	}
	if c.output == "json" {
		return printJSON(out, v)
	}
	_, err = fmt.Fprintln(out, healWords(v))
	return err
}

func healWords(v *processor.HealView) string {
	if v.EndedAt == nil {
		return fmt.Sprintf("Pass %d is asked for; postern stream status shows what the auditor has come to.", v.Heal)
	}
	return strings.Join([]string{fmt.Sprintf("Pass %d has ended:", v.Heal), counted(int(v.Missing), "event") + " without an outcome and", counted(int(v.Due), "failed event"), "published again."}, " ")
}

// healTold is how often it is told what a pass waits for, and auditorWithin how long the auditor may be nobody.
const (
	healTold      = 5 * time.Second
	auditorWithin = time.Minute
)

// awaitHeal waits for the end of a pass, and tells what keeps it from it.
func awaitHeal(ctx context.Context, errs io.Writer, pool *pgxpool.Pool, heal int64) (*processor.HealView, error) {
	began := time.Now()
	for told := began; ; {
		v, err := processor.ShowHeal(ctx, pool, heal)
		if err != nil || v.EndedAt != nil {
			return v, err
		}
		if time.Since(told) > healTold {
			told = time.Now()
			d, err := processor.ReadDue(ctx, pool)
			if err != nil {
				return nil, err
			}
			if d.Auditor.Process == "" && time.Since(began) > auditorWithin {
				return nil, fmt.Errorf("no processor is the auditor: start one, and it makes pass %d", heal)
			}
			fmt.Fprintf(errs, "postern: %s published again so far; %s\n", counted(int(v.Missing+v.Due), "event"), plain(waitsFor(v, &d.Auditor)))
		}
		select {
		case <-ctx.Done():
			return nil, context.Cause(ctx)
		case <-time.After(watchEvery):
		}
	}
}

func waitsFor(v *processor.HealView, a *processor.Auditor) string {
	switch {
	case a.Process == "":
		return "no processor is the auditor yet"
	case v.Detail != "":
		return v.Detail
	}
	return "the auditor, " + a.Process + ", is at work"
}
