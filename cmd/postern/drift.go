package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/watermarks"
)

func newDriftCommand(c *cli) *cobra.Command {
	return group("drift", "Show until when the log is complete, by source and account", newDriftShowCommand(c),
		newDriftReportCommand(c))
}

var watermarkList = listCommand[watermarks.Completeness, operations.SourceParams]{
	subject: "watermarks",
	example: "  postern drift show --source stripe",
	query:   operations.Watermarks,
	columns: []column[watermarks.Completeness]{
		{"SOURCE", func(p watermarks.Completeness) any { return p.Source }},
		{"ACCOUNT", func(p watermarks.Completeness) any { return p.Account }},
		{"SUBJECT", func(p watermarks.Completeness) any { return p.Subject }},
		{"COMPLETE FROM", func(p watermarks.Completeness) any { return p.Since }},
		{"UNTIL", func(p watermarks.Completeness) any { return p.Until }},
		{"RUN", func(p watermarks.Completeness) any { return p.Run }},
		{"AT", func(p watermarks.Completeness) any { return p.At }},
		{"NOTE", watermarkNote},
	},
	emptyText: "Nothing is reconciled yet, so it is not known. For a source with a section api, run: " +
		"postern reconcile SOURCE",
}

func newDriftShowCommand(c *cli) *cobra.Command {
	return command{
		use: "show", short: "Show the period, in the provider's time, for which the log is complete, by source and " +
			"account; or the findings of an object scan",
		example: watermarkList.example + "\n  postern drift show --run 7",
		params:  operations.Params(operations.SourceParams{}),
		moreFlags: func(cmd *cobra.Command) {
			limitFlag(cmd)
			cmd.Flags().Int64("run", 0, "show the findings of this object scan, as postern drift report RUN does")
		},
		check: func(x *call) error {
			if x.cmd.Flags().Changed("run") && x.values["source"] != "" {
				return usagef("--run names a run, which has a source: omit --source")
			}
			return checkLimit(x)
		},
		run: func(x *call) error {
			if !x.cmd.Flags().Changed("run") {
				return watermarkList.run(x)
			}
			run, err := x.cmd.Flags().GetInt64("run")
			if err != nil {
				return err
			}
			return printFindings(x, run)
		},
	}.build(c)
}

