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
	cmd := &cobra.Command{Use: "runs", Short: "List, watch and control runs: jobs over the log", RunE: showHelpOrError,
		Args: cobra.ArbitraryArgs}
	cmd.AddCommand(listCommand[runs.Run]{
		subject: "runs, the newest first",
		example: "  postern runs list --status running",
		params:  admin.RunParams,
		query:   admin.Runs,
		columns: []column[runs.Run]{
			{"RUN", func(r runs.Run) string { return strconv.FormatInt(r.ID, 10) }},
			{"JOB", func(r runs.Run) string { return r.Job }},
			{"STATUS", func(r runs.Run) string { return string(r.Status) }},
			{"SCHEDULE", func(r runs.Run) string { return r.Schedule }},
			{"PLANNED", func(r runs.Run) string { return r.PlannedAt.String() }},
			{"PROCESSED", func(r runs.Run) string { return describeProcessed(&r) }},
			{"CREATED", func(r runs.Run) string { return r.CreatedAt.String() }},
			{"ENDED", func(r runs.Run) string { return r.EndedAt.String() }},
			{"ACTOR", func(r runs.Run) string { return r.Actor }},
			{"REASON", func(r runs.Run) string { return r.Reason }},
			{"DETAIL", func(r runs.Run) string { return cmp.Or(r.Detail, decisionClause(&r)) }},
		},
		emptyText: "No runs.",
	}.newCommand(c),
		newRunCommand(c, "show", "Show a run with its parameters, progress and result", false,
			func(ctx context.Context, pool *pgxpool.Pool, run int64, _ admin.Requester) (*runs.Run, error) {
				return runs.Show(ctx, pool, run)
			}),
		newRunsWatchCommand(c), newRunsApproveCommand(c))
	for _, change := range []struct{ name, short string }{
		{"pause", "Pause a run at its next checkpoint"}, {"resume", "Continue a paused run"},
		{"cancel", "Cancel a run; what it has done stays"},
	} {
		cmd.AddCommand(newRunCommand(c, change.name, change.short, true, func(ctx context.Context, pool *pgxpool.Pool,
			run int64, by admin.Requester) (*runs.Run, error) {
			return admin.ChangeRun(ctx, pool, run, change.name, by)
		}))
	}
	return cmd
}

// newRunCommand builds a command that reads or changes a run and prints it. With changes it has the
// flag --reason.
func newRunCommand(c *cli, name, short string, changes bool, do func(context.Context, *pgxpool.Pool, int64,
	admin.Requester) (*runs.Run, error)) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: name + " RUN", Short: short, Example: "  postern runs " + name + " 7", Args: wantArgs("RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := parseID(args[0], "postern runs list")
			if err != nil {
				return err
			}
			return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
				found, err := do(cmd.Context(), pool, run, operatorWithReason(reason))
				if err != nil {
					return err
				}
				return printRun(cmd.OutOrStdout(), c, found)
			})
		},
	}
	if changes {
		addReasonFlag(cmd, &reason)
	}
	return cmd
}

func addReasonFlag(cmd *cobra.Command, reason *string) {
	cmd.Flags().StringVar(reason, "reason", "", "the reason; kept in the audit trail")
}

