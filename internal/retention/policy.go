// Package retention forgets what has become old: it drops partitions of the log once all that must outlive them is kept, and then keys, outcomes,
// conflicts, rejections and runs that are past their ages.
package retention

import (
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/events"
)

// Job is what retention is called in the ledger of runs.
const Job = "retention"

// Policy is how many days things are kept; 0 keeps them for ever.
type Policy struct {
	// Bodies is the age of events, whole partitions of the log.
	Bodies int `json:"bodies"`
	// Keys and Outcomes are never forgotten before the events they belong to.
	Keys       int `json:"keys"`
	Outcomes   int `json:"outcomes"`
	Rejections int `json:"rejections"`
	// Runs is the age of the history of runs.
	Runs int `json:"runs"`
	// Effects is the age after which what effects were planned with and were answered is cleared, since they ended; EffectKeys that after which they are deleted, and their keys may be planned again, never before
	// the events that planned them.
	Effects    int `json:"effects,omitzero"`
	EffectKeys int `json:"effect_keys,omitzero"`
}

// Empty says that everything is kept for ever.
func (p Policy) Empty() bool { return p == Policy{} }

// Check refuses what would forget anything before the events it belongs to. Errors: events.ErrInvalid.
func (p Policy) Check() error {
	for _, days := range []int{p.Bodies, p.Keys, p.Outcomes, p.Rejections, p.Runs, p.Effects, p.EffectKeys} {
		if days < 0 {
			return fmt.Errorf("%w: a retention of %d days", events.ErrInvalid, days)
		}
	}
	for what, days := range map[string]int{"keys": p.Keys, "outcomes": p.Outcomes, "effect_keys": p.EffectKeys} {
		if days > 0 && (p.Bodies == 0 || days < p.Bodies) {
			return fmt.Errorf("%w: retention of %s for %d days, and of events for %d (0: for ever): keep %s at least as long as events", events.ErrInvalid, what, days, p.Bodies, what)
		}
	}
	return nil
}

// Warnings tell what a policy takes that a replay may need still.
func (p Policy) Warnings() []string {
	if p.Effects == 0 || p.Bodies > 0 && p.Bodies <= p.Effects {
		return nil
	}
	kept := fmt.Sprintf("for %d days", p.Bodies)
	if p.Bodies == 0 {
		kept = "for ever"
	}
	return []string{fmt.Sprintf("what effects hold is cleared %d days after they ended, and events are kept %s: a replay with --mode force of older ones leaves their effects out, and counts them as left", p.Effects, kept)}
}

// Order is what a run of retention is asked to do.
type Order struct {
	Policy
	// Export: no partition goes without having been exported; a processor that has no folder for it refuses.
	Export bool `json:"export,omitzero"`
	// Folder is where partitions are exported to; "": the processor's own, if it has one.
	Folder string `json:"folder,omitzero"`
	// At is the time that ages are counted back from, by the database's clock: what was previewed is what is done. Zero: when the run was made.
	At time.Time `json:"at,omitzero"`
}

// before is the time before which things of an age are forgotten; zero where they are kept for ever.
func (o *Order) before(days int) time.Time {
	if days == 0 {
		return time.Time{}
	}
	return o.At.AddDate(0, 0, -days)
}
