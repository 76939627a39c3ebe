package runs

// Statements returns all SQL statements of this package for the test that prepares each.
func Statements() []string {
	return []string{insertRequestedSQL, insertPlannedSQL, listSQL, showSQL, changeStatusSQL, approveSQL, acquireSQL,
		renewSQL, freezeBoundSQL, advanceSQL, markInProgressSQL, setDetailSQL, endSQL, releaseSQL, requeueSQL, deferSQL,
		lockRunSQL, lockRunExclusiveSQL, checkLeaseSQL, replaceBoundSQL, awaitDecisionSQL, requestApprovalSQL,
		completeSQL, findByKeySQL, schedulesSQL, showScheduleSQL, pauseSQL, resumeSQL, lockScheduleSQL, openRunsSQL,
		registerSQL, scheduleRowsSQL, confirmSchedulesSQL, recordDecisionSQL, claimEndedSQL, markPublishedSQL,
		openCountsSQL, scheduleSamplesSQL, expireSQL, countExpiredSQL, deleteCheckpointsSQL}
}
