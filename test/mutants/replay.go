package main

// replayMutants break how stored events are applied again, and how the mirror is rebuilt from them.
func replayMutants() []mutant {
	const group = "replay and rebuild"
	one := func(name, tests, old, replacement string) mutant {
		return mutant{group, name, []edit{{old, replacement}}, []string{tests}}
	}
	return []mutant{
		one("replays events beyond its bound", "internal/replay Replay_concurrentAppends_missesNothing",
			"processor.Walk{Match: w.match, After: h.Cursor, Bound: h.Bound,",
			"processor.Walk{Match: w.match, After: h.Cursor, Bound: h.Bound + 1<<62,"),
		one("moves the cursor of a replay before it applies the events",
			"internal/replay Replay_correctMirror_changesNothing",
			"began := time.Now()\nif len(c.IDs) > 0 {",
			"began := time.Now()\nif status, err := w.lease.Advance(ctx, c.End); err != nil || status != runs.Running "+
				"{ return status, err }\nif len(c.IDs) > 0 {"),
		one("loses the events in progress of a retry when its process ends",
			"internal/replay Retry_interrupted_continuesAtCheckpoint",
			"if err := w.lease.MarkInProgress(ctx, c.IDs); err != nil {\nreturn \"\", err\n}",
			"w.lease.InProgress = c.IDs"),
		one("keeps staged rows of an earlier rebuild", "internal/rebuild Rebuild_leaseLost_neitherClearsNorCopies",
			"if w.lease.Cursor == 0 {\nif err := w.clear(ctx); err != nil {\nreturn \"\", err\n}",
			"if w.lease.Cursor == 0 {"),
		one("swaps objects without the events that arrived just before their lock",
			"internal/rebuild Swap_eventsBeforeStep_areContained",
			"if err := w.stageLocked(ctx, tx, b); err != nil {\nreturn err\n}\nrows :=", "rows :="),
		one("swaps objects without their locks", "internal/rebuild Swap_batchLocked_appliesOtherObjects",
			"if err := apply.LockStagedObjects(ctx, tx, b.keys); err != nil {\nreturn err\n}\n"+
				"if err := w.beforeStep(\"locked\"); err != nil {",
			"if err := apply.LockStagedObjects(ctx, tx, nil); err != nil {\nreturn err\n}\n"+
				"if err := w.beforeStep(\"locked\"); err != nil {"),
		one("forgets the counts of a part of a swap when its process ends",
			"internal/rebuild Swap_killedAtEachStep_endsAsTheLog",
			"return w.lease.SaveCountsInTx(ctx, tx, counts)", "return w.lease.Guard(ctx, tx)"),
		one("cancels a rebuild that has replaced a part of the objects",
			"internal/rebuild Swap_partOfObjectsReplaced_pausesAndDoesNotCancel",
			"AND NOT ($2 = 'cancelled' AND job = 'rebuild' AND counts ? 'swapped')", ""),
		one("lowers the revision of an object at a swap", "internal/rebuild Rebuild_damagedMirror_isRepaired",
			"revision = o.revision + CASE WHEN f.grew THEN 1 ELSE 0 END, rule_version = s.rule_version",
			"revision = s.revision, rule_version = s.rule_version"),
		one("stages events for a run that another process has taken over",
			"internal/rebuild Discard_processHangs_staysCleared",
			"Type: w.params.Type, Guard: w.lease.Guard}}", "Type: w.params.Type}}"),
		one("loses objects at a swap that were repaired in the mirror meanwhile",
			"internal/rebuild Swap_failedEventAppliedLive_isNotLost",
			"if len(u.missed) > 0 {\nreturn errNotStaged\n}", "if len(u.missed) > 0 {\nreturn nil\n}"),
	}
}
