package shopify

import (
	"maps"
	"slices"
)

// Topics are those in the table, for a test that none is left untested.
func Topics() []string {
	var topics []string
	for _, k := range kinds {
		topics = append(append(topics, k.whole...), k.deletes...)
		topics = slices.AppendSeq(topics, maps.Keys(k.why))
	}
	return topics
}

// Always are the fields of a whole object, its time among them, by topic.
func Always() map[string][]string {
	fields := map[string][]string{}
	for _, k := range kinds {
		for _, topic := range k.whole {
			fields[topic] = append([]string{k.version()}, k.always...)
		}
	}
	return fields
}
