package processor

import (
	"context"
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

func milliseconds(d time.Duration) float64 { return float64(d.Microseconds()) / 1000 }
