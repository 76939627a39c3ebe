package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/terminal"
	"github.com/postern-gateway/postern/internal/versioning"
)

func newRunsCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "runs", Short: "Jobs over the log: who had what done, and what came of it", RunE: group, Args: cobra.ArbitraryArgs}
	cmd.AddCommand(lister[runs.Run]{
		what:    "runs, the newest first",
		example: "  postern runs list --status running",
		params:  admin.RunParams,
		query:   admin.Runs,
		columns: []column[runs.Run]{
			{"RUN", func(r runs.Run) string { return strconv.FormatInt(r.Run, 10) }},
			{"JOB", func(r runs.Run) string { return r.Job }},
			{"STATUS", func(r runs.Run) string { return string(r.Status) }},
			{"SCHEDULE", func(r runs.Run) string { return r.Schedule }},
			{"PLANNED", func(r runs.Run) string { return r.PlannedAt.String() }},
			{"PROCESSED", func(r runs.Run) string { return processed(&r) }},
			{"MADE", func(r runs.Run) string { return r.MadeAt.String() }},
			{"ENDED", func(r runs.Run) string { return r.EndedAt.String() }},
			{"WHO", func(r runs.Run) string { return r.Who }},
			{"REASON", func(r runs.Run) string { return r.Reason }},
			{"DETAIL", func(r runs.Run) string { return cmp.Or(r.Detail, pendingDecision(&r)) }},
		},
		none: "No runs.",
	}.command(c),
		runCommand(c, "show", "Show a run: what was asked for, how far it is, what came of it", false, func(ctx context.Context, pool *pgxpool.Pool, run int64, _ admin.By) (*runs.Run, error) {
			return runs.Show(ctx, pool, run)
		}),
		newRunsWatchCommand(c), newRunsApproveCommand(c))
	for _, change := range []struct{ name, short string }{
		{"pause", "Pause a run at its next checkpoint"}, {"resume", "Let a paused run go on"}, {"cancel", "End a run for good; what it has done stays"},
	} {
		cmd.AddCommand(runCommand(c, change.name, change.short, true, func(ctx context.Context, pool *pgxpool.Pool, run int64, by admin.By) (*runs.Run, error) {
			return admin.ChangeRun(ctx, pool, run, change.name, by)
		}))
	}
	return cmd
}

// runCommand is a command that does something with a run and shows it. changes: it takes a reason.
func runCommand(c *cli, name, short string, changes bool, do func(context.Context, *pgxpool.Pool, int64, admin.By) (*runs.Run, error)) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: name + " RUN", Short: short, Example: "  postern runs " + name + " 7", Args: wantArgs("RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := number(args[0])
			if err != nil {
				return err
			}
			return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
				found, err := do(cmd.Context(), pool, run, because(reason))
				if err != nil {
					return err
				}
				return printRun(cmd.OutOrStdout(), c, found)
			})
		},
	}
	if changes {
		reasonFlag(cmd, &reason)
	}
	return cmd
}

func reasonFlag(cmd *cobra.Command, reason *string) {
	cmd.Flags().StringVar(reason, "reason", "", "why; kept in the audit")
}

func newRunsWatchCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "watch RUN", Short: "Watch a run until it has ended or is paused; Ctrl-C ends only the watching",
		Long:    `Watch a run until it has ended or is paused; Ctrl-C ends only the watching. The exit status is 1 where the run failed, or ended with failed or dead events.`,
		Example: "  postern runs watch 7", Args: wantArgs("RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := number(args[0])
			if err != nil {
				return err
			}
			return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
				return watchRun(cmd.Context(), cmd.OutOrStdout(), c, pool, run)
			})
		},
	}
}

func newRunsApproveCommand(c *cli) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:     "approve RUN --reason WHY",
		Short:   "Let a proposed run begin; who approved it and why is kept",
		Example: "  postern runs approve 7 --reason 'agreed with finance'",
		Args:    wantArgs("RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := number(args[0])
			if err != nil {
				return err
			}
			if strings.TrimSpace(reason) == "" {
				return usagef("say why with --reason")
			}
			return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
				found, err := admin.ApproveRun(cmd.Context(), pool, run, because(reason))
				if err != nil {
					return err
				}
				return printRun(cmd.OutOrStdout(), c, found)
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why the run may begin")
	return cmd
}

