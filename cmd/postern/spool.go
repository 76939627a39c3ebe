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
	cmd := &cobra.Command{Use: "spool", Short: "The gateways' spools: deliveries that are acknowledged and not in the log yet", RunE: group, Args: cobra.ArbitraryArgs}
	cmd.AddCommand(lister[redaction.Spool]{
		what:    "the spools that the database knows: those of gateways that run, and of such as ended without the time to say that nothing is left",
		example: "  postern spool list",
		params:  admin.SpoolParams,
		query:   admin.Spools,
		columns: []column[redaction.Spool]{
			{"SPOOL", func(s redaction.Spool) string { return s.Name }},
			{"PLACE", func(s redaction.Spool) string { return s.Place }},
			{"KNOWN SINCE", func(s redaction.Spool) string { return s.KnownSince.String() }},
			{"LAST TOLD", func(s redaction.Spool) string { return s.ToldAt.String() }},
			{"DELIVERIES", func(s redaction.Spool) string { return known(s.Deliveries) }},
			{"BYTES", func(s redaction.Spool) string { return known(s.Bytes) }},
			{"OLDEST", func(s redaction.Spool) string { return s.OldestAt.String() }},
			{"LAST EMPTY", func(s redaction.Spool) string { return s.EmptyAt.String() }},
			{"WAITED FOR BY RUNS", waitingRuns},
		},
		none: "No spools: no gateway that has one runs, and none has ended with something in it.",
	}.command(c), newSpoolForgetCommand(c))
	return cmd
}

func waitingRuns(s redaction.Spool) string {
	var runs []string
	for _, run := range s.Redactions {
		runs = append(runs, strconv.FormatInt(run, 10))
	}
	return strings.Join(runs, " ")
}

func newSpoolForgetCommand(c *cli) *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use:   "forget NAME --reason WHY",
		Short: "Have no redaction wait for a spool whose disk is gone for good",
		Long: `Have no redaction wait any more for a spool whose disk is gone for good. What was acknowledged into it and is not in the log is lost with the disk: ask the provider for it
again with postern reconcile. Nothing is deleted on any disk. Is the folder found after all, start a gateway on it: what is in it comes into the log, also what a redaction
would have cleared, so ask for those made meanwhile again.

A spool that was told of within ` + redaction.SpoolLate.String() + ` has a gateway that runs, or ran a moment ago, and is refused; so is one that a gateway of a version that did not tell what is in it told of last. --force takes them all the same. A gateway that still runs makes itself known again within two seconds.`,
		Example: `  postern spool forget k3v5q2m4r6t7 --reason 'machine gw-2 burnt: ticket 19'
  postern spool forget k3v5q2m4r6t7 --reason 'ticket 19' --yes`,
		Args: wantArgs("NAME"),
	}
	params := []admin.Param{{Name: "reason", Help: "why; must be given, and is kept in the audit"}}
	filterFlags(cmd, params)
	force := cmd.Flags().Bool("force", false, "also where it was told of a moment ago, or nobody knows")
	cmd.Flags().BoolVarP(&yes, "yes", "y", false, "do not ask")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		values := filterValues(cmd, params)
		if strings.TrimSpace(values.Get("reason")) == "" {
			return usagef("say why with --reason: what is in the spool is lost with it, and the audit keeps who said so")
		}
		values.Set("force", strconv.FormatBool(*force))
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			return forgetSpool(cmd, c, pool, args[0], values, yes)
		})
	}
	return cmd
}

func forgetSpool(cmd *cobra.Command, c *cli, pool *pgxpool.Pool, name string, values url.Values, yes bool) error {
	s, err := redaction.ShowSpool(cmd.Context(), pool, name)
	if err != nil {
		return err
	}
	if ok, err := confirm(cmd, fmt.Sprintf("%s\nForget spool %s (%s)?", plain(spoolLoss(s)), plain(s.Name), plain(s.Place)), yes); err != nil || !ok {
		return err
	}
	if s, err = admin.ForgetSpool(cmd.Context(), pool, name, values, operator()); err != nil {
		return err
	}
	if c.output == "json" {
		return printJSON(cmd.OutOrStdout(), s)
	}
	_, err = fmt.Fprintf(cmd.OutOrStdout(), "Spool %s is forgotten: no redaction waits for it. %s\n", plain(s.Name), plain(spoolLoss(s)))
	return err
}

// spoolLoss says what may be lost with a spool.
func spoolLoss(s *redaction.Spool) string {
	if s.ToldAt.IsZero() {
		return "Nobody knows what is in it: it was never told to be empty. What was acknowledged into it and is not in the log is lost with its disk."
	}
	told := "It was last told of at " + s.ToldAt.String()
	if s.Deliveries != nil {
		told += fmt.Sprintf(", to hold %s (%d bytes)", deliveriesWord(*s.Deliveries), *s.Bytes)
	}
	return told + ". These, and what the gateway acknowledged without the database after that, are lost with its disk where they are not in the log."
}

func deliveriesWord(n int64) string {
	if n == 1 {
		return "1 delivery"
	}
	return strconv.FormatInt(n, 10) + " deliveries"
}
