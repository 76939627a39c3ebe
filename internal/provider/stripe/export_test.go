package stripe

import (
	"maps"
	"slices"
)

// ListTypes returns the types in the table of lists.
func ListTypes() []string { return slices.Sorted(maps.Keys(lists)) }

// TypeNames returns the types in the table, so that a test can check that each has a test.
func TypeNames() []string {
	var names []string
	for name := range maps.Keys(types) {
		names = append(names, name)
	}
	return names
}
