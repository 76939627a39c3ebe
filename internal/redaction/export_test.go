package redaction

// Matches tells whether a body has any of some values.
var Matches = matches

// Search tells that, and whether the body could not be read.
var Search = search

// InLook tells whether the object of a look has any of some values.
var InLook = inLook
