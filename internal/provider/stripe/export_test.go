package stripe

import "maps"

// TypeNames are the types in the table, for a test that none is left untested.
func TypeNames() []string {
	var names []string
	for name := range maps.Keys(types) {
		names = append(names, name)
	}
	return names
}