// tellEarlier says that a run is that of whoever used its once key first.
func tellEarlier(out io.Writer, c *cli, run *admin.Asked) {
	if run.Earlier && c.output != "json" {
		fmt.Fprintf(out, "Run %d was asked for with this key before; no other is made.\n", run.Run.Run)
	}
}

// wait shows a run that was asked for, to its end if nobody minds.
func wait(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, run *admin.Asked, err error, noWait bool) error {
	if err != nil {
		return err
	}
	tellEarlier(cmd.OutOrStdout(), c, run)
	if noWait {
		err := printRun(cmd.OutOrStdout(), c, run.Run)
		if err == nil && run.Run.Status == runs.Proposed && c.output != "json" {
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "\nIt begins when somebody approves it: postern runs approve %d --reason WHY\n", run.Run.Run)
		}
		return err
	}
	return watchRun(cmd.Context(), cmd.OutOrStdout(), c, pool, run.Run.Run)
}

// waitForEarlier ends a command that has chosen nothing. Whoever gives a once key that was used waits for the run of whoever used it all the same: it may be at its last events, or have failed.
func waitForEarlier(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, earlier *admin.Asked, err error, noWait bool) error {
	if earlier == nil {
		return err
	}
	return wait(cmd, c, pool, earlier, err, noWait)
}

func printRun(out io.Writer, c *cli, r *runs.Run) error {
	if c.output == "json" {
		return printJSON(out, r)
	}
	name, place := readUpTo(r)
	pairs := []string{"run", strconv.FormatInt(r.Run, 10), "job", r.Job, "schedule", r.Schedule, "planned for", r.PlannedAt.String(), "once key", r.OnceKey,
		"status", string(r.Status), detailWord(r), r.Detail, "waits for", decision(r), "asked for", askedFor(r), "who", r.Who, "reason", r.Reason}
	for _, a := range r.Approvals {
		pairs = append(pairs, "approved by", a.Who+" at "+a.At.String(), "because", a.Why, "approved", a.Said)
	}
	if len(r.Approvals) == 0 { // before they were kept each by itself
		pairs = append(pairs, "approved by", r.ApprovedBy, "because", r.Approval)
	}
	return facts(out, append(pairs, "made", r.MadeAt.String(), "started", r.StartedAt.String(), "ended", r.EndedAt.String(),
		"carried out by", r.HeldBy, "stage", rebuild.Stage(r), name, place, things(r), inWords(r.Job, r.Counts))...)
}

// pendingDecision is decision as a clause.
func pendingDecision(r *runs.Run) string {
	if d := decision(r); d != "" {
		return "waits for " + d
	}
	return ""
}

// detailWord says what a run's detail tells.
func detailWord(r *runs.Run) string {
	switch {
	case r.Status == runs.Failed:
		return "why it failed"
	case r.Status.Final():
		return "at last"
	case r.Troubles == 1:
		return "put off once"
	case r.Troubles > 1:
		return fmt.Sprintf("put off %d times", r.Troubles)
	}
	return "now"
}

// inWords says what a run has counted: events by outcome, but for retention.
func inWords(job string, counts map[string]int64) string {
	switch job {
	case retention.Job:
		return retentionCounts(counts)
	case redaction.Job:
		return redactionCounts(counts)
	case reconcile.Job:
		return reconcileCounts(counts)
	}
	parts := []string{fmt.Sprintf("%d processed", counts[replay.Processed])}
	if n := counts[replay.Published]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d published", n))
	}
	for _, s := range []versioning.Status{versioning.Applied, versioning.Unchanged, versioning.Stale, versioning.Ambiguous, versioning.Ignored, versioning.Failed, versioning.Dead} {
		if n := counts[string(s)]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	if n := counts[replay.Deduplicated]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d of them deduplicated", n))
	}
	if n := counts[replay.EffectsAgain]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d effects planned again", n))
	}
	if n := counts[replay.EffectsLeft]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d effects that could not be", n))
	}
	for _, what := range []string{rebuild.Swapped, rebuild.Grown, rebuild.Emptied} {
		if n, ok := counts[what]; ok {
			parts = append(parts, fmt.Sprintf("%d objects %s", n, what))
		}
	}
	return strings.Join(parts, ", ")
}

