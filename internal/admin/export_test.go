package admin

// Mentioning returns a page of the events that mention a value, of a search that is bounded in time.
var Mentioning = mentioning
