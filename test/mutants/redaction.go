package main

// redactionMutants break how a person's data is cleared, and how old data is deleted.
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
		one("drops a partition with failed events that will be retried",
			"internal/retention Retention_unfinishedEvents_keepTheirPartition",
			"if n > 0 { return fmt.Sprintf(\"%d failed events are still to be retried",
			"if n > 1000 { return fmt.Sprintf(\"%d failed events are still to be retried"),
		one("drops a partition that a new run must read", "internal/retention "+
			"Retention_runBeginsMeanwhile_keepsPartition",
			"return why, err }\nif why, err := held(ctx, w.conn, p); why != \"\" || err != nil { return why, err } }\n"+
				"if why, err := w.detach",
			"return why, err } }\nif why, err := w.detach"),
		one("deletes the key of a redacted event", "internal/retention Retention_keysOfRedactedEvents_stay",
			"`t.id < $1 AND NOT EXISTS (SELECT FROM redacted_events r WHERE r.event = t.id)`", "`t.id < $1`"),
		one("leaves conflicting deliveries that mention the person", "internal/redaction Conflicts",
			"w.redactLog, w.redactConflicts,", "w.redactLog,"),
		one("does not search the headers of deliveries for the person", "internal/redaction mention",
			"hit, blind := o.inEvent(&recs[i], body, headers[recs[i].ID])",
			"_ = headers\nhit, blind := o.inEvent(&recs[i], body, nil)"),
		one("clears events received after the person's request", "internal/redaction "+
			"Redact_eventsReceivedAfterRequest_stay",
			"if w.askedAt == nil || len(ids) == 0 { return ids, nil }",
			"if w.askedAt == nil || len(ids) > 0 { return ids, nil }"),
		one("stops below events that were reprocessed meanwhile", "internal/redaction "+
			"Redact_rejectionReprocessedMeanwhile_isFound",
			"if err == nil && w.firstExecution { err = w.saveBound(ctx) }", "_ = w.saveBound"),
		one("treats a part of a longer address as a mention", "internal/redaction NewMention",
			"|| end < len(text) && goesOn(text[end:]) {\ncontinue",
			"|| end < len(text) && isWord(rune(text[end])) && goesOn(text[end:]) {\ncontinue"),
		one("refetches a redacted object", "internal/redaction Refetch",
			"if err == nil { err = w.deleteRefetch(ctx, o) }", "_ = w.deleteRefetch"),
	}
}
