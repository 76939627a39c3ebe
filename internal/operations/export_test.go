package operations

// Mentioning returns a page of the events that mention a value, from a search with a time limit.
var Mentioning = searchMentions

// Help is the help by parameter.
var Help = help

// FailurePattern returns a reason with … for each variable part.
var FailurePattern = failurePattern
