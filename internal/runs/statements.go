package runs

// Statements are all SQL statements of this package, for the test that prepares each.
func Statements() []string {
	return []string{askSQL, askPlannedSQL, listSQL, showSQL, changeSQL, approveSQL, takeSQL, renewSQL, boundSQL, advanceSQL, handSQL, noteSQL, endSQL, releaseSQL, handBackSQL, putOffSQL,
		lockRunSQL, lockAloneSQL, leasedSQL, extendSQL,
		restSQL, proposeSQL, doneSQL, earlierSQL, schedulesSQL, showScheduleSQL, pauseSQL, resumeSQL, lockScheduleSQL, openSQL, registerSQL, plannedSQL, seenSQL, decidedSQL, claimSQL, toldSQL, openCountsSQL, scheduleNumbersSQL, forgetSQL, countOldSQL, forgetCheckpointsSQL}
}
