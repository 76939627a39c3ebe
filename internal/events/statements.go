package events

// Statements are all SQL statements of this package that run with parameters, for the test that prepares each.
func Statements() []string {
	return append(listStatements(), appendSQL, awaitStandbySQL, twinSQL, renderingsSQL, conflictSQL, raiseFloorSQL, readSQL, bodiesSQL, afterSQL, newestSQL, raiseToNowSQL, appendersSQL, partitionsUntilSQL, droppedSQL, redactedSQL,
		ensurePartitionsSQL, oldestSQL, addSourceSQL, sourcesSQL,
		wholeRangeSQL, wholeIDsSQL, wholeBodySQL, daysSQL, keysSQL)
}