// How often a run that is watched is looked at, and how often a line tells of it where nobody sits at a terminal.
const (
	watchEvery = 500 * time.Millisecond
	tellEvery  = 10 * time.Second
)

// watchRun tells how a run goes on until it has ended or is paused, and then what came of it.
func watchRun(ctx context.Context, out io.Writer, c *cli, pool *pgxpool.Pool, run int64) error {
	w := &watcher{out: out, quiet: c.output == "json"}
	if !w.quiet {
		w.screen, _ = out.(*terminal.Screen)
	}
	for {
		r, err := runs.Show(ctx, pool, run)
		if err != nil {
			return err
		}
		w.tell(r, time.Now())
		if r.Status.Final() || r.Status == runs.Paused {
			w.end()
			if err := printRun(out, c, r); err != nil {
				return err
			}
			return endedWell(r)
		}
		select {
		case <-ctx.Done():
			w.end()
			return ctx.Err()
		case <-time.After(watchEvery):
		}
	}
}

// endedWell is an error for a run that failed, or some of whose events did.
func endedWell(r *runs.Run) error {
	failed, dead := r.Counts[string(versioning.Failed)], r.Counts[string(versioning.Dead)]
	switch {
	case r.Status == runs.Failed:
		return fmt.Errorf("run %d failed: %s", r.Run, r.Detail)
	case r.Status == runs.Done && r.Job == replay.Job && failed+dead > 0:
		return fmt.Errorf("%d events failed and %d are dead: see postern outcomes list --run %d --status failed (or dead); with the cause mended, postern retry --run %d tries them again", failed, dead, r.Run, r.Run)
	case r.Status == runs.Done && r.Job != rebuild.Job && failed+dead > 0: // of a rebuild's they failed live too
		return fmt.Errorf("%d events failed and %d are dead: see postern outcomes list --status failed (or dead)", failed, dead)
	}
	return nil
}

// watcher tells of a run in one line: on a terminal always the same, else a new one now and then.
type watcher struct {
	out io.Writer
	// screen is out if that is a terminal.
	screen *terminal.Screen
	quiet  bool
	told   time.Time
	status runs.Status
	since  time.Time
	at     int64
}

func (w *watcher) tell(r *runs.Run, now time.Time) {
	done := r.Counts[replay.Processed]
	if w.since.IsZero() || r.Status != w.status {
		w.since, w.at, w.told = now, done, time.Time{}
	}
	w.status = r.Status
	if w.quiet || w.screen == nil && now.Sub(w.told) < tellEvery {
		return
	}
	w.told = now
	line := fmt.Sprintf("run %d %s: %d", r.Run, r.Status, done)
	if r.Expected > 0 {
		line += fmt.Sprintf(" of about %d", r.Expected)
	}
	line += " " + things(r)
	if stage := rebuild.Stage(r); stage != "" {
		line += ", " + stage
	}
	if r.Status == runs.Waiting {
		line += "; a processor takes it when it has a hand free"
	}
	if (r.Status == runs.Running || r.Status == runs.Proposed) && r.Detail != "" {
		line += "; " + detailWord(r) + ": " + plain(r.Detail)
	}
	if r.Status == runs.Proposed {
		line += fmt.Sprintf("; it begins when somebody approves it: postern runs approve %d --reason WHY", r.Run)
	}
	if took := now.Sub(w.since).Seconds(); took > 0 && done > w.at {
		rate := float64(done-w.at) / took
		line += fmt.Sprintf(", %.0f/s", rate)
		if left := r.Expected - done; left > 0 {
			line += ", about " + time.Duration(float64(left)/rate*float64(time.Second)).Round(time.Second).String() + " left"
		}
	}
	if w.screen != nil {
		_ = w.screen.Line(line)
	} else {
		fmt.Fprintln(w.out, line)
	}
}

// end leaves the line.
func (w *watcher) end() {
	if w.screen != nil {
		fmt.Fprintln(w.out)
	}
}
