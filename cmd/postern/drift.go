package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/reconcile"
)

func newDriftCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "drift", Short: "Show until when the log is complete, by source and account",
		RunE: showHelpOrError,
		Args: cobra.ArbitraryArgs}
	show := listCommand[reconcile.Completeness]{
		subject: "watermarks",
		example: "  postern drift show --source stripe",
		params:  admin.WatermarkParams,
		query:   admin.Watermarks,
		columns: []column[reconcile.Completeness]{
			{"SOURCE", func(p reconcile.Completeness) string { return p.Source }},
			{"ACCOUNT", func(p reconcile.Completeness) string { return p.Account }},
			{"SUBJECT", func(p reconcile.Completeness) string { return p.Subject }},
			{"COMPLETE FROM", func(p reconcile.Completeness) string { return p.Since.String() }},
			{"UNTIL", func(p reconcile.Completeness) string { return p.Until.String() }},
			{"RUN", func(p reconcile.Completeness) string { return strconv.FormatInt(p.Run, 10) }},
			{"AT", func(p reconcile.Completeness) string { return p.At.String() }},
			{"NOTE", watermarkNote},
		},
		emptyText: "Nothing is reconciled yet. Run: postern reconcile SOURCE",
	}.newCommand(c)
	show.Use, show.Short = "show", "Show the period, in the provider's time, for which the log is complete, by "+
		"source and account; or the findings of an object scan"
	show.Example += "\n  postern drift show --run 7"
	var run int64
	show.Flags().Int64Var(&run, "run", 0, "show the findings of this object scan, as postern drift report RUN does")
	showWatermarks := show.RunE
	show.RunE = func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("run") {
			return showWatermarks(cmd, args)
		}
		return showRun(cmd, c, run)
	}
	cmd.AddCommand(show, newDriftReportCommand(c))
	return cmd
}

// watermarkNote explains why a watermark does not advance: the account is disconnected, or the type
// is not listable. For a watermark by versions it says what the watermark does not cover.
func watermarkNote(p reconcile.Completeness) string {
	switch {
	case p.DisconnectedReason != "":
		return fmt.Sprintf("disconnected since %s: %s", p.DisconnectedSince, p.DisconnectedReason)
	case p.NotListableRun != 0:
		return fmt.Sprintf("not listable in run %d: %s", p.NotListableRun, p.NotListableReason)
	case strings.HasPrefix(p.Subject, "versions "):
		return "by versions only: a change that does not change the version may be missing"
	}
	return ""
}

func showRun(cmd *cobra.Command, c *cli, run int64) error {
	if cmd.Flags().Changed("source") {
		return usagef("--run names a run, which has a source: omit --source")
	}
	limit, err := cmd.Flags().GetInt("limit")
	if err != nil {
		return err
	}
	return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
		return runDriftReport(cmd.Context(), cmd.OutOrStdout(), c, pool, run, url.Values{}, limit)
	})
}

func newDriftReportCommand(c *cli) *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use:   "report RUN",
		Short: "Show the differences between mirror and provider that an object scan has found",
		Long: `Show the findings of an object scan (postern reconcile SOURCE --objects) by type,
and the objects and fields in which the mirror differed from the provider. The counts are of all
objects; details are of the first thousand. Each field has its value in the mirror and at the
provider.

equal: no difference. missing: only at the provider. mirror_older: older in the mirror.
mirror_newer: newer in the mirror than in the list, so there is nothing to repair. content_differs:
same version, other content. not_listed: in the mirror and not in the list, but found by id.
orphans: only in the mirror. repaired: repaired since. unrepaired: not repaired, with the reason.`,
		Example: "  postern drift report 7\n  postern drift report 7 --result unrepaired -o json",
		Args:    wantArgs("RUN"),
	}
	cmd.Flags().IntVar(&limit, "limit", events.DefaultLimit, "maximum number of objects to show; 0: all")
	filterFlags(cmd, admin.DifferenceParams)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		run, err := parseID(args[0], "postern runs list")
		if err != nil {
			return err
		}
		if limit < 0 {
			return usagef("--limit must not be negative; 0 shows all")
		}
		values := filterValues(cmd, admin.DifferenceParams)
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			return runDriftReport(cmd.Context(), cmd.OutOrStdout(), c, pool, run, values, limit)
		})
	}
	return cmd
}

func runDriftReport(ctx context.Context, out io.Writer, c *cli, pool *pgxpool.Pool, run int64, values url.Values,
	limit int) error {
	report, err := reconcile.ReportDrift(ctx, pool, run)
	if err != nil {
		return err
	}
	found := []reconcile.Difference{}
	walk := listCommand[reconcile.Difference]{query: func(ctx context.Context, pool *pgxpool.Pool,
		values url.Values) (events.Page[reconcile.Difference], error) {
		return admin.Differences(ctx, pool, run, values)
	}}
	_, err = walk.readPages(ctx, pool, values, limit, func(some []reconcile.Difference) error {
		found = append(found, some...)
		return nil
	})
	if err != nil {
		return err
	}
	if c.output == "json" {
		return printJSON(out, struct {
			*reconcile.DriftReport
			Differences []reconcile.Difference `json:"differences"`
		}{report, found})
	}
	if err := printTypes(out, report); err != nil {
		return err
	}
	for i := range found {
		if _, err := fmt.Fprintf(out, "\n%s\n", escapeControlLines(describeDifference(&found[i]))); err != nil {
			return err
		}
	}
	return nil
}

