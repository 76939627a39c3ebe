package main

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/access"
	"github.com/postern-gateway/postern/internal/admin"
)

func newTokenCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "Who may ask the admin interface: bearer tokens", RunE: group, Args: cobra.ArbitraryArgs}
	cmd.AddCommand(lister[access.Token]{
		what:    "tokens: their roles, until when they hold, and when each was used last",
		example: "  postern token list",
		params:  admin.TokenParams,
		query:   admin.Tokens,
		columns: []column[access.Token]{
			{"NAME", func(t access.Token) string { return t.Name }},
			{"ROLE", func(t access.Token) string { return string(t.Role) }},
			{"STATE", tokenState},
			{"MADE", func(t access.Token) string { return t.MadeAt.String() }},
			{"BY", func(t access.Token) string { return t.MadeBy }},
			{"EXPIRES", func(t access.Token) string { return t.ExpiresAt.String() }},
			{"REVOKED", func(t access.Token) string { return t.RevokedAt.String() }},
			{"USED ON", func(t access.Token) string { return t.UsedOn }},
		},
		none: "No tokens. On loopback none is needed; beyond it: postern token create.",
	}.command(c), newTokenCreateCommand(c), newTokenRevokeCommand(c))
	return cmd
}

func tokenState(t access.Token) string {
	switch {
	case !t.RevokedAt.IsZero():
		return "revoked"
	case !t.InForce:
		return "expired"
	}
	return "in force"
}

func newTokenCreateCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create --role ROLE --name NAME",
		Short: "Make a token and print it, this once",
		Long: `Make a token for the admin interface and print it: on standard output the token alone, all else on standard error. Only a digest is kept, so it cannot be printed
again. It is made in the database, with the operator's role; the admin interface itself makes none. A token begins with ` + access.Prefix + ` and goes on with 52 of A-Z
and 2-7. Processes take it within ` + access.Freshness.String() + `.`,
		Example: `  postern token create --role reader --name grafana --expires 365d
  postern token create --role operator --name deploy --reason 'the pipeline starts replays' > deploy.token`,
		Args: wantArgs(),
	}
	filterFlags(cmd, admin.NewTokenParams)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			t, err := admin.CreateToken(cmd.Context(), pool, filterValues(cmd, admin.NewTokenParams), operator())
			if err != nil {
				return err
			}
			if c.output == "json" {
				return printJSON(cmd.OutOrStdout(), t)
			}
			until := "until it is revoked"
			if !t.ExpiresAt.IsZero() {
				until = "until " + t.ExpiresAt.String()
			}
			fmt.Fprintf(cmd.ErrOrStderr(), "Token %s, %s, holds %s. It is shown this once:\n", t.Name, t.Role, until)
			_, err = fmt.Fprintln(cmd.OutOrStdout(), t.Secret)
			return err
		})
	}
	return cmd
}

func newTokenRevokeCommand(c *cli) *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use:     "revoke NAME",
		Short:   "Take a token back for good; every process refuses it within " + access.Freshness.String(),
		Example: "  postern token revoke deploy",
		Args:    wantArgs("NAME"),
	}
	reasonFlag(cmd, &reason)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			t, err := admin.RevokeToken(cmd.Context(), pool, args[0], because(reason))
			if err != nil {
				return err
			}
			if c.output == "json" {
				return printJSON(cmd.OutOrStdout(), t)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "Token %s is revoked since %s.\n", t.Name, t.RevokedAt)
			return err
		})
	}
	return cmd
}
