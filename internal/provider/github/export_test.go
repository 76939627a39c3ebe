package github

import (
	"maps"
	"slices"
)

// Types are the event types in the table, for a test that none is left untested.
func Types() []string {
	var types []string
	for _, r := range rows {
		actions := slices.Concat(r.whole, r.deletes, slices.Collect(maps.Keys(r.why)), slices.Collect(maps.Keys(r.ignored)))
		for _, action := range actions {
			if action == "" {
				types = append(types, r.event)
				continue
			}
			types = append(types, r.event+"."+action)
		}
	}
	return types
}
