package main

import (
	"fmt"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/adminauth"
)

func newTokenCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{Use: "token", Short: "List, create and revoke API tokens", RunE: showHelpOrError,
		Args: cobra.ArbitraryArgs}
	cmd.AddCommand(listCommand[adminauth.Token]{
		subject: "tokens with their roles, expiry and last use",
		example: "  postern token list",
		params:  admin.TokenParams,
		query:   admin.Tokens,
		columns: []column[adminauth.Token]{
			{"NAME", func(t adminauth.Token) string { return t.Name }},
			{"ROLE", func(t adminauth.Token) string { return string(t.Role) }},
			{"STATE", describeTokenState},
			{"CREATED", func(t adminauth.Token) string { return t.CreatedAt.String() }},
			{"BY", func(t adminauth.Token) string { return t.CreatedBy }},
			{"EXPIRES", func(t adminauth.Token) string { return t.ExpiresAt.String() }},
			{"REVOKED", func(t adminauth.Token) string { return t.RevokedAt.String() }},
			{"LAST USED ON", func(t adminauth.Token) string { return t.UsedOn }},
		},
		emptyText: "No tokens. Loopback addresses need none; others do: postern token create.",
	}.newCommand(c), newTokenCreateCommand(c), newTokenRevokeCommand(c))
	return cmd
}

func describeTokenState(t adminauth.Token) string {
	switch {
	case !t.RevokedAt.IsZero():
		return "revoked"
	case !t.InForce:
		return "expired"
	}
	return "valid"
}

func newTokenCreateCommand(c *cli) *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create --role ROLE --name NAME",
		Short: "Create a token and print it once",
		Long: `Create a token for the admin interface and print it: only the token on standard output,
everything else on standard error. Only a hash is stored, so the token cannot be printed again. The
command creates it in the database with the operator role; the admin interface cannot create tokens.
A token begins with ` +
			adminauth.TokenPrefix + ` and has 52 more characters
of A-Z and 2-7. Processes accept it within ` + adminauth.MaxStaleness.String() + `.`,
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
			fmt.Fprintf(cmd.ErrOrStderr(), "Token %s, %s, is valid %s. It is shown only now:\n", t.Name, t.Role, until)
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
		Short:   "Revoke a token for good; every process rejects it within " + adminauth.MaxStaleness.String(),
		Example: "  postern token revoke deploy",
		Args:    wantArgs("NAME"),
	}
	addReasonFlag(cmd, &reason)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		return c.withPool(cmd.Context(), cmd.ErrOrStderr(), func(pool *pgxpool.Pool) error {
			t, err := admin.RevokeToken(cmd.Context(), pool, args[0], operatorWithReason(reason))
			if err != nil {
				return err
			}
			if c.output == "json" {
				return printJSON(cmd.OutOrStdout(), t)
			}
			_, err = fmt.Fprintf(cmd.OutOrStdout(), "Token %s was revoked at %s.\n", t.Name, t.RevokedAt)
			return err
		})
	}
	return cmd
}
