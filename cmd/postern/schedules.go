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
	cmd := &cobra.Command{Use: "schedules", Short: "Jobs that are asked for by a clock", RunE: group, Args: cobra.ArbitraryArgs,
		Long: `Jobs that are asked for by a clock. The configuration says which (schedules); running processors plan them, and each planned time is one
run, however many there are. Runs are listed with postern runs list --schedule NAME.`}
	cmd.AddCommand(lister[runs.Scheduled]{
		what:    "schedules: when each is due, and how the last run went",
		example: "  postern schedules list",
		params:  admin.ScheduleParams,
		query:   admin.Schedules,
		columns: []column[runs.Scheduled]{
			{"SCHEDULE", func(s runs.Scheduled) string { return s.Name }},
			{"JOB", func(s runs.Scheduled) string { return s.Job }},
			{"CRON", func(s runs.Scheduled) string { return s.Cron }},
			{"ZONE", func(s runs.Scheduled) string { return s.TimeZone }},
			{"NEXT", func(s runs.Scheduled) string { return cmp.Or(idle(&s), s.Next.String()) }},
			{"LAST", lastRun},
			{"SUCCEEDED", func(s runs.Scheduled) string { return s.SucceededAt.String() }},
			{"SKIPPED", func(s runs.Scheduled) string { return strconv.FormatInt(s.Skipped, 10) }},
		},
		none: "No schedules. They are made in the configuration: see schedules in docs/configuration.md.",
	}.command(c),
		scheduleCommand(c, "show", "Show a schedule: what it asks for, when, and how it stands", false, func(ctx context.Context, pool *pgxpool.Pool, name string, _ admin.By) (*runs.Scheduled, error) {
			return runs.ShowSchedule(ctx, pool, name)
		}),
		newScheduleRunCommand(c),
		scheduleCommand(c, "pause", "Let planned times pass by until resume; runs that are open go on", true, func(ctx context.Context, pool *pgxpool.Pool, name string, by admin.By) (*runs.Scheduled, error) {
			return admin.ChangeSchedule(ctx, pool, name, "pause", by)
		}),
		scheduleCommand(c, "resume", "Plan a paused schedule again, from now on", true, func(ctx context.Context, pool *pgxpool.Pool, name string, by admin.By) (*runs.Scheduled, error) {
			return admin.ChangeSchedule(ctx, pool, name, "resume", by)
		}))
	return cmd
}

// idle says why a schedule has no next planned time; "" where it may have one.
func idle(s *runs.Scheduled) string {
	switch {
	case !s.PausedAt.IsZero():
		return "paused"
	case !s.Planned:
		return "not planned"
	}
	return ""
}

func lastRun(s runs.Scheduled) string {
	if s.Last == 0 {
		return ""
	}
	return fmt.Sprintf("run %d %s", s.Last, s.LastStatus)
}

// scheduleCommand is a command that does something with a schedule and shows it. changes: it takes a reason.
func scheduleCommand(c *cli, name, short string, changes bool, do func(context.Context, *pgxpool.Pool, string, admin.By) (*runs.Scheduled, error)) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: name + " NAME", Short: short, Example: "  postern schedules " + name + " nightly", Args: wantArgs("NAME"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
				s, err := do(cmd.Context(), pool, args[0], because(reason))
				if err != nil {
					return err
				}
				return printSchedule(cmd.OutOrStdout(), c, s)
			})
		},
	}
	if changes {
		reasonFlag(cmd, &reason)
	}
	return cmd
}

func newScheduleRunCommand(c *cli) *cobra.Command {
	var noWait bool
	cmd := &cobra.Command{
		Use:   "run NAME",
		Short: "Run a schedule's job now",
		Long: `Run a schedule's job now, paused or not, and watch it; Ctrl-C ends only the watching. Its overlap policy holds: with skip it is refused while a
run of the schedule is open, with queue it waits for that one's end.`,
		Example: `  postern schedules run nightly --reason 'after the outage'
  postern schedules run nightly --once-key "build $CI_PIPELINE_ID" --no-wait`,
		Args: wantArgs("NAME"),
	}
	filterFlags(cmd, admin.FireParams)
	cmd.Flags().BoolVar(&noWait, "no-wait", false, "do not watch: print the run and end")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			run, err := admin.Fire(cmd.Context(), pool, args[0], operator(), filterValues(cmd, admin.FireParams))
			return wait(cmd, c, pool, run, err, noWait)
		})
	}
	return cmd
}

func printSchedule(out io.Writer, c *cli, s *runs.Scheduled) error {
	if c.output == "json" {
		return printJSON(out, s)
	}
	var parameters []string
	for _, name := range slices.Sorted(maps.Keys(s.Parameters)) {
		parameters = append(parameters, name+"="+s.Parameters[name])
	}
	paused, skipped, seen := "", "", ""
	if !s.PausedAt.IsZero() {
		paused = s.PausedAt.String() + " by " + s.PausedBy
	}
	if s.Skipped > 0 {
		skipped = fmt.Sprintf("%d, the last at %s: %s", s.Skipped, s.SkippedAt, s.SkippedWhy)
	}
	if !s.Planned {
		seen = "no: it was last in a processor's configuration at " + s.SeenAt.String()
	}
	return facts(out, "schedule", s.Name, "job", s.Job, "cron", s.Cron+" in "+s.TimeZone, "overlap", s.Overlap, "missed", s.Missed, "parameters", strings.Join(parameters, " "),
		"next", s.Next.String(), "paused", paused, "planned", seen, "last run", lastRun(*s), "last succeeded", s.SucceededAt.String(), "skipped", skipped)
}
