package app

import "time"

// What the tests of this package reach into.
var (
	PercentOf  = percentOf
	TuneMemory = tuneMemory
	ReadMemory = readMemory
	Stay       = stay

	NewTuning      = newTuning
	GatewaySources = gatewaySources
)

// Quiet decides when memory is given back.
type Quiet = quiet

// Due says whether that is now.
func (q *quiet) Due(asked, idle uint64, now time.Time) bool { return q.due(asked, idle, now) }

// Besides is what the limit of memory has above ingest.queue_bytes.
const Besides = besides

// CloseIngest closes the listener of the gateway, whose loop then ends by itself.
func (a *App) CloseIngest() error { return a.ingest.Close() }
