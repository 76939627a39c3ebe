package events

// Statements returns all SQL statements of this package that have parameters, for the test that
// prepares each.
func Statements() []string {
	return append(listStatements(), appendSQL, awaitStandbySQL, concurrentDuplicatesSQL, renderingsSQL,
		insertConflictsSQL, raiseFloorSQL, readSQL, bodiesSQL, idsAfterSQL, newestIDSQL, raiseFloorToNowSQL,
		openAppendsSQL, partitionsUntilSQL, droppedSQL, redactedSQL, ensurePartitionsSQL, oldestIDSQL, addSourceSQL,
		sourcesSQL, walkRangeSQL, walkIDsSQL, walkBodySQL, partitionsSQL, keysSQL)
}
