package main

// applyMutants break how events become outcomes, objects and changes.
func applyMutants() []mutant {
	const group = "apply"
	one := func(name, tests, old, replacement string) mutant {
		return mutant{group, name, []edit{{old, replacement}}, []string{"internal/apply " + tests}}
	}
	inProcessor := func(name, tests, old, replacement string) mutant {
		return mutant{group, name, []edit{{old, replacement}}, []string{"internal/processor " + tests}}
	}
	return []mutant{
		one("takes no locks of objects", "Apply_objectLocked",
			"p.Array(pgtype.Int8OID, len(keys), func(i int) { p.Int64(keys[i]) })",
			"p.Array(pgtype.Int8OID, 0, func(i int) { p.Int64(keys[i]) })"),
		one("takes only shared locks of objects", "Apply_objectLocked",
			"SELECT count(pg_advisory_xact_lock(l)) FROM sources, unnest($1::bigint[]) AS l",
			"SELECT count(pg_advisory_xact_lock_shared(l)) FROM sources, unnest($1::bigint[]) AS l"),
		one("takes the locks of objects in the order of the batch", "Apply_eventsOfTwo",
			"slices.Sort(keys)\nkeys = slices.Compact(keys)", "keys = slices.Compact(keys)"),
		one("records no outcome of an ignored event", "Apply_unreadableEvent_failsAlone",
			"for _, it := range items { if !it.finished { n, wait := p.attempt(it)",
			"for _, it := range items { if !it.finished && it.outcome.status != versioning.Ignored { n, wait := "+
				"p.attempt(it)"),
		one("records stale events as applied", "Apply_reorderedEvents_requestFewRefetches",
			"it.outcome = &outcome{status: d.Status, reason: d.Reason,",
			"it.outcome = &outcome{status: versioning.Applied, reason: d.Reason,"),
		one("commits outcomes before the objects", "Apply_outcomeRecordedByOther_appliesNothing",
			"return t.record(ctx, t.tx, t.to, t.batch)",
			`return postgres.InTx(ctx, t.Pool, "record", t.Settings.ApplyTimeout,
				func(ctx context.Context, tx pgx.Tx) error { return t.record(ctx, tx, t.to, t.batch) })`),
		one("keeps only one of several events of an object in a batch", "Apply_anyOrder_endsInSameObjects",
			"o := objs[it.key]\nbefore, last := o.Row, o.LastEvent",
			"read := *objs[it.key]\no := &read\nbefore, last := o.Row, o.LastEvent"),
		one("loses an event in the same batch as an operator's overwrite", "Apply_overwriteWithLaterEvent_keepsEvent",
			"return cmp.Compare(b.input.OverwriteAt, a.input.OverwriteAt)", "return cmp.Compare(a.input.OverwriteAt, "+
				"b.input.OverwriteAt)"),
		one("overwrites an outcome that another process recorded meanwhile",
			"Apply_outcomeRecordedByOther_appliesNothing",
			"WHERE o.status = 'failed' OR o.status = 'dead' AND $15`", "WHERE true OR $15`"),
		one("applies a dead event again when it is delivered again", "ApplySingle_failsEachTime_becomesDead",
			"return status == versioning.Failed || status == versioning.Dead && to.Again != 0",
			"return status == versioning.Failed || status == versioning.Dead"),
		one("tries failed events again before they are due", "ApplySingle_failsEachTime_becomesDead",
			"case to.Again != 0:\nit.attempts = 0\nreturn false\n}\nreturn later",
			"case to.Again != 0:\nit.attempts = 0\nreturn false\n}\nreturn false"),
		one("tries a failing event once more than configured", "ApplySingle_failsEachTime_becomesDead",
			"case n < last || it.reserving && n == last:", "case n <= last || it.reserving && n == last:"),
		one("uses the first wait before every attempt", "ApplySingle_failsAgain_waitsNextInterval",
			"w = p.Settings.BackOff[min(n, last-1)-1]", "w = p.Settings.BackOff[0]"),
		one("counts an attempt although the infrastructure failed", "ApplySingle_infrastructureFailure_returnsAttempt",
			"if err != nil { p.giveBack(ctx, to, ev.ID, n) }", "if err != nil { _ = n }"),
		inProcessor("fails events when it lacks a database privilege", "Apply_privilegeRevoked_countsNoAttempt",
			"errors.Is(err, errGuarded) || postgres.IsRefused(err) || postgres.IsUnavailable(err) &&",
			"errors.Is(err, errGuarded) || postgres.IsUnavailable(err) &&"),
		inProcessor("sends changes before their commit", "Apply_commitFails",
			"t.changeBatch, err = insertChanges(ctx, t.tx, t.announced, forward)\nreturn err",
			"if t.changeBatch, err = insertChanges(ctx, t.tx, t.announced, forward); err == nil "+
				"&& len(t.announced) > 0 { t.Changed(t.changeBatch, t.announced) }\nreturn err"),
		one("drops a manual refetch when a missed change arrives",
			"MissedChanges_closedDuringManualRefetch_keepsRequest",
			"AND h.gaps IS NULL AND h.requested_by = '' AND h.after = 0 AND h.lease_owner = ''",
			"AND h.gaps IS NULL AND h.after = 0 AND h.lease_owner = ''"),
		one("requests no refetch of an object whose event is too far in the future",
			"Apply_eventTooFarInFuture_isDeadAndRequestsRefetch",
			"if dead.Look { it.oweLook() }", "if dead.Look && it.input.Partial != \"\" { it.oweLook() }"),
		one("treats a late event as a timely one", "Apply_lateEvent_requestsRefetch",
			"if until, ok := proven[place[s.kind()]]; ok && s.end < until &&",
			"if until, ok := proven[place[s.kind()]]; ok && s.end > until &&"),
		one("requests refetches in a replay that were made long ago", "Apply_replayOfAppliedEvents_keepsPendingRefetch",
			"if it.met(o) { keepLook(&o.Row, &before) }", "if it.met(o) { _ = before }"),
	}
}
