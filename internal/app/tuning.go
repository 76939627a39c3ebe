package app

import (
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects/runner"
	"github.com/postern-gateway/postern/internal/effects/windows"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/notify"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
)

// Tuning is the configuration in the terms of the parts, and the clock.
type Tuning struct {
	Ingest    ingest.Settings
	Processor processor.Settings
	Limits    stream.Limits
	Runs      runs.Settings
	Effects   runner.Settings
	Windows   windows.Settings
	Notify    notify.Settings
	Now       func() time.Time
	// ReloadEvery is how often the configuration's files are looked at.
	ReloadEvery time.Duration
	// RetentionEvery is how often it is looked whether retention is due.
	RetentionEvery time.Duration
	// AnswersEvery is how often it is looked what senders ask to be forgotten.
	AnswersEvery time.Duration
	// LooksEvery is how often it is looked which objects owe a look.
	LooksEvery time.Duration
}

// stallAfter is how long all appends may take before deliveries go to the spool, so that they do within a second.
const stallAfter = 750 * time.Millisecond

func newTuning(c *config.Config) Tuning {
	t := Tuning{Processor: processor.DefaultSettings, Limits: stream.DefaultLimits, Runs: runs.DefaultSettings, Effects: runner.DefaultSettings, Windows: windows.DefaultSettings, Notify: notify.DefaultSettings, Now: time.Now, ReloadEvery: reloadEvery, RetentionEvery: 10 * time.Minute, AnswersEvery: 10 * time.Second, LooksEvery: time.Second, Ingest: ingest.Settings{
		Deadline: c.Ingest.Deadline, StallAfter: time.Second, AcquireWithin: time.Second, Queue: c.Ingest.Queue, QueueBytes: int64(c.Ingest.QueueBytes), BatchMax: c.Ingest.BatchMax,
		BatchBytes: int64(c.Ingest.BatchBytes), Writers: c.Ingest.Writers, RejectionsMaxCount: c.Rejections.MaxCount,
		RejectionsMaxBytes: int64(c.Rejections.MaxBytes), RejectionsMaxBody: int64(c.Rejections.MaxBody),
	}}
	if c.Ingest.Spool.Dir != "" {
		t.Ingest.StallAfter = stallAfter
	}
	t.Limits.MaxMessages, t.Limits.MaxBytes, t.Limits.MaxAge = c.Stream.MaxMessages, int64(c.Stream.MaxBytes), c.Stream.MaxAge
	t.Limits.Replicas = c.NATS.Replicas
	p := &t.Processor
	p.Batch, p.Lanes = c.Processor.Batch, c.Processor.Lanes
	p.BackOff = p.BackOff[:min(c.Processor.MaxAttempts-1, len(p.BackOff))]
	p.AuditEvery, p.AuditAge, p.AuditLease = c.Processor.Auditor.Every, c.Processor.Auditor.MinAge, c.Processor.Auditor.Lease
	p.AuditRate = c.Processor.Auditor.Rate
	p.SweepAfter, p.KeepChanges = c.Processor.Changes.SweepAfter, c.Processor.Changes.Keep
	return t
}
