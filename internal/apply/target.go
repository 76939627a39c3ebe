package apply

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/versioning"
)

// Target says how events are applied. The zero value applies them live. A replay has its own Run, a
// rebuild also a Staging, and RetryRun applies failed and dead outcomes of any of the three again.
// All take the same steps (see transaction.run):
//
//	                            live    replay       rebuild
//	outcomes                    run 0   its own run  its own run
//	objects                     mirror  mirror       the table of Staging
//	announces changes           yes     yes          no
//	plans effects               yes     if Effects   no
//	reports missed changes      yes     no           no
//	skips redacted events       *       yes          yes
//
// (*) A redaction gives each of these events a final outcome, and is therefore skipped.
type Target struct {
	// Run is the run that owns the outcomes. events.LiveRun is the run of events that are applied
	// as they arrive.
	Run int64
	// RetryRun is the operator's run that applies failed and dead outcomes of Run again, each with
	// all its attempts. With 0, dead outcomes and outcomes that are not due stay as they are.
	RetryRun int64
	// Effects says that changes of Run plan effects. Changes of the live run always do.
	Effects bool
	// Staging is the table that is written instead of the mirror. It is nil for the mirror.
	Staging *Staging
	// alreadyFinal counts the events that had a final outcome before. It may be nil.
	alreadyFinal *atomic.Int64
}

// Staging is a table of objects separate from the mirror.
type Staging struct {
	Table versioning.ObjectTable
	// Type limits the events to one object type: events of objects of other types are skipped and
	// get no outcome. "" is no limit.
	Type string
	// Guard runs at the start of each transaction and may return an error to abort it. It may be
	// nil.
	Guard func(context.Context, pgx.Tx) error
}

// live reports whether events are applied as they arrive.
func (to *Target) live() bool { return to.Run == events.LiveRun && to.RetryRun == 0 }

// table returns the table of the objects.
func (to *Target) table() versioning.ObjectTable {
	if to.Staging == nil {
		return versioning.Mirror
	}
	return to.Staging.Table
}

// toMirror reports whether the objects are those of the mirror.
func (to *Target) toMirror() bool { return to.table() == versioning.Mirror }

// plansEffects reports whether changes plan effects.
func (to *Target) plansEffects() bool { return to.Run == events.LiveRun || to.Effects }

// appliedRun returns the run whose outcomes tell which events are already part of the rows: the
// live run for the mirror, the rebuild's own run for staged objects.
func (to *Target) appliedRun() int64 {
	if to.toMirror() {
		return events.LiveRun
	}
	return to.Run
}

// excludes reports whether the target's type excludes an event that was read.
func (to *Target) excludes(e *event) bool {
	return to.Staging != nil && to.Staging.Type != "" && e.key.Type != "" && e.key.Type != to.Staging.Type
}

// countFinal counts the events of a transaction that had a final outcome before.
func (to *Target) countFinal(batch ...*event) {
	for _, e := range batch {
		if e.hasFinalOutcome && to.alreadyFinal != nil {
			to.alreadyFinal.Add(1)
		}
	}
}

// errGuardFailed marks a transaction that the target's guard has aborted.
var errGuardFailed = errors.New("the rebuild no longer has its lease, so nothing is applied")

// guard calls the target's guard at the start of a transaction.
func (to *Target) guard(ctx context.Context, tx pgx.Tx) error {
	if to.Staging == nil || to.Staging.Guard == nil {
		return nil
	}
	if err := to.Staging.Guard(ctx, tx); err != nil {
		return fmt.Errorf("%w: %w", errGuardFailed, err)
	}
	return nil
}
