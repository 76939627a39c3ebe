package app

import (
	"time"

	"github.com/postern-gateway/postern/internal/activity"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects/jobs/runner"
	"github.com/postern-gateway/postern/internal/effects/jobs/windows"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/notify"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/stream"
)

// Tuning holds the settings of all parts and the clock.
type Tuning struct {
	Ingest    ingest.Settings
	Processor processor.Settings
	Limits    stream.Limits
	Runs      runs.Settings
	Effects   runner.Settings
	Windows   windows.Settings
	Notify    notify.Settings
	Now       func() time.Time
	// SpoolStallAfter is how long the spool's disk may take before deliveries get 503; 0: as the
	// spool decides.
	SpoolStallAfter time.Duration
	// ReloadInterval is the time between two checks of the configuration files.
	ReloadInterval time.Duration
	// RetentionInterval is the time between two checks whether retention is due.
	RetentionInterval time.Duration
	// SenderRequestsInterval is the time between two searches for erasure requests of senders.
	SenderRequestsInterval time.Duration
	// RefetchInterval is the time between two searches for pending refetches.
	RefetchInterval time.Duration
	// ActivityInterval is the time between two reports of the process.
	ActivityInterval time.Duration
	// MaxSilence is how long a call to PostgreSQL may wait without any traffic.
	MaxSilence time.Duration
}

// defaultMaxSilence is longer than a statement of the daemons takes. The limit also ends a commit
// that waits longer for a synchronous standby. Nothing unconfirmed is acknowledged then: the
// delivery or message is tried again and finds its first attempt.
const defaultMaxSilence = 10 * time.Minute

// spoolStallAfter is how long an append may take, if there is a spool, before deliveries go to the
// spool. With it, a sender gets its response within a second.
const spoolStallAfter = 750 * time.Millisecond

func newTuning(c *config.Config) Tuning {
	t := Tuning{Processor: processor.DefaultSettings, Limits: stream.DefaultLimits, Runs: runs.DefaultSettings,
		Effects: runner.DefaultSettings, Windows: windows.DefaultSettings, Notify: notify.DefaultSettings,
		Now: time.Now, ReloadInterval: reloadInterval, RetentionInterval: 10 * time.Minute,
		SenderRequestsInterval: 10 * time.Second,
		RefetchInterval:        time.Second, ActivityInterval: activity.DefaultInterval,
		MaxSilence: defaultMaxSilence, Ingest: ingest.Settings{
			Deadline: c.Ingest.Deadline, StallAfter: time.Second, AcquireTimeout: time.Second, Queue: c.Ingest.Queue,
			QueueBytes: int64(c.Ingest.QueueBytes), BatchMax: c.Ingest.BatchMax,
			BatchBytes: int64(c.Ingest.BatchBytes), Writers: c.Ingest.Writers,
			RejectionsMaxCount: c.Rejections.MaxCount,
			RejectionsMaxBytes: int64(c.Rejections.MaxBytes), RejectionsMaxBody: int64(c.Rejections.MaxBody),
		}}
	if c.Ingest.Spool.Dir != "" {
		t.Ingest.StallAfter = spoolStallAfter
	}
	t.Limits.MaxMessages, t.Limits.MaxBytes, t.Limits.MaxAge = c.Stream.MaxMessages, int64(c.Stream.MaxBytes),
		c.Stream.MaxAge
	t.Limits.Replicas = c.NATS.Replicas
	p := &t.Processor
	p.Batch, p.Workers = c.Processor.Batch, c.Processor.Workers
	p.BackOff = p.BackOff[:min(c.Processor.MaxAttempts-1, len(p.BackOff))]
	p.RepublishInterval, p.RepublishMinAge = c.Processor.Republisher.Every, c.Processor.Republisher.MinAge
	p.RepublishLease, p.RepublishRate = c.Processor.Republisher.Lease, c.Processor.Republisher.Rate
	p.ResendAfter, p.ChangeRetention = c.Processor.Changes.PublishAfter, c.Processor.Changes.Retention
	return t
}
