package redaction

// Matches tells whether a body has any of some values.
var Matches = matches

// Search tells that, and whether the body could not be read.
var Search = search
