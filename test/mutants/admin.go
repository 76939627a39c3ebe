package main

// adminMutants break the admin interface: who may make changes, and what is recorded about them.
func adminMutants() []mutant {
	const group = "admin"
	one := func(name, tests, old, replacement string) mutant {
		return mutant{group, name, []edit{{old, replacement}}, []string{tests}}
	}
	return []mutant{
		one("lets a reader's token change things", "internal/admin "+
			"Authorize_roles_limitRoutes|Authorize_malformedHeaders_areDenied",
			"if !sender.role.Includes(cmp.Or(least, LeastRole(c.Request().Method, c.Path()))) {",
			"if !sender.role.Includes(cmp.Or(least)) {"),
		one("lets the requester of a run approve it", "internal/admin SeparateApprovals",
			"if !by.Separate {\nreturn nil\n}\n", "if by.Separate {\nreturn nil\n}\n"),
		one("accepts a revoked token", "internal/adminauth",
			"`t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > clock_now())`",
			"`(t.expires_at IS NULL OR t.expires_at > clock_now())`"),
		one("makes a change without a row in the audit trail", "internal/admin Audit",
			"if e.Action != \"\" {\nif err := audit.Write(ctx, tx, by.Person, e); err != nil {\nreturn err\n}\n}\n",
			""),
		one("returns another token's response for the same idempotency key", "internal/admin Key",
			"Scope: who + \" \" + c.Request().Method + \" \" + c.Path()",
			"Scope: c.Request().Method + \" \" + c.Path()"),
		one("returns the first response to a different request with the same idempotency key", "internal/admin Key",
			"idempotency.Fingerprint([]byte(u.EscapedPath()), []byte(u.RawQuery), body)",
			"idempotency.Fingerprint([]byte(u.EscapedPath()), []byte(u.RawQuery))"),
		one("removes a spool and its deliveries without a reason", "internal/admin Spools",
			"if reason == \"\" {\nreturn nil, invalid(\"give a reason: the deliveries in the spool are lost with it, "+
				"and the audit records who \" +\n\"removed it\")\n}\n", ""),
	}
}
