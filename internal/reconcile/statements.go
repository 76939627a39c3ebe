package reconcile

// Statements are all SQL statements of this package, for the test that prepares each.
func Statements() []string {
	return []string{
		takeSQL, openSQL, giveSQL, watermarkSQL, provenSQL, forgottenSQL, mineSQL, knownSQL, gatherSQL, takeHintsSQL, dropSQL, putSQL, lookedSQL,
		mirroredSQL, hintsSQL, watermarksSQL, wishSQL, forgetSQL, stateSQL, newestSQL, storedSQL, parkSQL, parkedSQL, wakeSQL, forgetParkedSQL,
	}
}
