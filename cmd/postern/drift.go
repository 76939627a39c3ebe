package main

import (
	"context"
	"fmt"
	"io"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/reconcile"
)

func newDriftCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "drift", Short: "How far the log is proven to be what the provider has", RunE: group, Args: cobra.ArbitraryArgs}
	show := lister[reconcile.Proven]{
		what:    "watermarks",
		example: "  postern drift show --source stripe",
		params:  admin.WatermarkParams,
		query:   admin.Watermarks,
		columns: []column[reconcile.Proven]{
			{"SOURCE", func(p reconcile.Proven) string { return p.Source }},
			{"ACCOUNT", func(p reconcile.Proven) string { return p.Account }},
			{"WHAT", func(p reconcile.Proven) string { return p.What }},
			{"PROVEN FROM", func(p reconcile.Proven) string { return p.Since.String() }},
			{"UNTIL", func(p reconcile.Proven) string { return p.Until.String() }},
			{"RUN", func(p reconcile.Proven) string { return strconv.FormatInt(p.Run, 10) }},
			{"AT", func(p reconcile.Proven) string { return p.At.String() }},
		},
		none: "Nothing is proven complete. A reconciliation does: postern reconcile SOURCE.",
	}.command(c)
	show.Use, show.Short = "show", "Show from when until when, on the provider's clock, what is proven complete, by source and account; or what a run over objects has found"
	show.Example += "\n  postern drift show --run 7"
	var run int64
	show.Flags().Int64Var(&run, "run", 0, "what this run over objects has found, as postern drift report RUN tells it")
	proven := show.RunE
	show.RunE = func(cmd *cobra.Command, args []string) error {
		if !cmd.Flags().Changed("run") {
			return proven(cmd, args)
		}
		return showRun(cmd, c, run)
	}
	cmd.AddCommand(show, newDriftReportCommand(c))
	return cmd
}

func showRun(cmd *cobra.Command, c *cli, run int64) error {
	if cmd.Flags().Changed("source") {
		return usagef("--run names a run, which has a source: leave --source out")
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
		Short: "Show at which objects the mirror differed from the provider, as a run over objects has found it",
		Long: `Show what a run over objects (postern reconcile SOURCE --objects) has found, by type, and at which objects and fields the mirror differed; of the first thousand, while the counts
are of all. Of each field it tells what was here and what was there.

equal: the same. missing: there and not here. behind: older here. ahead: newer here than the list could know, so that there is nothing to mend. different: of one version, and not the
same. ghosts: here and not there. mended: right since. left: not mended, and why.`,
		Example: "  postern drift report 7\n  postern drift report 7 --result left -o json",
		Args:    wantArgs("RUN"),
	}
	cmd.Flags().IntVar(&limit, "limit", events.DefaultLimit, "the most objects to show; 0: all")
	filterFlags(cmd, admin.DifferenceParams)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		run, err := number(args[0])
		if err != nil {
			return err
		}
		if limit < 0 {
			return usagef("limit %d: 0 shows all", limit)
		}
		values := filterValues(cmd, admin.DifferenceParams)
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			return runDriftReport(cmd.Context(), cmd.OutOrStdout(), c, pool, run, values, limit)
		})
	}
	return cmd
}

func runDriftReport(ctx context.Context, out io.Writer, c *cli, pool *pgxpool.Pool, run int64, values url.Values, limit int) error {
	report, err := reconcile.Drift(ctx, pool, run)
	if err != nil {
		return err
	}
	found := []reconcile.Difference{}
	walk := lister[reconcile.Difference]{query: func(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[reconcile.Difference], error) {
		return admin.Differences(ctx, pool, run, values)
	}}
	err = walk.pages(ctx, pool, values, limit, func(some []reconcile.Difference) error {
		found = append(found, some...)
		return nil
	})
	if err != nil {
		return err
	}
	if c.output == "json" {
		return printJSON(out, struct {
			*reconcile.Report
			Differences []reconcile.Difference `json:"differences"`
		}{report, found})
	}
	if err := printTypes(out, report); err != nil {
		return err
	}
	for i := range found {
		if _, err := fmt.Fprintf(out, "\n%s\n", plainLines(difference(&found[i]))); err != nil {
			return err
		}
	}
	return nil
}

// printReport tells by type what a run has found, and where the rest is told.
func printReport(ctx context.Context, out io.Writer, pool *pgxpool.Pool, run int64) error {
	report, err := reconcile.Drift(ctx, pool, run)
	if err != nil {
		return err
	}
	if _, err := fmt.Fprintln(out); err != nil {
		return err
	}
	if err := printTypes(out, report); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "\nWhich objects, and at which fields: postern drift report %d. Until when what is proven: postern drift show.\n", run)
	return err
}

func printTypes(out io.Writer, report *reconcile.Report) error {
	s := &sink[reconcile.TypeReport]{out: out, columns: typeColumns, none: "The run has not come to any type yet."}
	if err := s.add(report.Types); err != nil {
		return err
	}
	return s.end()
}

var typeColumns = []column[reconcile.TypeReport]{
	{"TYPE", func(t reconcile.TypeReport) string { return t.ObjectType }},
	{"PHASE", func(t reconcile.TypeReport) string { return t.Phase }},
	{"CHANGED SINCE", func(t reconcile.TypeReport) string { return t.Since.String() }},
	{"CHECKED", tallied(func(t reconcile.TypeReport) int64 { return t.Checked })},
	{"EQUAL", tallied(func(t reconcile.TypeReport) int64 { return t.Equal })},
	{"MISSING", tallied(func(t reconcile.TypeReport) int64 { return t.Missing })},
	{"BEHIND", tallied(func(t reconcile.TypeReport) int64 { return t.Behind })},
	{"AHEAD", tallied(func(t reconcile.TypeReport) int64 { return t.Ahead })},
	{"DIFFERENT", tallied(func(t reconcile.TypeReport) int64 { return t.Different })},
	{"GHOSTS", tallied(func(t reconcile.TypeReport) int64 { return t.Ghosts })},
	{"MENDED", tallied(func(t reconcile.TypeReport) int64 { return t.Mended })},
	{"LEFT", tallied(func(t reconcile.TypeReport) int64 { return t.Left })},
}

func tallied(of func(reconcile.TypeReport) int64) func(reconcile.TypeReport) string {
	return func(t reconcile.TypeReport) string { return strconv.FormatInt(of(t), 10) }
}

// difference tells of an object in words, a line for each field.
func difference(d *reconcile.Difference) string {
	said := object(d.ObjectType, d.ObjectID) + " was " + d.Kind
	if d.Result != "" {
		said += ", and is " + d.Result
	}
	if d.EventID != nil {
		said += fmt.Sprintf(" (event %d)", *d.EventID)
	}
	if d.Reason != "" {
		said += ": " + d.Reason
	}
	var b strings.Builder
	b.WriteString(said)
	if len(d.Fields) > 0 {
		b.WriteByte(':')
	}
	for _, f := range d.Fields {
		fmt.Fprintf(&b, "\n  %s: %s here, %s there", f.Path, f.Before, f.After)
	}
	if d.More > 0 {
		fmt.Fprintf(&b, "\n  and %s more", counted(d.More, "field"))
	}
	return b.String()
}
