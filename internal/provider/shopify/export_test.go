package shopify

import (
	"maps"
	"slices"
)

// Topics returns the topics in the table, so that a test can check that each has a test.
func Topics() []string {
	var topics []string
	for _, k := range objectRules {
		topics = append(append(topics, k.wholeTopics...), k.deletes...)
		topics = slices.AppendSeq(topics, maps.Keys(k.partialReasons))
	}
	return topics
}

// RequiredFields returns the required fields of a whole object, including its time, by topic.
func RequiredFields() map[string][]string {
	fields := map[string][]string{}
	for _, k := range objectRules {
		for _, topic := range k.wholeTopics {
			fields[topic] = append([]string{k.version()}, k.requiredFields...)
		}
	}
	return fields
}
