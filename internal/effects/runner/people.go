package runner

import (
	"slices"

	"github.com/postern-gateway/postern/internal/effects"
)

// tellPeople logs which of the endings that were recorded at once need a person, and of which steps nobody knows any more whether they were done: one line of each, however many there are.
func (r *Runner) tellPeople(destination string, recorded []ending) {
	var review, unknown []*ending
	for i := range recorded {
		switch e := &recorded[i]; {
		case e.state == effects.Review:
			review = append(review, e)
		case e.stepIs == effects.Unknown && !e.doubted:
			unknown = append(unknown, e)
		}
	}
	r.tellOf("effects need a person (postern effects list --state review, and postern effects show says what is safe to do)", destination, review)
	r.tellOf("nobody knows whether steps of effects were done, which is cleared up by itself as far as it can be (postern effects show says how)", destination, unknown)
}

func (r *Runner) tellOf(what, destination string, all []*ending) {
	if len(all) == 0 {
		return
	}
	var rules []string
	var ids []int64
	for _, e := range all {
		if ids = append(ids, e.effect); !slices.Contains(rules, e.rule) {
			rules = append(rules, e.rule)
		}
	}
	r.Logger.Warn(what, "destination", destination, "effects", len(all), "first", firstFew(ids), "rules", firstFew(rules))
}

// firstFew are those that the log names.
func firstFew[T any](all []T) []T { return all[:min(len(all), 5)] }
