package app

// What the tests of this package reach into.
var (
	PercentOf  = percentOf
	TuneMemory = tuneMemory
	Stay       = stay
)

// Besides is what the limit of memory has above ingest.queue_bytes.
const Besides = besides

// CloseIngest closes the listener of the gateway, whose loop then ends by itself.
func (a *App) CloseIngest() error { return a.ingest.Close() }
