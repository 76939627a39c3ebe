package reconcile

// Statements are all SQL statements of this package, for the test that prepares each.
func Statements() []string {
	return []string{
		reportReadableSQL, readableSQL, takeSQL, openSQL, giveSQL, watermarkSQL, provenSQL, forgottenSQL, mineSQL, knownSQL, gatherSQL, takeHintsSQL, dropSQL, putSQL, lookedSQL,
		hintsSQL, watermarksSQL, mirroredSQL, wishSQL, forgetSQL, stateSQL, newestSQL, storedSQL, parkSQL, parkedSQL, wakeSQL, forgetParkedSQL,
		hintNumbersSQL, provenNumbersSQL, compareSQL, loadSweepSQL, dropSweepSQL, beginSweepSQL, forgetListedSQL, forgetGhostsSQL, keepSQL, mendedSQL,
		renewSweepSQL, doneSweepSQL, unlistSQL, provenTypeSQL, unmarkSQL, undecidedSQL, outcomesSQL, countDriftsSQL, driftSQL, walkSQL, keepGhostsSQL,
		countGhostsSQL, unaskedSQL, livingSQL, askedSQL, dropGhostsSQL, wantingSQL, proposedSQL, someGhostsSQL, buriedSQL, ghostDriftSQL, reportSQL, typesSQL, differencesSQL,
		provenOfSQL, noteTombstoneSQL, countTombstonesSQL, manyLiveSQL, orderTombstonesSQL, driftNumbersSQL, rereadSQL, mirroredAccountsSQL,
		openAccountsSQL, enteredSQL, witnessesSQL, witnessObjectsSQL, seenSQL, readSQL, passRareSQL, unlistedSQL,
		batchesSQL, affordSQL, callsSQL, knownAccountsSQL, disconnectedSQL, connectedSQL, provenLastSQL, disconnectedOfSQL, disconnectedAllSQL, delaySQL,
	}
}
