package redaction

import "fmt"

// Matches reports whether a body contains any of the values.
var Matches = matchesAny

// Search also reports whether the body could not be read.
var Search = search

// MatchesRefetched reports whether a refetched object contains any of the values.
var MatchesRefetched = matchesRefetched

// TableStatements returns the statements about each table of objects, by a name.
func TableStatements() map[string]string {
	all := map[string]string{}
	for _, table := range tables() {
		for i, sql := range []string{objectsSQL, clearedRowsSQL, sameVersionOfClearedSQL} {
			all[fmt.Sprint(table, i)] = forTable(table, sql)
		}
	}
	return all
}
