package runner

import (
	"fmt"

	"github.com/postern-gateway/postern/internal/effects"
)

// tellPeople logs which of the endings that were recorded at once need a person, and of which steps nobody knows any more whether they were done.
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
	r.tellOf(topic{text: "effects need a person (postern effects list --state review, and postern effects show says what is safe to do)", of: "destination", name: destination}, review)
	r.tellOf(topic{text: "nobody knows whether steps of effects were done, which is cleared up by itself as far as it can be (postern effects show says how)", of: "destination", name: destination}, unknown)
}

// tellUnruled logs which rules effects wait for that are not configured.
func (r *Runner) tellUnruled(over []ending) {
	waiting := map[string][]*ending{}
	for i := range over {
		if e := &over[i]; e.unruled {
			waiting[e.rule] = append(waiting[e.rule], e)
		}
	}
	for rule, all := range waiting {
		r.tellOf(topic{text: fmt.Sprintf("effects wait whose rule is not configured: give it its name back, or end them with postern effects reject (postern effects list --rule %s --state planned)", rule), of: "rule", name: rule, waits: true}, all)
	}
}

// tellStray logs that effects wait for a destination that is not configured.
func (r *Runner) tellStray(destination string, waiting []*ending) {
	r.tellOf(topic{text: "effects wait whose destination is not configured: configure it, or name another in their rule", of: "destination", name: destination, waits: true}, waiting)
}

func (r *Runner) tellOf(t topic, all []*ending) {
	if len(all) == 0 {
		return
	}
	if l := r.said.add(t, all); l != nil {
		r.say(t, l)
	}
}

// tellRest logs what was counted meanwhile and is to be said by now, or at the end of the process.
func (r *Runner) tellRest(end bool) {
	for t, l := range r.said.rest(end) {
		r.say(t, l)
	}
}

// say logs a line. What waits is looked at each minute, so that nobody takes how often that was for how much there is.
func (r *Runner) say(t topic, l *tally) {
	counted := "effects"
	if t.waits {
		counted = "looked_at"
	}
	args := []any{t.of, t.name, counted, l.effects, "first", l.first}
	if t.of != "rule" {
		args = append(args, "rules", l.rules)
	}
	r.Logger.Warn(t.text, args...)
}

// fewMost is how many ids and rules the log names.
const fewMost = 5
