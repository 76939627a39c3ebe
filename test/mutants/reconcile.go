package main

// reconcileMutants break how the mirror is compared with the provider's API, and how single objects
// are read again.
func reconcileMutants() []mutant {
	const group = "reconcile and refetch"
	one := func(name, tests, old, replacement string) mutant {
		return mutant{group, name, []edit{{old, replacement}}, []string{"internal/reconcile " + tests}}
	}
	return []mutant{
		one("moves the watermark before it reads what it stands for", "Reconcile_eventsNotReadYet",
			"fresh, pages, err := read(since, until)\nif err != nil { return \"\", err }",
			"if err := w.raiseWatermark(ctx, until); err != nil { return \"\", err }\nfresh, pages, err := "+
				"read(since, "+
				"until)\n"+
				"if err != nil { return \"\", err }"),
		one("moves the watermark before what it has read is applied", "Reconcile_unappliedEvents_holdTheWatermark",
			"if status, err := w.settled(ctx, fresh); err != nil || status != runs.Running { return status, err }\n"+
				"if err := w.raiseWatermark(ctx, until); err != nil",
			"_ = fresh\nif err := w.raiseWatermark(ctx, until); err != nil"),
		one("begins at the watermark without an overlap", "Reconcile_eventListedLate_isFoundByNextRun",
			"since := later(proven.Add(-w.Settings.Overlap), oldest)", "since := later(proven, oldest)"),
		one("joins two proven times that do not touch", "Reconcile_gapBetweenRanges_isNotComplete",
			"excluded.since <= m.until AND excluded.until >= m.since OR excluded.since > m.until AND $7",
			"excluded.until >= m.since OR excluded.since > m.until AND $7"),
		one("reads the first page of events alone", "Reconcile_missedEvents_areAppendedAndApplied",
			"if pages++; next == \"\" {\nreturn pages, nil\n}", "if pages++; next == \"\" || pages > 0 {\nreturn "+
				"pages, nil\n}"),
		one("forgets what it had in hand when its process ends",
			"ObjectScan_killsAtEachStatement_countsEachObjectOnce|ObjectScan_killedBeforeRepair_readsTheListAgain",
			"append(hand, it.kind.wrong() && !s.order.DryRun)", "append(hand, it.kind.wrong() && s.order.DryRun)"),
		one("believes that an object is missing whatever account the key is of",
			"Refetch_missingObject_needsAccountCheck",
			"if err := f.missing(ctx, k, at); err != nil {\nreturn nil, err\n}\nl.Missing, l.Body = true, nil",
			"l.Missing, l.Body = true, nil"),
		one("goes on with a key of another account", "AccountCheck_otherAccountKey_failsTheRun",
			"case errors.As(err, &foreign):\nreturn \"\", runs.Refuse(err)\ncase !errors.As(err, &unshown):",
			"case errors.As(err, &foreign):\nreturn runs.Running, nil\ncase !errors.As(err, &unshown):"),
		one("deletes many objects without a person's approval", "ObjectScan_manyOrphans_needApproval",
			"return dead*ghostShare > living+made, err", "return dead > living+made, err"),
		one("lets refetches delete any number of objects in an hour", "Refetch_manyMissing_deletionsAreLimited",
			".Scan(&dead); err != nil || dead <= fewGhosts { return err }",
			".Scan(&dead); err != nil || dead <= approvalMinimum*approvalDivisor { return err }"),
		one("deletes an object that a list lacks without reading it by its id",
			"ObjectScan_notListedObjects_areCounted",
			"if err := s.ask(ctx, items); err != nil { return \"\", err }\n"+
				"items = choose(items, func(it *item) bool { return !it.out })",
			`for _, it := range items {
				it.fetchedByID, it.refetch = true, s.newRefetch(it.id, &Response{Date: s.listedSince})
				it.refetch.Missing = true
				s.toInput(it)
			}
			items = choose(items, func(it *item) bool { return !it.out })`),
		one("drops a refetch request though a newer one has come", "ManualRefetch_severalRequests_areOneRefetch",
			"AND taken_by = $5 AND made_at = $6 RETURNING source", "AND taken_by = $5 AND made_at >= $6 RETURNING "+
				"source"),
		one("reads an object again before the reason to read it is past", "Refetch_reasonNotPast",
			"if wait := h.early(one); wait > 0 {", "if wait := h.early(one); wait > maxRetryDelay {"),
		one("reads an object again in the very second of the reason to read it", "Refetch_reasonNotPast",
			"begin := time.UnixMicro(one.after).Add(time.Second + h.source.Caller.Longest() + h.source.Reader.Lag())",
			"begin := time.UnixMicro(one.after)"),
		one("makes more calls than the rate budget has", "RateBudget_anySecond_neverExceedsTheRate",
			"t.tokens >= 1 AND b.blocked_until <= t.now AND", "b.blocked_until <= t.now AND"),
		one("calls an API that has asked to be left alone",
			"RateBudget_oneProcessThrottled_allWait|RateBudget_blockedAccount_blocksNoOther",
			"t.tokens >= 1 AND b.blocked_until <= t.now AND", "t.tokens >= 1 AND"),
		one("calls all objects of a type complete though some differ still", "ObjectScan_rejectedObject_isUnrepaired",
			"if s.order.DryRun || s.Left > 0 || len(s.passed) > 0 || !since.Before(until) {",
			"if s.order.DryRun || len(s.passed) > 0 || !since.Before(until) {"),
	}
}
