package redaction

// Matches reports whether a body contains any of the values.
var Matches = matchesAny

// Search also reports whether the body could not be read.
var Search = search

// MatchesRefetched reports whether a refetched object contains any of the values.
var MatchesRefetched = matchesRefetched