// watermarkNote explains why a watermark does not advance: the account is disconnected, or the type
// is not listable. For a watermark by versions it says what the watermark does not cover.
func watermarkNote(p watermarks.Completeness) any {
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

func newDriftReportCommand(c *cli) *cobra.Command {
	return command{
		use:   "report RUN",
		short: "Show the differences between mirror and provider that an object scan has found",
		long: `Show the findings of an object scan (postern reconcile SOURCE --objects) by type,
and the objects and fields in which the mirror differed from the provider. The counts are of all
objects; details are of the first thousand. Each field has its value in the mirror and at the
provider.

equal: no difference. missing: only at the provider. mirror_older: older in the mirror.
mirror_newer: newer in the mirror than in the list, so there is nothing to repair. content_differs:
same version, other content. not_listed: in the mirror and not in the list, but found by id.
orphans: only in the mirror. repaired: repaired since. unrepaired: not repaired, with the reason.`,
		example: "  postern drift report 7\n  postern drift report 7 --result unrepaired -o json",
		ids:     "postern runs list", params: operations.Params(operations.DifferenceParams{}, "id"),
		moreFlags: limitFlag, check: checkLimit,
		run: func(x *call) error { return printFindings(x, x.ids[0]) },
	}.build(c)
}

// printFindings prints the findings of an object scan by type, and then the objects.
func printFindings(x *call, run int64) error {
	report, err := objectscan.ReportDrift(x.ctx, x.pool, run)
	if err != nil {
		return err
	}
	found := []objectscan.Difference{}
	p, err := parse[operations.DifferenceParams](x)
	if err != nil {
		return err
	}
	p.Run = run
	_, err = readPages(x.ctx, x.pool, operations.Differences, p, x.limit(), func(some []objectscan.Difference) error {
		found = append(found, some...)
		return nil
	})
	if err != nil {
		return err
	}
	if x.json() {
		return printJSON(x.out, struct {
			*objectscan.DriftReport
			Differences []objectscan.Difference `json:"differences"`
		}{report, found})
	}
	if err := printTypes(x, report); err != nil {
		return err
	}
	for i := range found {
		if _, err := fmt.Fprintf(x.out, "\n%s\n", escapeControlLines(describeDifference(&found[i]))); err != nil {
			return err
		}
	}
	return nil
}

// printReport prints the counts by type and the command that shows the details.
func printReport(x *call, run int64) error {
	report, err := objectscan.ReportDrift(x.ctx, x.pool, run)
	if err != nil {
		return err
	}
	fmt.Fprintln(x.out)
	if err := printTypes(x, report); err != nil {
		return err
	}
	_, err = fmt.Fprintf(x.out, "\nObjects and fields that differ: postern drift report %d. Until when the log is "+
		"complete: postern drift show.\n", run)
	return err
}

func printTypes(x *call, report *objectscan.DriftReport) error {
	s := &listPrinter[objectscan.TypeDrift]{out: x.out, columns: typeColumns}
	if len(report.Types) == 0 {
		s.emptyText = "The run has not processed any type yet."
	}
	err := s.add(slices.DeleteFunc(slices.Clone(report.Types), isSkippedUncounted))
	if err == nil {
		err = s.end()
	}
	for _, text := range skippedNotes(report) {
		if err == nil {
			_, err = fmt.Fprintf(x.out, "\n%s\n", escapeControlLines(text))
		}
	}
	return err
}

// isSkippedUncounted reports whether the run skipped the type and counted nothing. A line below the
// table names such types.
func isSkippedUncounted(t objectscan.TypeDrift) bool {
	return (t.Phase == objectscan.PhaseSkipped || t.Phase == objectscan.PhaseNotListable) &&
		t.ScanCounts == objectscan.ScanCounts{}
}

// skippedNotes names the types and parts that the run did not verify, with the command that reads
// them, and a difference between the clocks.
func skippedNotes(report *objectscan.DriftReport) (all []string) {
	var skipped []string
	notListable := map[string][]string{}
	for _, t := range report.Types {
		switch t.Phase {
		case objectscan.PhaseSkipped:
			skipped = append(skipped, t.ObjectType)
		case objectscan.PhaseNotListable:
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

var typeColumns = []column[objectscan.TypeDrift]{
	{"TYPE", func(t objectscan.TypeDrift) any { return t.ObjectType }},
	{"PHASE", func(t objectscan.TypeDrift) any { return t.Phase }},
	{"CHANGED SINCE", func(t objectscan.TypeDrift) any { return t.Since }},
	{"CHECKED", func(t objectscan.TypeDrift) any { return t.Checked }},
	{"EQUAL", func(t objectscan.TypeDrift) any { return t.Equal }},
	{"MISSING", func(t objectscan.TypeDrift) any { return t.Missing }},
	{"MIRROR OLDER", func(t objectscan.TypeDrift) any { return t.MirrorOlder }},
	{"MIRROR NEWER", func(t objectscan.TypeDrift) any { return t.MirrorNewer }},
	{"CONTENT DIFFERS", func(t objectscan.TypeDrift) any { return t.ContentDiffers }},
	{"NOT LISTED", func(t objectscan.TypeDrift) any { return t.NotListed }},
	{"ORPHANS", func(t objectscan.TypeDrift) any { return t.Orphans }},
	{"REPAIRED", func(t objectscan.TypeDrift) any { return t.Repaired }},
	{"UNREPAIRED", func(t objectscan.TypeDrift) any { return t.Unrepaired }},
}

// describeDifference describes an object's differences, with a line for each field.
func describeDifference(d *objectscan.Difference) string {
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