func newRunsWatchCommand(c *cli) *cobra.Command {
	return &cobra.Command{
		Use: "watch RUN", Short: "Watch a run until it ends or is paused; Ctrl-C stops only the watching",
		Long: `Watch a run until it ends or is paused; Ctrl-C stops only the watching. The exit status
is 1 if the run failed, or ended with failed or dead events.`,
		Example: "  postern runs watch 7", Args: wantArgs("RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := parseID(args[0], "postern runs list")
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
		Use:     "approve RUN --reason TEXT",
		Short:   "Approve a run that awaits approval; actor and reason are kept",
		Example: "  postern runs approve 7 --reason 'agreed with finance'",
		Args:    wantArgs("RUN"),
		RunE: func(cmd *cobra.Command, args []string) error {
			run, err := parseID(args[0], "postern runs list")
			if err != nil {
				return err
			}
			if strings.TrimSpace(reason) == "" {
				return usagef("give a reason with --reason")
			}
			return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
				found, err := admin.ApproveRun(cmd.Context(), pool, run, operatorWithReason(reason))
				if err != nil {
					return err
				}
				return printRun(cmd.OutOrStdout(), c, found)
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "why the run may start")
	return cmd
}

// printEarlier reports that the idempotency key was used before and returned an earlier run.
func printEarlier(out io.Writer, c *cli, run *admin.StartedRun) {
	if run.Earlier && c.output != "json" {
		fmt.Fprintf(out, "Run %d was created with this key before; no other run is created.\n", run.Run.ID)
	}
}

// showOrWatch prints a new run, or watches it until it ends.
func showOrWatch(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, run *admin.StartedRun, err error, noWait bool) error {
	if err != nil {
		return err
	}
	printEarlier(cmd.OutOrStdout(), c, run)
	if noWait {
		err := printRun(cmd.OutOrStdout(), c, run.Run)
		if err == nil && run.Run.Status == runs.AwaitingApproval && c.output != "json" {
			_, err = fmt.Fprintf(cmd.OutOrStdout(),
				"\nIt starts after an approval: postern runs approve %d --reason TEXT\n", run.Run.ID)
		}
		return err
	}
	return watchRun(cmd.Context(), cmd.OutOrStdout(), c, pool, run.Run.ID)
}

// waitForEarlier ends a command that has selected nothing. If its idempotency key was used before,
// it still waits for that run, which may be at its last events or have failed.
func waitForEarlier(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, earlier *admin.StartedRun, err error,
	noWait bool) error {
	if earlier == nil {
		return err
	}
	return showOrWatch(cmd, c, pool, earlier, err, noWait)
}

func printRun(out io.Writer, c *cli, r *runs.Run) error {
	if c.output == "json" {
		return printJSON(out, r)
	}
	name, progress := describeProgress(r)
	pairs := []string{"run", strconv.FormatInt(r.ID, 10), "job", r.Job, "schedule", r.Schedule,
		"planned for", r.PlannedAt.String(), "idempotency key", r.IdempotencyKey,
		"status", string(r.Status), detailLabel(r), r.Detail, "awaiting decision", describeDecision(r),
		"parameters", describeParams(r), "actor", r.Actor, "reason", r.Reason}
	for _, a := range r.Approvals {
		pairs = append(pairs, "approved by", a.Actor+" at "+a.At.String(), "reason", a.Reason, "approved", a.Message)
	}
	if len(r.Approvals) == 0 { // of a run from before approvals were kept as a list
		pairs = append(pairs, "approved by", r.ApprovedBy, "reason", r.ApprovalReason)
	}
	return printFields(out, append(pairs, "created", r.CreatedAt.String(), "started", r.StartedAt.String(),
		"ended", r.EndedAt.String(), "executed by", r.LeaseOwner, "stage", rebuild.Stage(r), name, progress,
		unitOf(r), describeCounts(r.Job, r.Counts))...)
}

// decisionClause returns describeDecision as a clause.
func decisionClause(r *runs.Run) string {
	if d := describeDecision(r); d != "" {
		return "awaiting decision: " + d
	}
	return ""
}

// detailLabel returns the label of the run's detail.
func detailLabel(r *runs.Run) string {
	switch {
	case r.Status == runs.Failed:
		return "reason of the failure"
	case r.Status.Ended():
		return "last detail"
	case r.ConsecutiveFailures == 1:
		return "deferred once"
	case r.ConsecutiveFailures > 1:
		return fmt.Sprintf("deferred %d times", r.ConsecutiveFailures)
	}
	return "now"
}

// describeCounts describes the counts of a run: events by outcome for most jobs.
func describeCounts(job string, counts map[string]int64) string {
	switch job {
	case retention.Job:
		return describeRetentionCounts(counts)
	case redaction.Job:
		return describeRedactionCounts(counts)
	case reconcile.Job:
		return describeReconcileCounts(counts)
	}
	parts := []string{fmt.Sprintf("%d processed", counts[replay.Processed])}
	if n := counts[replay.Published]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d published", n))
	}
	for _, s := range []versioning.Status{versioning.Applied, versioning.Unchanged, versioning.Stale,
		versioning.Ambiguous, versioning.Ignored, versioning.Failed, versioning.Dead} {
		if n := counts[string(s)]; n > 0 {
			parts = append(parts, fmt.Sprintf("%d %s", n, s))
		}
	}
	if n := counts[replay.Deduplicated]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d of them deduplicated", n))
	}
	if n := counts[replay.EffectsReplanned]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d effects planned again", n))
	}
	if n := counts[replay.EffectsNotReplanned]; n > 0 {
		parts = append(parts, fmt.Sprintf("%d effects that could not be planned again", n))
	}
	if n, swapped := counts[rebuild.Swapped]; swapped {
		parts = append(parts, fmt.Sprintf("%s replaced, %d got a higher revision, %d removed from the mirror",
			countOf(int(n), "object"), counts[rebuild.RevisionsGrown], counts[rebuild.Emptied]))
	}
	return strings.Join(parts, ", ")
}

