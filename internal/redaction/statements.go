package redaction

// Statements are all SQL statements of this package that run with parameters, for the test that prepares each.
func Statements() []string {
	all := []string{rejectionsSQL, conflictsSQL, redactConflictsSQL, lockEffectsSQL, dropEffectsSQL, dropStepsSQL, dropHoldsSQL, dropDriftsSQL, clearDriftsSQL, copiesSQL, redactSQL, endSQL, doneSQL, besideSQL, openSQL, goneSQL, newerSQL, droppedSQL, clearedSinceSQL, siblingsSQL, unansweredSQL, lockRunSQL, ofObjectSQL, atDoorSQL, previewSQL, previewObjectsSQL, sourcesSQL, headersSQL, objectTypesSQL, sharedSQL, effectTextsSQL, lockSomeEffectsSQL,
		holdTextsSQL, dropHoldSQL, refetchTextsSQL, dropRefetchSQL, clearRefetchSQL, driftTextsSQL, clearDriftSQL, missingTextsSQL, dropMissingSQL,
		drainedSQL, spoolsSQL, showSpoolSQL, forgetSpoolSQL, receivedSQL, laterSQL, pendingSQL, heldSQL, providerOfSQL, askedSQL, answeredToSQL, answeredUpToSQL, auditSQL}
	for _, table := range tables() {
		all = append(all, in(table, objectsSQL), in(table, coveredSQL), in(table, besideCoveredSQL))
	}
	return all
}
