package main

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/redaction"
)

func newSpoolCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "spool", Short: "List and remove spools of gateways: acknowledged deliveries that are " +
		"not in the log yet", RunE: showHelpOrError, Args: cobra.ArbitraryArgs}
	cmd.AddCommand(listCommand[redaction.Spool]{
		subject: "the spools in the database: of running gateways, and of gateways that ended without " +
			"reporting an empty spool",
		example: "  postern spool list",
		params:  admin.SpoolParams,
		query:   admin.Spools,
		columns: []column[redaction.Spool]{
			{"SPOOL", func(s redaction.Spool) string { return s.Name }},
			{"PLACE", func(s redaction.Spool) string { return s.Location }},
			{"KNOWN SINCE", func(s redaction.Spool) string { return s.RegisteredAt.String() }},
			{"LAST REPORT", func(s redaction.Spool) string { return s.ReportedAt.String() }},
			{"DELIVERIES", func(s redaction.Spool) string { return stringOrEmpty(s.Deliveries) }},
			{"BYTES", func(s redaction.Spool) string { return stringOrEmpty(s.Bytes) }},
			{"OLDEST", func(s redaction.Spool) string { return s.OldestAt.String() }},
			{"LAST EMPTY", func(s redaction.Spool) string { return s.EmptyAt.String() }},
			{"AWAITED BY RUNS", describeWaitingRuns},
		},
		emptyText: "No spools: no gateway with a spool is running, and none has ended with deliveries in it.",
	}.newCommand(c), newSpoolRemoveCommand(c))
	return cmd
}

func describeWaitingRuns(s redaction.Spool) string {
	var runs []string
	for _, run := range s.Redactions {
		runs = append(runs, strconv.FormatInt(run, 10))
	}
	return strings.Join(runs, " ")
}

func newSpoolRemoveCommand(c *cli) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "remove NAME --reason TEXT",
		Short: "Remove a spool whose disk is lost, so that no redaction waits for it",
		Long: `Remove a spool whose disk is lost, so that no redaction waits for it. Acknowledged
deliveries in it that are not in the log are lost with the disk: postern reconcile reads them from
the provider. Nothing is deleted on any disk. If the folder is found later, start a gateway with it:
it appends the deliveries, also those that a redaction would have cleared, so repeat the redactions
made meanwhile.

A spool that was reported within the last ` + redaction.SpoolSilentAfter.String() +
			` has a running gateway, or one that ran a moment ago, and is
not removed without --force. The same applies to a spool whose last report was from a gateway
version that does not report the content. A gateway that still runs reports its spool again within
two seconds.`,
		Example: `  postern spool remove k3v5q2m4r6t7 --reason 'machine gw-2 burnt: ticket 19'
  postern spool remove k3v5q2m4r6t7 --reason 'ticket 19' --yes`,
		Args: wantArgs("NAME"),
	}
	params := []admin.Param{{Name: "reason", Help: "the reason; required, kept in the audit trail"}}
	filterFlags(cmd, params)
	force := cmd.Flags().Bool("force", false, "also if it reported recently or its content is unknown")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask for confirmation")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		values := filterValues(cmd, params)
		if strings.TrimSpace(values.Get("reason")) == "" {
			return usagef("give a reason with --reason: the deliveries in the spool are lost, and the audit trail " +
				"keeps who removed it and why")
		}
		values.Set("force", strconv.FormatBool(*force))
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			return removeSpool(cmd, c, pool, args[0], values, yes)
		})
	}
	return cmd
}

func removeSpool(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, name string, values url.Values, yes bool) error {
	s, err := redaction.ShowSpool(cmd.Context(), pool, name)
	if err != nil {
		return err
	}
	if ok, err := confirmWithUser(cmd, fmt.Sprintf("%s\nRemove spool %s (%s)?", escapeControl(describeSpoolLoss(s)),
		escapeControl(s.Name), escapeControl(s.Location)), yes); err != nil || !ok {
		return err
	}
	if s, err = admin.RemoveSpool(cmd.Context(), pool, name, values, operator()); err != nil {
		return err
	}
	if c.output == "json" {
		return printJSON(cmd.OutOrStdout(), s)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "Spool %s is removed: no redaction waits for it. %s\n",
		escapeControl(s.Name), escapeControl(describeSpoolLoss(s)))
	return err
}

// describeSpoolLoss says what may be lost with a spool.
func describeSpoolLoss(s *redaction.Spool) string {
	if s.ReportedAt.IsZero() {
		return "Its content is unknown: its gateway never reported it. Acknowledged deliveries in it that are not " +
			"in the log are lost with its disk."
	}
	text := "Its last report was at " + s.ReportedAt.String()
	if s.Deliveries != nil {
		text += fmt.Sprintf(": it held %s (%d bytes)", countDeliveries(*s.Deliveries), *s.Bytes)
	}
	return text + ". These, and what the gateway acknowledged later without the database, are lost with its " +
		"disk if they are not in the log."
}

func countDeliveries(n int64) string {
	if n == 1 {
		return "1 delivery"
	}
	return strconv.FormatInt(n, 10) + " deliveries"
}
