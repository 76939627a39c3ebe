package main

import (
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/redaction"
)

func newSpoolCommand(c *cli) *cobra.Command {
	return group("spool", "List and remove spools of gateways: acknowledged deliveries that are not in the log yet",
		listCommand[redaction.Spool, operations.Page]{
			subject: "the spools in the database: of running gateways, and of gateways that ended without " +
				"reporting an empty spool",
			example: "  postern spool list",
			query:   operations.ListPages(redaction.Spools),
			columns: []column[redaction.Spool]{
				{"SPOOL", func(s redaction.Spool) any { return s.Name }},
				{"PLACE", func(s redaction.Spool) any { return s.Location }},
				{"KNOWN SINCE", func(s redaction.Spool) any { return s.RegisteredAt }},
				{"LAST REPORT", func(s redaction.Spool) any { return s.ReportedAt }},
				{"DELIVERIES", func(s redaction.Spool) any { return s.Deliveries }},
				{"BYTES", func(s redaction.Spool) any { return s.Bytes }},
				{"OLDEST", func(s redaction.Spool) any { return s.OldestAt }},
				{"LAST EMPTY", func(s redaction.Spool) any { return s.EmptyAt }},
				{"AWAITED BY RUNS", func(s redaction.Spool) any {
					return strings.Trim(fmt.Sprint(s.Redactions),
						"[]")
				}},
			},
			emptyText: "No spools: no gateway with a spool is running, and none has ended with deliveries in it.",
		}.newCommand(c), newSpoolRemoveCommand(c))
}

func newSpoolRemoveCommand(c *cli) *cobra.Command {
	return command{
		use: "remove NAME --reason TEXT", short: "Remove a spool whose disk is lost, so that no redaction waits for it",
		long: `Remove a spool whose disk is lost, so that no redaction waits for it. Acknowledged
deliveries in it that are not in the log are lost with the disk: postern reconcile reads them from
the provider. Nothing is deleted on any disk. If the folder is found later, start a gateway with it:
it appends the deliveries, also those that a redaction would have cleared, so repeat the redactions
made meanwhile.

A spool that was reported within the last ` + redaction.SpoolSilentAfter.String() +
			` has a running gateway, or one that ran a moment ago, and is
not removed without --force. The same applies to a spool whose last report was from a gateway
version that does not report the content. A gateway that still runs reports its spool again within
two seconds.`,
		example: `  postern spool remove k3v5q2m4r6t7 --reason 'machine gw-2 burnt: ticket 19'
  postern spool remove k3v5q2m4r6t7 --reason 'ticket 19' --yes`,
		params: []operations.Param{{Name: "reason", Help: "the reason; required, kept in the audit trail"}},
		flags:  []flag{yesFlag, {"force", "also if it reported recently or its content is unknown", false}},
		check: func(x *call) error {
			return x.requireReason(": the deliveries in the spool are lost, and the audit trail keeps who removed it " +
				"and why")
		},
		run: removeSpool,
	}.build(c)
}

func removeSpool(x *call) error {
	s, err := redaction.ShowSpool(x.ctx, x.pool, x.args[0])
	if err != nil {
		return err
	}
	if ok, err := x.confirm(fmt.Sprintf("%s\nRemove spool %s (%s)?", escapeControl(describeSpoolLoss(s)),
		escapeControl(s.Name), escapeControl(s.Location))); err != nil || !ok {
		return err
	}
	if s, err = operations.RemoveSpool(x.ctx, x.pool, operations.RemoveSpoolParams{Name: s.Name, Reason: x.reason(),
		Force: x.has("force")}, operator()); err != nil {
		return err
	}
	return x.printf(s, "Spool %s is removed: no redaction waits for it. %s", s.Name, describeSpoolLoss(s))
}

// describeSpoolLoss says what may be lost with a spool.
func describeSpoolLoss(s *redaction.Spool) string {
	if s.ReportedAt.IsZero() {
		return "Its content is unknown: its gateway never reported it. Acknowledged deliveries in it that are not " +
			"in the log are lost with its disk."
	}
	text := "Its last report was at " + s.ReportedAt.String()
	if s.Deliveries != nil {
		deliveries := "deliveries"
		if *s.Deliveries == 1 {
			deliveries = "delivery"
		}
		text += fmt.Sprintf(": it held %d %s (%d bytes)", *s.Deliveries, deliveries, *s.Bytes)
	}
	return text + ". These, and what the gateway acknowledged later without the database, are lost with its " +
		"disk if they are not in the log."
}
