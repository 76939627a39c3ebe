package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/operations"
)

func newAuditCommand(c *cli) *cobra.Command {
	return group("audit", "List changes by operators", listCommand[adminauth.AuditEntry, operations.AuditParams]{
		subject: "changes by operators, through commands and over HTTP, the newest first",
		example: "  postern audit list --since 7d --action runs\n  postern audit list --actor deploy -o json\n" +
			"  postern audit list --target sub_1Postern0Team0001",
		query: operations.Audit,
		columns: []column[adminauth.AuditEntry]{
			{"AT", func(e adminauth.AuditEntry) any { return e.At }},
			{"ACTOR", func(e adminauth.AuditEntry) any { return e.Actor }},
			{"VIA", func(e adminauth.AuditEntry) any { return e.Via }},
			{"FROM", func(e adminauth.AuditEntry) any { return e.Address }},
			{"LOGIN", func(e adminauth.AuditEntry) any { return e.DatabaseUser }},
			{"ACTION", func(e adminauth.AuditEntry) any { return e.Action }},
			{"TARGET", func(e adminauth.AuditEntry) any { return e.Target }},
			{"RUN", func(e adminauth.AuditEntry) any {
				if e.Run == 0 {
					return ""
				}
				return e.Run
			}},
			{"REASON", func(e adminauth.AuditEntry) any { return e.Reason }},
		},
		emptyText: "No changes by operators.",
	}.newCommand(c))
}

func newTokenCommand(c *cli) *cobra.Command {
	return group("token", "List, create and revoke API tokens", listCommand[adminauth.Token, operations.Page]{
		subject: "tokens with their roles, expiry and last use",
		example: "  postern token list",
		query:   operations.ListPages(adminauth.ListTokens),
		columns: []column[adminauth.Token]{
			{"NAME", func(t adminauth.Token) any { return t.Name }},
			{"ROLE", func(t adminauth.Token) any { return t.Role }},
			{"STATE", describeTokenState},
			{"CREATED", func(t adminauth.Token) any { return t.CreatedAt }},
			{"BY", func(t adminauth.Token) any { return t.CreatedBy }},
			{"EXPIRES", func(t adminauth.Token) any { return t.ExpiresAt }},
			{"REVOKED", func(t adminauth.Token) any { return t.RevokedAt }},
			{"LAST USED ON", func(t adminauth.Token) any { return t.UsedOn }},
		},
		emptyText: "No tokens. Loopback addresses need none; others do: postern token create.",
	}.newCommand(c), newTokenCreateCommand(c), command{
		use:     "revoke NAME",
		short:   "Revoke a token for good; every process rejects it within " + adminauth.MaxStaleness.String(),
		example: "  postern token revoke deploy", flags: []flag{reasonFlag},
		run: func(x *call) error {
			t, err := operations.RevokeToken(x.ctx, x.pool, x.args[0], x.reason(), operator())
			if err != nil {
				return err
			}
			return x.printf(t, "Token %s was revoked at %s.", t.Name, t.RevokedAt)
		},
	}.build(c))
}

func describeTokenState(t adminauth.Token) any {
	switch {
	case !t.RevokedAt.IsZero():
		return "revoked"
	case !t.InForce:
		return "expired"
	}
	return "valid"
}

func newTokenCreateCommand(c *cli) *cobra.Command {
	return command{
		use: "create --role ROLE --name NAME", short: "Create a token and print it once",
		long: `Create a token for the admin interface and print it: only the token on standard output,
everything else on standard error. Only a hash is stored, so the token cannot be printed again. The
command creates it in the database with the operator role; the admin interface cannot create tokens.
A token begins with ` +
			adminauth.TokenPrefix + ` and has 52 more characters
of A-Z and 2-7. Processes accept it within ` + adminauth.MaxStaleness.String() + `.`,
		example: `  postern token create --role reader --name grafana --expires 365d
  postern token create --role operator --name deploy --reason 'the pipeline starts replays' > deploy.token`,
		params: operations.Params(operations.NewTokenParams{}),
		run: func(x *call) error {
			p, err := parse[operations.NewTokenParams](x)
			if err != nil {
				return err
			}
			t, err := operations.CreateToken(x.ctx, x.pool, p, operator())
			return show(x, t, err, printToken)
		},
	}.build(c)
}

func printToken(x *call, t *operations.NewToken) error {
	until := "until it is revoked"
	if !t.ExpiresAt.IsZero() {
		until = "until " + t.ExpiresAt.String()
	}
	fmt.Fprintf(x.errs, "Token %s, %s, is valid %s. It is shown only now:\n", t.Name, t.Role, until)
	_, err := fmt.Fprintln(x.out, t.Secret)
	return err
}
