package runner

import (
	"fmt"

	"github.com/postern-gateway/postern/internal/effects"
)

// logNeedsReview logs which of the recorded results need an operator, and which steps got an
// unknown outcome.
func (r *Runner) logNeedsReview(destination string, recorded []result) {
	var review, unknown []*result
	for i := range recorded {
		switch e := &recorded[i]; {
		case e.state == effects.Review:
			review = append(review, e)
		case e.stepState == effects.Unknown && !e.wasUnknown:
			unknown = append(unknown, e)
		}
	}
	r.logEffects(logTopic{text: "effects need review (postern effects list --state needs_review; postern effects " +
		"show lists the allowed actions)", label: "destination", name: destination}, review)
	r.logEffects(logTopic{text: "it is unknown whether steps of effects were executed; Postern clears this up " +
		"automatically as far as possible (postern effects show says " +
		"how)", label: "destination", name: destination}, unknown)
}

// logMissingRules logs the rules that effects wait for and that are not configured.
func (r *Runner) logMissingRules(results []result) {
	waiting := map[string][]*result{}
	for i := range results {
		if e := &results[i]; e.ruleMissing {
			waiting[e.rule] = append(waiting[e.rule], e)
		}
	}
	for rule, all := range waiting {
		r.logEffects(logTopic{text: fmt.Sprintf("effects wait for a rule that is not configured: restore the name of "+
			"the rule, or end them with postern effects reject (postern effects list --rule %s --state planned)", rule),
			label: "rule", name: rule, repeats: true}, all)
	}
}

// logMissingDestination logs that effects wait for a destination that is not configured.
func (r *Runner) logMissingDestination(destination string, waiting []*result) {
	r.logEffects(logTopic{text: "effects wait for a destination that is not configured: configure it, or name " +
		"another in their rule", label: "destination", name: destination, repeats: true}, waiting)
}

func (r *Runner) logEffects(t logTopic, all []*result) {
	if len(all) == 0 {
		return
	}
	if l := r.logLimiter.add(t, all); l != nil {
		r.writeLog(t, l)
	}
}

// logSuppressed logs the counts of suppressed lines that are due, or all of them at the end of the
// process.
func (r *Runner) logSuppressed(end bool) {
	for t, l := range r.logLimiter.pending(end) {
		r.writeLog(t, l)
	}
}

// writeLog writes a log line. Waiting effects are checked each minute, so their number counts
// checks and not effects; the field is named accordingly.
func (r *Runner) writeLog(t logTopic, l *suppressedCount) {
	counted := "effects"
	if t.repeats {
		counted = "checked"
	}
	args := []any{t.label, t.name, counted, l.effects, "first", l.first}
	if t.label != "rule" {
		args = append(args, "rules", l.rules)
	}
	r.Logger.Warn(t.text, args...)
}

// maxNamed bounds how many ids and rules a log line names.
const maxNamed = 5
