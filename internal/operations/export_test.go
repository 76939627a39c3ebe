package operations

// SearchBodies returns a page of the events whose bodies fit, from a search with a time limit.
var SearchBodies = searchBodies

// Help is the help by parameter.
var Help = help

// WaitingSQL counts what waits for an operator, and CountStatesSQL the effects of a rule.
const (
	WaitingSQL     = waitingSQL
	CountStatesSQL = countStatesSQL
)
