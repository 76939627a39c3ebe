// Package retention drops old partitions of the log after it has kept the data that must outlive
// them. It then expires keys, outcomes, conflicts, rejections, runs and effects that are past their
// ages. Processors execute it as a daily run; it never deletes rows of events that are still in the
// log.
package retention

import (
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/events"
)

// Job is the name of retention in the table of runs.
const Job = "retention"

// Policy is how many days each kind of data is kept. 0 keeps it forever.
type Policy struct {
	// Bodies is the age of events, in whole partitions of the log.
	Bodies int `json:"bodies"`
	// Keys and Outcomes never expire before the events they belong to.
	Keys       int `json:"keys"`
	Outcomes   int `json:"outcomes"`
	Rejections int `json:"rejections"`
	// Runs is the age of ended runs.
	Runs int `json:"runs"`
	// Effects is the time after an effect's end at which its data and responses are cleared.
	// EffectKeys is the time after an effect's end at which the effect is deleted, so that its key
	// may be planned again. It is never deleted before the event that planned it.
	Effects    int `json:"effects,omitzero"`
	EffectKeys int `json:"effect_keys,omitzero"`
}

// Empty reports whether everything is kept forever.
func (p Policy) Empty() bool { return p == Policy{} }

// Check rejects a policy that would expire data before the events it belongs to. Errors:
// events.ErrInvalid.
func (p Policy) Check() error {
	for _, days := range []int{p.Bodies, p.Keys, p.Outcomes, p.Rejections, p.Runs, p.Effects, p.EffectKeys} {
		if days < 0 {
			return fmt.Errorf("%w: a retention of %d days", events.ErrInvalid, days)
		}
	}
	for kind, days := range map[string]int{"keys": p.Keys, "outcomes": p.Outcomes, "effect_keys": p.EffectKeys} {
		if days > 0 && (p.Bodies == 0 || days < p.Bodies) {
			return fmt.Errorf("%w: retention of %s for %d days, and of events for %d (0: forever): keep %s at "+
				"least as long as events", events.ErrInvalid, kind, days, p.Bodies, kind)
		}
	}
	return nil
}

// Warnings lists data that the policy deletes although a replay may still need it.
func (p Policy) Warnings() []string {
	if p.Effects == 0 || p.Bodies > 0 && p.Bodies <= p.Effects {
		return nil
	}
	kept := fmt.Sprintf("for %d days", p.Bodies)
	if p.Bodies == 0 {
		kept = "forever"
	}
	return []string{fmt.Sprintf("the data of effects is cleared %d days after they ended, and events are kept %s: a "+
		"replay with --mode force of older events skips their effects, and counts them in effects_left", p.Effects,
		kept)}
}

// Params are the parameters of a retention run.
type Params struct {
	Policy
	// Export says that no partition is dropped without an export. A processor without an export
	// folder then fails the run.
	Export bool `json:"export,omitzero"`
	// Folder is the export folder. "" is the processor's own, if it has one.
	Folder string `json:"folder,omitzero"`
	// At is the time from which ages are counted back, by the database's clock, so that a run does
	// what its preview showed. Zero is the time when the run was requested.
	At time.Time `json:"at,omitzero"`
}

// cutoff returns the time before which data of an age expires, zero if it is kept forever.
func (o *Params) cutoff(days int) time.Time {
	if days == 0 {
		return time.Time{}
	}
	return o.At.AddDate(0, 0, -days)
}
