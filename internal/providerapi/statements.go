package providerapi

// Statements returns all SQL statements of this package, for the test that prepares each.
func Statements() []string {
	return []string{takeTokenSQL, openBudgetSQL, hasBudgetSQL, releaseSlotSQL, monthlyCallsSQL, delaySQL}
}
