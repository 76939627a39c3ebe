package reconcile

// Statements returns all SQL statements of this package, for the test that prepares each.
func Statements() []string {
	return []string{
		reportReadableSQL, readableSQL, watermarkSQL, raiseWatermarkSQL,
		deleteEndedWatermarksSQL, appendedByRunSQL,
		countStoredKeysSQL, insertPendingSQL, leaseRequestsSQL, deleteRequestSQL, rescheduleSQL, refetchResultSQL,
		listRefetchRequestsSQL, watermarksSQL, mirroredSQL, requestRefetchSQL, deleteAnyRequestSQL, mirrorStateSQL,
		newestEventSQL, storedSQL, suspendSQL, listSuspendedSQL,
		resumeSQL, deleteSuspendedSQL,
		refetchStatsSQL, completenessStatsSQL, compareSQL, loadScanSQL, deleteScanSQL, insertScanSQL,
		deleteEndedListedSQL,
		deleteEndedOrphansSQL, advanceScanSQL, recordRepairsSQL,
		restartListSQL, finishScanSQL, deleteListedSQL, raiseTypeWatermarksSQL, deleteWatermarkSQL, withoutOutcomeSQL,
		outcomesSQL, countDriftsSQL,
		driftSQL, walkSQL, insertOrphansSQL,
		countOrphansSQL, countUnapprovedSQL, countLivingSQL, requestApprovalSQL, deleteOrphansSQL, awaitingApprovalSQL,
		resumeApprovedSQL, nextOrphansSQL,
		finishOrphansSQL, insertOrphanDriftSQL, reportSQL, typesSQL, differencesSQL,
		completeRangeSQL, recordTombstoneSQL, countTombstonesSQL, hasManyLivingSQL, lockTombstonesSQL, driftStatsSQL,
		rereadListSQL,
		mirroredAccountsSQL,
		openAccountsSQL, startedRunsSQL, sampleEventsSQL, sampleObjectsSQL, seenVersionsSQL,
		skipUnmirroredTypesSQL, markNotListableSQL,
		openBatchesSQL, resumeBudgetWaitsSQL, knownAccountsSQL, upsertDisconnectedSQL,
		deleteDisconnectedSQL, recentAccountsSQL,
		disconnectedAccountsSQL, disconnectedAllSQL,
	}
}
