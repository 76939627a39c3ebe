package main

// redactionMutants break how a person's data is cleared, and how old data is forgotten.
func redactionMutants() []mutant {
	const group = "redaction and retention"
	one := func(name, tests, old, replacement string) mutant {
		return mutant{group, name, []edit{{old, replacement}}, []string{tests}}
	}
	return []mutant{
		one("drops a partition that has events younger than the policy",
			"internal/retention Retention_ages_expireRowsNotBeforeEvents|Retention_timeInParams_agesCountFromIt",
			"!gone && !before.IsZero() && !p.To.After(before)", "!gone && !before.IsZero() && !p.From.After(before)"),
		one("drops a partition before all its events are in the retained objects",
			"internal/retention Retention_eventsAddedMeanwhile_areReducedOrKept",
			"if stored == n {\nbreak\n}", "if stored >= n {\nbreak\n}"),
		one("drops a partition with failed events that are still to be tried again",
			"internal/retention Retention_unfinishedEvents_keepTheirPartition",
			"if n > 0 { return fmt.Sprintf(\"%d failed events are still to be retried",
			"if n > 1000 { return fmt.Sprintf(\"%d failed events are still to be retried"),
		one("drops a partition that a new run is to read", "internal/retention "+
			"Retention_runBeginsMeanwhile_keepsPartition",
			"return why, err }\nif why, err := held(ctx, w.conn, p); why != \"\" || err != nil { return why, err } }\n"+
				"if why, err := w.detach",
			"return why, err } }\nif why, err := w.detach"),
		one("forgets the key of an event that was redacted", "internal/retention Retention_keysOfRedactedEvents_stay",
			"AND k.id < $3 AND NOT EXISTS (SELECT FROM redacted r WHERE r.event = k.id)`", "AND k.id < $3`"),
		one("leaves conflicting deliveries that mention the person", "internal/redaction Conflicts",
			"w.redactLog, w.redactConflicts,", "w.redactLog,"),
		one("does not look for the person in the headers of deliveries", "internal/redaction mention",
			"hit, blind := o.inEvent(&recs[i], body, headers[recs[i].ID])",
			"_ = headers\nhit, blind := o.inEvent(&recs[i], body, nil)"),
		one("clears what was received after the person's request", "internal/redaction "+
			"Redact_eventsReceivedAfterRequest_stay",
			"if w.askedAt == nil || len(ids) == 0 { return ids, nil }",
			"if w.askedAt == nil || len(ids) > 0 { return ids, nil }"),
		one("stops at a bound below what was released meanwhile", "internal/redaction "+
			"Redact_rejectionReprocessedMeanwhile_isFound",
			"err = w.bound(ctx, w.lease.Extend)", "err = w.bound(ctx, func(context.Context, int64) error { return nil "+
				"})"),
		one("takes a part of a longer address for a mention", "internal/redaction NewMention",
			"|| end < len(text) && goesOn(text[end:]) {\ncontinue",
			"|| end < len(text) && isWord(rune(text[end])) && goesOn(text[end:]) {\ncontinue"),
		one("reads a redacted object again", "internal/redaction Refetch",
			"if err == nil { err = w.deleteRefetch(ctx, o) }", "_ = w.deleteRefetch"),
	}
}
