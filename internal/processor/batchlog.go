package processor

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/versioning"
)

// logBatch writes one line for a committed batch: what came of its events, how long that took, and how long the oldest of them had
// waited since its receipt; how many effects were planned, and how many were in the ledger by their keys. A batch of nothing but copies is of interest to nobody but who debugs.
func (p *Processor) logBatch(b *committed, counts map[versioning.Status]int, oldest time.Duration) {
	level := slog.LevelInfo
	if len(counts) == 0 {
		level = slog.LevelDebug
	}
	ctx := context.Background()
	log := p.log(b.Target)
	if !log.Enabled(ctx, level) {
		return
	}
	attrs := []slog.Attr{slog.Int("events", len(b.items)), slog.Float64("duration_ms", milliseconds(b.ended.Sub(b.began))),
		slog.Float64("lag_ms", milliseconds(oldest))}
	settled := len(b.items)
	for _, s := range statuses {
		if n := counts[s]; n > 0 {
			attrs = append(attrs, slog.Int(string(s), n))
			settled -= n
		}
	}
	if settled > 0 {
		attrs = append(attrs, slog.Int("settled_before", settled))
	}
	if n := b.planned.New; n > 0 {
		attrs = append(attrs, slog.Int("effects", n))
	}
	if n := b.planned.Known; n > 0 {
		attrs = append(attrs, slog.Int("effects_known", n))
	}
	if b.Log == nil { // else it names the run itself
		attrs = slices.Insert(attrs, 0, slog.Int64("run", b.Run))
	}
	log.LogAttrs(ctx, level, "applied batch", attrs...)
}

// deadMost is how many dead events of a batch the log names, and how much of a reason.
const (
	deadMost   = 5
	reasonMost = 200
)

// tellPeople logs what of a committed batch needs a person: which events are dead, and how many effects wait for somebody from the start.
func (p *Processor) tellPeople(b *committed, dead int) {
	if dead == 0 && b.planned.Review == 0 {
		return
	}
	log := p.log(b.Target)
	if b.Log == nil { // else it names the run itself
		log = log.With("run", b.Run)
	}
	if dead > 0 {
		log.Warn(fmt.Sprintf("events are dead: they were not applied, and will not be by themselves (postern outcomes list --status dead --run %d)", b.Run), "events", dead, "first", firstDead(b.items))
	}
	if n := b.planned.Collided; n > 0 {
		log.Warn("keys of effects were those of other rules or objects: a person must see what should have followed (postern effects list --state review)", "effects", n)
	}
	if n := b.planned.Review - b.planned.Collided; n > 0 {
		log.Warn("rules could not say what is to follow: a person must see to it (postern effects list --state review)", "effects", n)
	}
}

// firstDead are the first dead events of a batch, each with its reason.
func firstDead(items []*item) (first []string) {
	for _, it := range items {
		if !it.settled && it.outcome.status == versioning.Dead && len(first) < deadMost {
			first = append(first, fmt.Sprintf("%d: %s", it.ev.ID, cut(it.outcome.reason, reasonMost)))
		}
	}
	return first
}

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
