package redaction

// Statements returns all SQL statements of this package that have parameters, for the test that
// prepares each.
func Statements() []string {
	all := []string{rejectionsSQL, conflictsSQL, redactConflictsSQL, lockEffectsSQL, clearEffectsSQL, clearStepsSQL,
		deleteBaselinesSQL, deleteDifferencesSQL, clearDifferencesSQL, redactCopiesSQL, redactSQL, endSQL,
		redactedEventsSQL, sameVersionSQL, openRebuildSQL, redactedSQL, newerSQL, droppedSQL, clearedSinceSQL,
		siblingsSQL, unansweredSQL, lockRunSQL, ofObjectSQL, namedAtIngestSQL, previewSQL, previewObjectsSQL,
		sourcesSQL, headersSQL, objectTypesSQL, sharedSQL, effectTextsSQL, lockEffectsByIDSQL, baselineTextsSQL,
		deleteBaselineSQL, refetchTextsSQL, deleteRefetchSQL, clearRefetchSQL, differenceTextsSQL, clearDifferenceSQL,
		missingTextsSQL, deleteMissingSQL, nonEmptySpoolSQL, spoolsSQL, showSpoolSQL, removeSpoolSQL, receivedSQL,
		laterSQL, pendingSQL, countOpenSQL, providerOfSQL, newRequestsSQL, progressSQL, saveProgressSQL, auditSQL}
	for _, table := range tables() {
		all = append(all, forTable(table, objectsSQL), forTable(table, clearedRowsSQL),
			forTable(table, sameVersionOfClearedSQL))
	}
	return all
}
