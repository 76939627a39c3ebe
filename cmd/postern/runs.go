package main

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/runs"
)

func newRunsCommand(c *cli) *cobra.Command {
	show := func(ctx context.Context, pool *pgxpool.Pool, p operations.RunChange, _ operations.Requester) (*runs.Run,
		error) {
		return runs.Show(ctx, pool, p.Run)
	}
	reason := []flag{reasonFlag}
	return group("runs", "List, watch and control runs: jobs over the log", runList.newCommand(c),
		newRunCommand(c, command{use: "show RUN", short: "Show a run with its parameters, progress and result"}, show),
		newRunsWatchCommand(c), newRunCommand(c, command{
			use: "approve RUN --reason TEXT", short: "Approve a run that awaits approval; actor and reason are kept",
			example: "  postern runs approve 7 --reason 'agreed with finance'",
			flags:   []flag{{"reason", "why the run may start", true}},
			check:   func(x *call) error { return x.requireReason("") },
		}, operations.ApproveRun),
		newRunCommand(c, command{use: "pause RUN", short: "Pause a run at its next checkpoint", flags: reason},
			operations.PauseRun),
		newRunCommand(c, command{use: "resume RUN", short: "Continue a paused run", flags: reason},
			operations.ResumeRun),
		newRunCommand(c, command{use: "cancel RUN", short: "Cancel a run; what it has done stays", flags: reason},
			operations.CancelRun))
}

var runList = listCommand[runs.Run, operations.RunParams]{
	subject: "runs, the newest first",
	example: "  postern runs list --status running",
	query:   operations.Runs,
	columns: []column[runs.Run]{
		{"RUN", func(r runs.Run) any { return r.ID }},
		{"JOB", func(r runs.Run) any { return r.Job }},
		{"STATUS", func(r runs.Run) any { return r.Status }},
		{"SCHEDULE", func(r runs.Run) any { return r.Schedule }},
		{"PLANNED", func(r runs.Run) any { return r.PlannedAt }},
		{"PROCESSED", func(r runs.Run) any { return describeProcessed(&r) }},
		{"CREATED", func(r runs.Run) any { return r.CreatedAt }},
		{"ENDED", func(r runs.Run) any { return r.EndedAt }},
		{"ACTOR", func(r runs.Run) any { return r.Actor }},
		{"REASON", func(r runs.Run) any { return r.Reason }},
		{"DETAIL", func(r runs.Run) any { return cmp.Or(r.Detail, decisionClause(&r)) }},
	},
	emptyText: "No runs.",
}

// changeRun reads or changes a run.
type changeRun func(context.Context, *pgxpool.Pool, operations.RunChange, operations.Requester) (*runs.Run, error)

// newRunCommand completes a command that reads or changes a run and prints it.
func newRunCommand(c *cli, s command, do changeRun) *cobra.Command {
	s.ids = "postern runs list"
	s.example = cmp.Or(s.example, "  postern runs "+strings.TrimSuffix(s.use, "RUN")+"7")
	s.run = func(x *call) error {
		found, err := do(x.ctx, x.pool, operations.RunChange{Run: x.ids[0], Reason: x.reason()}, operator())
		return show(x, found, err, printRun)
	}
	return s.build(c)
}

func newRunsWatchCommand(c *cli) *cobra.Command {
	return command{
		use: "watch RUN", short: "Watch a run until it ends or is paused; Ctrl-C stops only the watching",
		long: `Watch a run until it ends or is paused; Ctrl-C stops only the watching. The exit status
is 1 if the run failed, or ended with failed or dead events.`,
		example: "  postern runs watch 7", ids: "postern runs list",
		run: func(x *call) error { return x.watchRun(x.ids[0]) },
	}.build(c)
}

