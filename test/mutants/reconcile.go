package main

// reconcileMutants break how the mirror is compared with the provider's API, and how single objects
// are read again.
func reconcileMutants() []mutant {
	const group = "reconcile and refetch"
	in := func(dir string) func(name, tests, old, replacement string) mutant {
		return func(name, tests, old, replacement string) mutant {
			return mutant{group, name, []edit{{old, replacement}}, []string{dir + " " + tests}}
		}
	}
	one, scan, refetch, client := in("internal/reconcile"), in("internal/objectscan"), in("internal/refetch"),
		in("internal/providerapi")
	return []mutant{
		one("moves the watermark before it reads the events", "Reconcile_eventsNotReadYet",
			"fresh, pages, err := read(since, until)\nif err != nil { return \"\", err }",
			"if err := w.raiseWatermark(ctx, until); err != nil { return \"\", err }\nfresh, pages, err := "+
				"read(since, until)\n"+
				"if err != nil { return \"\", err }"),
		one("moves the watermark before the events are applied", "Reconcile_unappliedEvents_holdTheWatermark",
			"if status, err := w.waitForOutcomes(ctx, fresh); err != nil || status != runs.Running "+
				"{ return status, err }\n"+
				"if err := w.raiseWatermark(ctx, until); err != nil",
			"_ = fresh\nif err := w.raiseWatermark(ctx, until); err != nil"),
		one("begins at the watermark without an overlap", "Reconcile_eventListedLate_isFoundByNextRun",
			"since := later(proven.Add(-w.Settings.Overlap), oldest)", "since := later(proven, oldest)"),
		one("joins two complete intervals that do not touch", "Reconcile_gapBetweenRanges_isNotComplete",
			"excluded.since <= m.until AND excluded.until >= m.since OR excluded.since > m.until AND $7",
			"excluded.until >= m.since OR excluded.since > m.until AND $7"),
		one("reads only the first page of events", "Reconcile_missedEvents_areAppendedAndApplied",
			"if pages++; next == \"\" {\nreturn pages, nil\n}", "if pages++; next == \"\" || pages > 0 {\nreturn "+
				"pages, nil\n}"),
		scan("loses the objects in progress when its process ends",
			"ObjectScan_killsAtEachStatement_countsEachObjectOnce|ObjectScan_killedBeforeRepair_readsTheListAgain",
			"append(hand, it.kind.wrong() && !s.order.DryRun)", "append(hand, it.kind.wrong() && s.order.DryRun)"),
		refetch("accepts that an object is missing without an account check",
			"Refetch_missingObject_needsAccountCheck",
			"if err := f.missing(ctx, k, at, false); err != nil {\nreturn nil, err\n}\nl.Missing, l.Body = true, nil",
			"l.Missing, l.Body = true, nil"),
		refetch("continues with a key of another account", "AccountCheck_otherAccountKey_failsTheRun",
			"case errors.As(err, &foreign):\nreturn \"\", runs.Refuse(err)\ncase !errors.As(err, &unshown):",
			"case errors.As(err, &foreign):\nreturn runs.Running, nil\ncase !errors.As(err, &unshown):"),
		scan("deletes many objects without an operator's approval", "ObjectScan_manyOrphans_needApproval",
			"return dead*refetch.ApprovalDivisor > living+made, err", "return dead > living+made, err"),
		refetch("lets refetches delete any number of objects in an hour", "Refetch_manyMissing_deletionsAreLimited",
			".Scan(&dead); err != nil || dead <= ApprovalMinimum { return err }",
			".Scan(&dead); err != nil || dead <= ApprovalMinimum*ApprovalDivisor { return err }"),
		scan("deletes an object that is not listed without reading it by its id",
			"ObjectScan_notListedObjects_areCounted",
			"if err := s.ask(ctx, items); err != nil { return \"\", err }\n"+
				"items = choose(items, func(it *item) bool { return !it.out })",
			`for _, it := range items {
				it.fetchedByID, it.refetch = true, s.newRefetch(it.id, &providerapi.Response{Date: s.listedSince})
				it.refetch.Missing = true
				s.toInput(it)
			}
			items = choose(items, func(it *item) bool { return !it.out })`),
		refetch("drops a refetch request although a newer one was inserted",
			"ManualRefetch_severalRequests_areOneRefetch",
			"AND lease_owner = $5 AND requested_at = $6 RETURNING source",
			"AND lease_owner = $5 AND requested_at >= $6 RETURNING "+
				"source"),
		refetch("refetches an object before the event that requires it is in the past", "Refetch_reasonNotPast",
			"if wait := h.early(one); wait > 0 {", "if wait := h.early(one); wait > maxRetryDelay {"),
		refetch("refetches an object in the same second as the event that requires it", "Refetch_reasonNotPast",
			"begin := time.UnixMicro(one.after).Add(time.Second + h.source.Caller.Longest() + h.source.Reader.Lag())",
			"begin := time.UnixMicro(one.after)"),
		client("makes more calls than the rate budget allows", "RateBudget_anySecond_neverExceedsTheRate",
			"t.tokens >= 1 AND b.blocked_until <= t.now AND", "b.blocked_until <= t.now AND"),
		client("calls an API that has asked the client to wait",
			"RateBudget_oneProcessThrottled_allWait|RateBudget_blockedAccount_blocksNoOther",
			"t.tokens >= 1 AND b.blocked_until <= t.now AND", "t.tokens >= 1 AND"),
		scan("declares a type complete although some objects still differ", "ObjectScan_rejectedObject_isUnrepaired",
			"if s.order.DryRun || s.Left > 0 || len(s.passed) > 0 || !since.Before(until) {",
			"if s.order.DryRun || len(s.passed) > 0 || !since.Before(until) {"),
	}
}
