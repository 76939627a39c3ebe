package retention

// Statements returns all SQL statements of this package that have parameters, for the test that
// prepares each of them.
func Statements() []string {
	return []string{partitionsSQL, countEventsSQL, unprocessedSQL, failedSQL, deadSQL, readingRunSQL, beginDropSQL,
		progressSQL, exportedSQL, advanceProgressSQL, restartSQL, markPreparedSQL, droppedAtSQL, vanishedSQL, oldestSQL,
		blockersSQL, blocksSQL, expireKeysSQL, outcomesEndSQL, expireOutcomesSQL, expireConflictsSQL,
		expireRejectionsSQL, dailySQL, effectsEndSQL, clearEffectsSQL, dropEffectsSQL, countEffectsSQL,
		countEffectKeysSQL, countKeysSQL, countOutcomesSQL, countConflictsSQL, countRejectionsSQL, oldestFromSQL}
}
