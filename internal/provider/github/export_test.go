package github

import (
	"maps"
	"slices"
)

// Types returns the event types in the table, so that a test can check that each has a test.
func Types() []string {
	var types []string
	for _, r := range eventRules {
		actions := slices.Concat(r.wholeActions, r.deletes, slices.Collect(maps.Keys(r.partialReasons)),
			slices.Collect(maps.Keys(r.ignoredReasons)))
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
