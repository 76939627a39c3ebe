package operations

// SearchBodies returns a page of the events whose bodies fit, from a search with a time limit.
var SearchBodies = searchBodies

// SummarySQL counts what needs attention.
const SummarySQL = summarySQL

// Watchers returns the number of watchers of a follower.
func Watchers(f *Follower) int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.poller == nil {
		return 0
	}
	return f.poller.count
}

// Help is the help by parameter.
var Help = help

// SourcesSQL reads the sources and the activity of their event types.
const SourcesSQL = sourcesSQL

// WaitingSQL counts what waits for an operator, and CountStatesSQL the effects of a rule.
const (
	WaitingSQL     = waitingSQL
	CountStatesSQL = countStatesSQL
)
