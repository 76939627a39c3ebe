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
			{"NOTE", note},
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

// note says that something is proven no further, since the account is disconnected or the list of the type is refused, or that only its versions are.
func note(p reconcile.Proven) string {
	switch {
	case p.Disconnected != "":
		return fmt.Sprintf("disconnected since %s: %s", p.DisconnectedSince, p.Disconnected)
	case p.UnlistedBy != 0:
		return fmt.Sprintf("unlisted in run %d: %s", p.UnlistedBy, p.Unlisted)
	case strings.HasPrefix(p.What, "versions "):
		return "by versions alone: what changes and moves none may be missing"
	}
	return ""
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
same. hidden: of all these, here, not listed, and found by their names. ghosts: here and not there. mended: right since. left: not mended, and why.`,
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
	_, err = walk.pages(ctx, pool, values, limit, func(some []reconcile.Difference) error {
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
	s := &sink[reconcile.TypeReport]{out: out, columns: typeColumns}
	if len(report.Types) == 0 {
		s.none = "The run has not come to any type yet."
	}
	err := s.add(slices.DeleteFunc(slices.Clone(report.Types), unread))
	if err == nil {
		err = s.end()
	}
	for _, text := range besides(report) {
		if err == nil {
			_, err = fmt.Fprintf(out, "\n%s\n", plainLines(text))
		}
	}
	return err
}

// unread: the run has passed over the type and counted nothing of it; a line below the table names it.
func unread(t reconcile.TypeReport) bool {
	return (t.Phase == reconcile.InRare || t.Phase == reconcile.InUnlisted) && t.Tally == reconcile.Tally{}
}

// besides are what the run has passed over, and whether clocks differ, and what to do.
func besides(report *reconcile.Report) (all []string) {
	var rare []string
	refused := map[string][]string{}
	for _, t := range report.Types {
		switch t.Phase {
		case reconcile.InRare:
			rare = append(rare, t.ObjectType)
		case reconcile.InUnlisted:
			refused[t.Why] = append(refused[t.Why], t.ObjectType)
		}
		for _, p := range t.PassedOver {
			all = append(all, t.ObjectType+": "+p.Text())
		}
	}
	for _, why := range slices.Sorted(maps.Keys(refused)) {
		all = append(all, strings.Join(refused[why], ", ")+": unlisted, and so nothing is proven by this run: "+why)
	}
	if len(rare) > 0 {
		ask := "postern reconcile " + report.Source + " --type " + rare[0]
		if report.Account != "" {
			ask += " --account " + report.Account
		}
		all = append(all, strings.Join(rare, ", ")+": rare, and not read: the mirror has none, and the list costs much. Nothing is proven of them. To read one: "+ask)
	}
	if types := report.VersionsAlone; len(types) > 0 {
		all = append(all, strings.Join(types, ", ")+": by versions alone. What changes and moves no version is not told by such a list, and not proven.")
	}
	if n := report.SkewSeconds; n > 0 {
		all = append(all, skewed(n))
	}
	return all
}

// skewed says that the clocks of the API and the database have differed by so many seconds.
func skewed(n int64) string {
	return fmt.Sprintf("The API's clock and the database's have differed by up to %s: see that the database's machine keeps the time (NTP).", counted(int(n), "second"))
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
	{"HIDDEN", tallied(func(t reconcile.TypeReport) int64 { return t.Hidden })},
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
