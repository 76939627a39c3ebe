package app

import "time"

// Internals that the tests of this package use.
var (
	GCPercentFor = gcPercentFor
	TuneMemory   = tuneMemory
	ReadMemory   = readMemory
	LoadAndRun   = loadAndRun

	NewTuning      = newTuning
	GatewaySources = gatewaySources
)

// IdleDetector decides when memory is returned.
type IdleDetector = idleDetector

// IsDue calls isDue.
func (q *idleDetector) IsDue(allocated, idle uint64, now time.Time) bool {
	return q.isDue(allocated, idle, now)
}

// ExtraMemory is the part of the memory limit above ingest.queue_bytes.
const ExtraMemory = extraMemory

// CloseIngestListener closes the gateway's listener, so that its loop ends unexpectedly.
func (a *App) CloseIngestListener() error { return a.ingestListener.Close() }
