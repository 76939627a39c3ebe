package retention

// Statements are all SQL statements of this package that run with parameters, for the test that prepares each.
func Statements() []string {
	return []string{partitionsSQL, cameSQL, unauditedSQL, failedSQL, deadSQL, readingSQL, beginSQL, placeSQL, exportedSQL, foldedSQL, againSQL, readySQL, droppedAtSQL, vanishedSQL, oldestSQL, blockersSQL,
		blocksSQL, forgetKeysSQL, outcomesEndSQL, forgetOutcomesSQL, forgetConflictsSQL, forgetRejectionsSQL, dailySQL, effectsEndSQL, clearEffectsSQL, dropEffectsSQL, countEffectsSQL, countEffectKeysSQL, countKeysSQL, countOutcomesSQL, countConflictsSQL, countRejectionsSQL, oldestFromSQL}
}
