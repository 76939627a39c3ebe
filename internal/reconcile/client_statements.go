package reconcile

// Statements returns all SQL statements of this package, for the test that prepares each.
func clientStatements() []string {
	return []string{takeTokenSQL, openBudgetSQL, hasBudgetSQL, releaseSlotSQL, monthlyCallsSQL, delaySQL}
}
