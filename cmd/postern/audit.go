package main

import (
	"strconv"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/adminauth"
)

func newAuditCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "audit", Short: "List changes by operators", RunE: showHelpOrError,
		Args: cobra.ArbitraryArgs}
	cmd.AddCommand(listCommand[adminauth.AuditEntry]{
		subject: "changes by operators, through commands and over HTTP, the newest first",
		example: "  postern audit list --since 7d --action runs\n  postern audit list --actor deploy -o json",
		params:  admin.AuditParams,
		query:   admin.Audit,
		columns: []column[adminauth.AuditEntry]{
			{"AT", func(e adminauth.AuditEntry) string { return e.At.String() }},
			{"ACTOR", func(e adminauth.AuditEntry) string { return e.Actor }},
			{"VIA", func(e adminauth.AuditEntry) string { return string(e.Via) }},
			{"FROM", func(e adminauth.AuditEntry) string { return e.Address }},
			{"LOGIN", func(e adminauth.AuditEntry) string { return e.DatabaseUser }},
			{"ACTION", func(e adminauth.AuditEntry) string { return e.Action }},
			{"TARGET", func(e adminauth.AuditEntry) string { return e.Target }},
			{"RUN", runOf},
			{"REASON", func(e adminauth.AuditEntry) string { return e.Reason }},
		},
		emptyText: "No changes by operators.",
	}.newCommand(c))
	return cmd
}

func runOf(e adminauth.AuditEntry) string {
	if e.Run == 0 {
		return ""
	}
	return strconv.FormatInt(e.Run, 10)
}
