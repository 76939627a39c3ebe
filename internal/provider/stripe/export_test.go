package stripe

import (
	"maps"
	"slices"
)

// ListTypes are the types in the table of lists.
func ListTypes() []string { return slices.Sorted(maps.Keys(lists)) }

// TypeNames are the types in the table, for a test that none is left untested.
func TypeNames() []string {
	var names []string
	for name := range maps.Keys(types) {
		names = append(names, name)
	}
	return names
}
