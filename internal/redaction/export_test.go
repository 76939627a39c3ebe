package redaction

// Matches tells whether a body has any of some values.
var Matches = matches