// The interval at which a watched run is read, and the interval of progress lines without a
// terminal.
const (
	watchInterval = 500 * time.Millisecond
	lineInterval  = 10 * time.Second
)

// watchRun shows the progress of a run until it ends or is paused, and then its result.
func watchRun(ctx context.Context, out io.Writer, c *cli, pool *pgxpool.Pool, run int64) error {
	w := &runWatcher{out: out, quiet: c.output == "json"}
	if !w.quiet {
		w.screen, _ = out.(*terminal.Screen)
	}
	for {
		r, err := runs.Show(ctx, pool, run)
		if err != nil {
			return err
		}
		w.print(r, time.Now())
		if r.Status.Ended() || r.Status == runs.Paused {
			w.finish()
			if err := printRun(out, c, r); err != nil {
				return err
			}
			return runError(r)
		}
		select {
		case <-ctx.Done():
			w.finish()
			return ctx.Err()
		case <-time.After(watchInterval):
		}
	}
}

// runError returns an error for a run that failed, or in which events failed.
func runError(r *runs.Run) error {
	failed, dead := r.Counts[string(versioning.Failed)], r.Counts[string(versioning.Dead)]
	switch {
	case r.Status == runs.Failed:
		return fmt.Errorf("run %d failed: %s", r.ID, r.Detail)
	case r.Status == runs.Done && r.Job == replay.Job && failed+dead > 0:
		return fmt.Errorf("%d events failed and %d are dead: see postern outcomes list --run %d --status failed (or "+
			"dead); after the cause is fixed, postern retry --run %d retries them", failed, dead, r.ID, r.ID)
	// events of a rebuild that fail have failed live too
	case r.Status == runs.Done && r.Job != rebuild.Job && failed+dead > 0:
		return fmt.Errorf("%d events failed and %d are dead: see postern outcomes list --status failed (or dead)",
			failed, dead)
	}
	return nil
}

// runWatcher prints the progress of a run in one line. On a terminal it updates the line, otherwise
// it prints a new line at an interval.
type runWatcher struct {
	out io.Writer
	// screen is out if out is a terminal.
	screen      *terminal.Screen
	quiet       bool
	printedAt   time.Time
	status      runs.Status
	statusSince time.Time
	startCount  int64
}

func (w *runWatcher) print(r *runs.Run, now time.Time) {
	done := r.Counts[replay.Processed]
	if w.statusSince.IsZero() || r.Status != w.status {
		w.statusSince, w.startCount, w.printedAt = now, done, time.Time{}
	}
	w.status = r.Status
	if w.quiet || w.screen == nil && now.Sub(w.printedAt) < lineInterval {
		return
	}
	w.printedAt = now
	line := fmt.Sprintf("run %d %s: ", r.ID, r.Status)
	switch {
	case r.Status == runs.Queued && swapRequested(r):
		line += "swap requested"
	case r.Expected > 0:
		line += fmt.Sprintf("%d of about %d %s", done, r.Expected, unitOf(r))
	default:
		line += fmt.Sprintf("%d %s", done, unitOf(r))
	}
	stage := rebuild.Stage(r)
	if stage != "" {
		line += ", " + stage
	}
	switch {
	case r.Status == runs.Queued:
		line += "; waiting for a processor"
	case r.Status == runs.Paused && stage == rebuild.Staged:
		line += fmt.Sprintf("; it awaits a decision: postern rebuild swap %d or postern rebuild discard %d", r.ID, r.ID)
	case r.Status == runs.Paused:
		line += fmt.Sprintf("; postern runs resume %d continues it", r.ID)
	}
	if (r.Status == runs.Running || r.Status == runs.AwaitingApproval) && r.Detail != "" {
		line += "; " + detailLabel(r) + ": " + escapeControl(r.Detail)
	}
	if r.Status == runs.AwaitingApproval {
		line += fmt.Sprintf("; it starts after an approval: postern runs approve %d --reason TEXT", r.ID)
	}
	if elapsed := now.Sub(w.statusSince).Seconds(); elapsed > 0 && done > w.startCount {
		rate := float64(done-w.startCount) / elapsed
		line += fmt.Sprintf(", %.0f/s", rate)
		if remaining := r.Expected - done; remaining > 0 {
			line += ", about " +
				time.Duration(float64(remaining)/rate*float64(time.Second)).Round(time.Second).String() + " left"
		}
	}
	if w.screen != nil {
		_ = w.screen.Line(line)
	} else {
		fmt.Fprintln(w.out, line)
	}
}

// finish ends the line on a terminal.
func (w *runWatcher) finish() {
	if w.screen != nil {
		fmt.Fprintln(w.out)
	}
}
