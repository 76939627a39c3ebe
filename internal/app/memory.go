package app

import (
	"runtime/debug"

	"github.com/postern-gateway/postern/internal/config"
)

const (
	// gcPercent lets the heap grow to five times what is in use before it is collected: a daemon has some ten MiB in use, and with
	// Go's default of 100 a third of a busy gateway's processor time went into collecting them.
	gcPercent = 400
	// besides is what a process may need besides the bodies it holds, and what waits to be published or was fetched ahead: above
	// the sum of them Go collects more often, whatever gcPercent says.
	besides = 384 << 20
)

// tuneMemory sets how often Go collects garbage, unless the environment does (GOGC, GOMEMLIMIT).
func tuneMemory(cfg *config.Config, env func(string) string) {
	if env("GOGC") == "" {
		debug.SetGCPercent(gcPercent)
	}
	if env("GOMEMLIMIT") == "" {
		debug.SetMemoryLimit(int64(cfg.Ingest.QueueBytes) + besides)
	}
}