func newSchedulesCommand(c *cli) *cobra.Command {
	show := func(ctx context.Context, pool *pgxpool.Pool, p operations.ScheduleChange,
		_ operations.Requester) (*runs.ScheduleState, error) {
		return runs.ShowSchedule(ctx, pool, p.Name)
	}
	reason := []flag{reasonFlag}
	cmd := group("schedules", "List, run and pause schedules of jobs", scheduleList.newCommand(c),
		newScheduleCommand(c, command{use: "show NAME", short: "Show a schedule with its job, timetable and state"},
			show), newScheduleRunCommand(c),
		newScheduleCommand(c, command{use: "pause NAME", flags: reason,
			short: "Pause a schedule: planned times are skipped, open runs continue"}, operations.PauseSchedule),
		newScheduleCommand(c, command{use: "resume NAME", flags: reason,
			short: "Resume a paused schedule from now on"}, operations.ResumeSchedule))
	cmd.Long = `List, run and pause schedules of jobs. The configuration defines them (schedules).
Running processors plan them, and each planned time gets one run, whatever the number of processors.
postern runs list --schedule NAME lists the runs.`
	return cmd
}

var scheduleList = listCommand[runs.ScheduleState, operations.Page]{
	subject: "schedules with their next and last runs",
	example: "  postern schedules list",
	query:   operations.ListPages(runs.ListSchedules),
	columns: []column[runs.ScheduleState]{
		{"SCHEDULE", func(s runs.ScheduleState) any { return s.Name }},
		{"JOB", func(s runs.ScheduleState) any { return s.Job }},
		{"CRON", func(s runs.ScheduleState) any { return s.Cron }},
		{"ZONE", func(s runs.ScheduleState) any { return s.TimeZone }},
		{"NEXT", func(s runs.ScheduleState) any { return cmp.Or(describeIdle(&s), s.Next.String()) }},
		{"LAST", func(s runs.ScheduleState) any { return describeLastRun(&s) }},
		{"SUCCEEDED", func(s runs.ScheduleState) any { return s.SucceededAt }},
		{"SKIPPED", func(s runs.ScheduleState) any { return s.Skipped }},
	},
	emptyText: "No schedules. They are defined in the configuration: see schedules in docs/reference/configuration.md.",
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

func describeLastRun(s *runs.ScheduleState) string {
	if s.LastRun == 0 {
		return ""
	}
	return fmt.Sprintf("run %d %s", s.LastRun, s.LastStatus)
}

// changeSchedule reads or changes a schedule.
type changeSchedule func(context.Context, *pgxpool.Pool, operations.ScheduleChange,
	operations.Requester) (*runs.ScheduleState,
	error)

// newScheduleCommand completes a command that reads or changes a schedule and prints it.
func newScheduleCommand(c *cli, s command, do changeSchedule) *cobra.Command {
	s.example = "  postern schedules " + strings.TrimSuffix(s.use, "NAME") + "nightly"
	s.run = func(x *call) error {
		found, err := do(x.ctx, x.pool, operations.ScheduleChange{Name: x.args[0], Reason: x.reason()}, operator())
		return show(x, found, err, printSchedule)
	}
	return s.build(c)
}

func newScheduleRunCommand(c *cli) *cobra.Command {
	return command{
		use: "run NAME", short: "Run a schedule's job now",
		long: `Run a schedule's job now, paused or not, and watch it; Ctrl-C stops only the watching.
The overlap policy applies: with skip it is an error while a run of the schedule is open, with queue
the run waits for the end of that run.`,
		example: `  postern schedules run nightly --reason 'after the outage'
  postern schedules run nightly --idempotency-key "build $CI_PIPELINE_ID" --no-wait`,
		params: operations.Params(operations.RunRequest{}), flags: []flag{noWaitFlag},
		run: func(x *call) error {
			p, err := parse[operations.RunScheduleParams](x)
			if err != nil {
				return err
			}
			p.Name = x.args[0]
			return x.showOrWatch(operations.RunSchedule(x.ctx, x.pool, p, operator()))
		},
	}.build(c)
}

func printSchedule(x *call, s *runs.ScheduleState) error {
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
	return printFields(x.out, "schedule", s.Name, "job", s.Job, "cron", s.Cron+" in "+s.TimeZone, "overlap", s.Overlap,
		"missed", s.Missed, "parameters", strings.Join(parameters, " "), "next", s.Next, "paused", paused,
		"planned", notPlanned, "last run", describeLastRun(s), "last succeeded", s.SucceededAt,
		"skipped", skipped)
}
