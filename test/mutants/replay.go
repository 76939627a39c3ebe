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
		one("swaps without the events that arrived just before its lock",
			"internal/rebuild Swap_eventsBeforeLock_areContained",
			"if err := w.catchUpHeld(ctx); err != nil {\nreturn err\n}\nreturn w.write(held, tx)",
			"return w.write(held, tx)"),
		one("swaps only the objects written since the comparison", "internal/rebuild Rebuild_damagedMirror_isRepaired",
			"w.differing = found\nreturn w.catchUp(ctx)", "w.differing = newKeySet(w.Settings.MaxKeys)\nreturn "+
				"w.catchUp(ctx)"),
		one("lowers the revision of an object at a swap", "internal/rebuild Rebuild_damagedMirror_isRepaired",
			"revision = o.revision + CASE WHEN f.grew THEN 1 ELSE 0 END, rule_version = s.rule_version",
			"revision = s.revision, rule_version = s.rule_version"),
		one("stages events for a run that another process has taken over",
			"internal/rebuild Discard_processHangs_staysCleared",
			"Type: w.order.Type, Guard: w.lease.Guard, Wrote: w.differing.add",
			"Type: w.order.Type, Wrote: w.differing.add"),
		one("loses objects at a swap that were repaired in the mirror meanwhile",
			"internal/rebuild Swap_failedEventAppliedLive_isNotLost",
			"if err == nil && status == runs.Running { status, err = w.stageMissed(soon) }",
			"_ = w.stageMissed"),
	}
}