// printReport prints the counts by type and the command that shows the details.
func printReport(ctx context.Context, out io.Writer, pool *pgxpool.Pool, run int64) error {
	report, err := reconcile.ReportDrift(ctx, pool, run)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return err
	}
	if err := printTypes(out, report); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\nObjects and fields that differ: postern drift report %d. Until when the log is "+
		"complete: postern drift show.\n", run)
	return err
}

func printTypes(out io.Writer, report *reconcile.DriftReport) error {
	s := &listPrinter[reconcile.TypeDrift]{out: out, columns: typeColumns}
	if len(report.Types) == 0 {
		s.emptyText = "The run has not processed any type yet."
	}
	err := s.add(slices.DeleteFunc(slices.Clone(report.Types), isSkippedUncounted))
	if err == nil {
		err = s.end()
	}
	for _, text := range skippedNotes(report) {
		if err == nil {
			_, err = fmt.Fprintf(out, "\n%s\n", escapeControlLines(text))
		}
	}
	return err
}

// isSkippedUncounted reports whether the run skipped the type and counted nothing. A line below the
// table names such types.
func isSkippedUncounted(t reconcile.TypeDrift) bool {
	return (t.Phase == reconcile.PhaseSkipped || t.Phase == reconcile.PhaseNotListable) &&
		t.ScanCounts == reconcile.ScanCounts{}
}

// skippedNotes names the types and parts that the run did not verify, with the command that reads
// them, and a difference between the clocks.
func skippedNotes(report *reconcile.DriftReport) (all []string) {
	var skipped []string
	notListable := map[string][]string{}
	for _, t := range report.Types {
		switch t.Phase {
		case reconcile.PhaseSkipped:
			skipped = append(skipped, t.ObjectType)
		case reconcile.PhaseNotListable:
			notListable[t.Reason] = append(notListable[t.Reason], t.ObjectType)
		}
		for _, p := range t.Skipped {
			all = append(all, t.ObjectType+": "+p.Message())
		}
	}
	for _, reason := range slices.Sorted(maps.Keys(notListable)) {
		all = append(all, strings.Join(notListable[reason], ", ")+": not listable, so this run does not verify that "+
			"they are complete: "+reason)
	}
	if len(skipped) > 0 {
		command := "postern reconcile " + report.Source + " --type " + skipped[0]
		if report.Account != "" {
			command += " --account " + report.Account
		}
		all = append(all, strings.Join(skipped, ", ")+": skipped, because the mirror has no such object and the list "+
			"is expensive. They are not verified. To read one: "+command)
	}
	if types := report.VersionOnlyTypes; len(types) > 0 {
		all = append(all, strings.Join(types, ", ")+": by versions only. The list does not show changes that do not "+
			"change the version, so those are not verified.")
	}
	if n := report.SkewSeconds; n > 0 {
		all = append(all, describeClockSkew(n))
	}
	return all
}

// describeClockSkew reports a difference between the clocks of the API and the database.
func describeClockSkew(n int64) string {
	return fmt.Sprintf("The clocks of the API and the database differed by up to %s: check that the database's "+
		"machine synchronizes its clock (NTP).", countOf(int(n), "second"))
}

var typeColumns = []column[reconcile.TypeDrift]{
	{"TYPE", func(t reconcile.TypeDrift) string { return t.ObjectType }},
	{"PHASE", func(t reconcile.TypeDrift) string { return t.Phase }},
	{"CHANGED SINCE", func(t reconcile.TypeDrift) string { return t.Since.String() }},
	{"CHECKED", countCell(func(t reconcile.TypeDrift) int64 { return t.Checked })},
	{"EQUAL", countCell(func(t reconcile.TypeDrift) int64 { return t.Equal })},
	{"MISSING", countCell(func(t reconcile.TypeDrift) int64 { return t.Missing })},
	{"MIRROR OLDER", countCell(func(t reconcile.TypeDrift) int64 { return t.MirrorOlder })},
	{"MIRROR NEWER", countCell(func(t reconcile.TypeDrift) int64 { return t.MirrorNewer })},
	{"CONTENT DIFFERS", countCell(func(t reconcile.TypeDrift) int64 { return t.ContentDiffers })},
	{"NOT LISTED", countCell(func(t reconcile.TypeDrift) int64 { return t.NotListed })},
	{"ORPHANS", countCell(func(t reconcile.TypeDrift) int64 { return t.Orphans })},
	{"REPAIRED", countCell(func(t reconcile.TypeDrift) int64 { return t.Repaired })},
	{"UNREPAIRED", countCell(func(t reconcile.TypeDrift) int64 { return t.Unrepaired })},
}

func countCell(of func(reconcile.TypeDrift) int64) func(reconcile.TypeDrift) string {
	return func(t reconcile.TypeDrift) string { return strconv.FormatInt(of(t), 10) }
}

// describeDifference describes an object's differences, with a line for each field.
func describeDifference(d *reconcile.Difference) string {
	head := describeObject(d.ObjectType, d.ObjectID) + ": " + d.Kind
	if d.Result != "" {
		head += ", now " + d.Result
	}
	if d.EventID != nil {
		head += fmt.Sprintf(" (event %d)", *d.EventID)
	}
	if d.Reason != "" {
		head += ": " + d.Reason
	}
	var b strings.Builder
	b.WriteString(head)
	if len(d.Fields) > 0 {
		b.WriteByte(':')
	}
	for _, f := range d.Fields {
		fmt.Fprintf(&b, "\n  %s: %s in the mirror, %s at the provider", f.Path, f.Before, f.After)
	}
	if d.More > 0 {
		fmt.Fprintf(&b, "\n  and %s more", countOf(d.More, "field"))
	}
	return b.String()
}
