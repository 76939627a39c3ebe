package main

// adminMutants break the admin interface: who may change what, and what is kept of it.
func adminMutants() []mutant {
	const group = "admin"
	one := func(name, tests, old, replacement string) mutant {
		return mutant{group, name, []edit{{old, replacement}}, []string{tests}}
	}
	return []mutant{
		one("lets a reader's token change things", "internal/admin "+
			"Authorize_roles_limitRoutes|Authorize_malformedHeaders_areDenied",
			"if who.role != access.Operator && (least == access.Operator || !reads) {",
			"if who.role != access.Operator && least == access.Operator && !reads {"),
		one("lets a revoked token in", "internal/access",
			"`t.revoked_at IS NULL AND (t.expires_at IS NULL OR t.expires_at > clock_now())`",
			"`(t.expires_at IS NULL OR t.expires_at > clock_now())`"),
		one("changes something without a row in the audit", "internal/admin Audit",
			"if e.Action != \"\" {\nif err := audit.Write(ctx, tx, by.Person, e); err != nil {\nreturn err\n}\n}\n",
			""),
		one("answers one token with what another token got under the same idempotency key", "internal/admin Key",
			"Scope: who + \" \" + c.Request().Method + \" \" + c.Path()",
			"Scope: c.Request().Method + \" \" + c.Path()"),
		one("answers another request under a used idempotency key with the first answer", "internal/admin Key",
			"idempotency.Fingerprint([]byte(u.EscapedPath()), []byte(u.RawQuery), body)",
			"idempotency.Fingerprint([]byte(u.EscapedPath()), []byte(u.RawQuery))"),
		one("gives up a spool and its deliveries without a reason", "internal/admin Spools",
			"if by.Reason == \"\" {\nq.fail(\"give a reason: the deliveries in the spool are lost with it, and the "+
				"audit records who removed it\")\n}\n", ""),
	}
}
