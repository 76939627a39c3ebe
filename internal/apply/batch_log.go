package apply

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/versioning"
)

// log writes one line for a committed transaction: the counts of outcomes, the duration, the
// greatest time from receipt to commit, the effects that were planned, and the effects whose keys
// were in the ledger before. The level is debug if all events had an outcome before.
func (t *transaction) log(counts map[versioning.Status]int, oldest time.Duration) {
	level := slog.LevelInfo
	if len(counts) == 0 {
		level = slog.LevelDebug
	}
	ctx := context.Background()
	if !t.Logger.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{slog.Int("events", len(t.batch)),
		slog.Float64("duration_ms", milliseconds(t.endedAt.Sub(t.startedAt))),
		slog.Float64("lag_ms", milliseconds(oldest))}
	finishedBefore := len(t.batch)
	for _, s := range statuses {
		if n := counts[s]; n > 0 {
			attrs = append(attrs, slog.Int(string(s), n))
			finishedBefore -= n
		}
	}
	if finishedBefore > 0 {
		attrs = append(attrs, slog.Int("finished_before", finishedBefore))
	}
	if n := t.planned.New; n > 0 {
		attrs = append(attrs, slog.Int("effects", n))
	}
	if n := t.planned.Existing; n > 0 {
		attrs = append(attrs, slog.Int("effects_known", n))
	}
	if t.to.live() { // otherwise the logger names the run
		attrs = slices.Insert(attrs, 0, slog.Int64("run", t.to.Run))
	}
	t.Logger.LogAttrs(ctx, level, "applied batch", attrs...)
}

// maxDeadLogged bounds the dead events that one log line names, maxReasonBytes the text of each
// reason.
const (
	maxDeadLogged  = 5
	maxReasonBytes = 200
)

// logNeedsReview logs the dead events of a committed batch, and its planned effects that need
// review from the start.
func (t *transaction) logNeedsReview(dead int) {
	if dead == 0 && t.planned.Review == 0 {
		return
	}
	log := t.Logger
	if t.to.live() { // otherwise the logger names the run
		log = log.With("run", t.to.Run)
	}
	if dead > 0 {
		log.Warn("events are dead: they were not applied and are not retried automatically (postern outcomes list "+
			"--status dead --run "+events.RunName(t.to.Run)+")", "events", dead, "first", firstDead(t.batch))
	}
	if n := t.planned.Collided; n > 0 {
		log.Warn("effects have keys that belong to other rules or objects: an operator must review them (postern "+
			"effects list --state needs_review)", "effects", n)
	}
	if n := t.planned.Review - t.planned.Collided; n > 0 {
		log.Warn("rules could not plan their effects: an operator must review them (postern effects list --state "+
			"needs_review)", "effects", n)
	}
}

// firstDead returns the first dead events of a batch, each with its reason.
func firstDead(batch []*event) (first []string) {
	for _, e := range batch {
		if !e.finished && e.outcome.status == versioning.Dead && len(first) < maxDeadLogged {
			first = append(first, fmt.Sprintf("%d: %s", e.ev.ID, cut(e.outcome.reason, maxReasonBytes)))
		}
	}
	return first
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
