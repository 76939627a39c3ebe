package main

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/runs"
)

func newSchedulesCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "schedules", Short: "List, run and pause schedules of jobs", RunE: showHelpOrError,
		Args: cobra.ArbitraryArgs,
		Long: `List, run and pause schedules of jobs. The configuration defines them (schedules).
Running processors plan them, and each planned time gets one run, whatever the number of processors.
postern runs list --schedule NAME lists the runs.`}
	cmd.AddCommand(listCommand[runs.ScheduleState]{
		subject: "schedules with their next and last runs",
		example: "  postern schedules list",
		params:  admin.ScheduleParams,
		query:   admin.Schedules,
		columns: []column[runs.ScheduleState]{
			{"SCHEDULE", func(s runs.ScheduleState) string { return s.Name }},
			{"JOB", func(s runs.ScheduleState) string { return s.Job }},
			{"CRON", func(s runs.ScheduleState) string { return s.Cron }},
			{"ZONE", func(s runs.ScheduleState) string { return s.TimeZone }},
			{"NEXT", func(s runs.ScheduleState) string { return cmp.Or(describeIdle(&s), s.Next.String()) }},
			{"LAST", describeLastRun},
			{"SUCCEEDED", func(s runs.ScheduleState) string { return s.SucceededAt.String() }},
			{"SKIPPED", func(s runs.ScheduleState) string { return strconv.FormatInt(s.Skipped, 10) }},
		},
		emptyText: "No schedules. They are defined in the configuration: see schedules in docs/configuration.md.",
	}.newCommand(c),
		newScheduleCommand(c, "show", "Show a schedule with its job, timetable and state", false,
			func(ctx context.Context, pool *pgxpool.Pool, name string, _ admin.Requester) (*runs.ScheduleState, error) {
				return runs.ShowSchedule(ctx, pool, name)
			}),
		newScheduleRunCommand(c),
		newScheduleCommand(c, "pause", "Pause a schedule: planned times are skipped, open runs continue", true,
			func(ctx context.Context, pool *pgxpool.Pool, name string, by admin.Requester) (*runs.ScheduleState,
				error) {
				return admin.ChangeSchedule(ctx, pool, name, "pause", by)
			}),
		newScheduleCommand(c, "resume", "Resume a paused schedule from now on", true,
			func(ctx context.Context, pool *pgxpool.Pool, name string, by admin.Requester) (*runs.ScheduleState,
				error) {
				return admin.ChangeSchedule(ctx, pool, name, "resume", by)
			}))
	return cmd
}

// describeIdle says why a schedule has no next planned time; "" if it may have one.
func describeIdle(s *runs.ScheduleState) string {
	switch {
	case !s.PausedAt.IsZero():
		return "paused"
	case !s.Planned:
		return "not planned"
	}
	return ""
}

func describeLastRun(s runs.ScheduleState) string {
	if s.LastRun == 0 {
		return ""
	}
	return fmt.Sprintf("run %d %s", s.LastRun, s.LastStatus)
}

// newScheduleCommand builds a command that reads or changes a schedule and prints it. With changes
// it has the flag --reason.
func newScheduleCommand(c *cli, name, short string, changes bool, do func(context.Context, *pgxpool.Pool, string,
	admin.Requester) (*runs.ScheduleState, error)) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: name + " NAME", Short: short, Example: "  postern schedules " + name + " nightly", Args: wantArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
				s, err := do(cmd.Context(), pool, args[0], operatorWithReason(reason))
				if err != nil {
					return err
				}
				return printSchedule(cmd.OutOrStdout(), c, s)
			})
		},
	}
	if changes {
		addReasonFlag(cmd, &reason)
	}
	return cmd
}

func newScheduleRunCommand(c *cli) *cobra.Command {
	var noWait bool
	cmd := &cobra.Command{
		Use:   "run NAME",
		Short: "Run a schedule's job now",
		Long: `Run a schedule's job now, paused or not, and watch it; Ctrl-C stops only the watching.
The overlap policy applies: with skip it is an error while a run of the schedule is open, with queue
the run waits for the end of that run.`,
		Example: `  postern schedules run nightly --reason 'after the outage'
  postern schedules run nightly --idempotency-key "build $CI_PIPELINE_ID" --no-wait`,
		Args: wantArgs("NAME"),
	}
	filterFlags(cmd, admin.RunScheduleParams)
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not watch: print the run and exit")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			run, err := admin.RunSchedule(cmd.Context(), pool, args[0], operator(),
				filterValues(cmd, admin.RunScheduleParams))
			return showOrWatch(cmd, c, pool, run, err, noWait)
		})
	}
	return cmd
}

func printSchedule(out io.Writer, c *cli, s *runs.ScheduleState) error {
	if c.output == "json" {
		return printJSON(out, s)
	}
	var parameters []string
	for _, name := range slices.Sorted(maps.Keys(s.Parameters)) {
		parameters = append(parameters, name+"="+s.Parameters[name])
	}
	paused, skipped, notPlanned := "", "", ""
	if !s.PausedAt.IsZero() {
		paused = s.PausedAt.String() + " by " + s.PausedBy
	}
	if s.Skipped > 0 {
		skipped = fmt.Sprintf("%d, the last at %s: %s", s.Skipped, s.SkippedAt, s.SkippedReason)
	}
	if !s.Planned {
		notPlanned = "no: the last processor with it in its configuration confirmed it at " + s.ConfirmedAt.String()
	}
	return printFields(out, "schedule", s.Name, "job", s.Job, "cron", s.Cron+" in "+s.TimeZone, "overlap", s.Overlap,
		"missed", s.Missed, "parameters", strings.Join(parameters, " "), "next", s.Next.String(), "paused", paused,
		"planned", notPlanned, "last run", describeLastRun(*s), "last succeeded", s.SucceededAt.String(),
		"skipped", skipped)
}
