// Package archive is events as files: it writes the log to files and streams, and reads those and other files of events into a log. Both go on
// where they were ended: an export by its state, an import because a key is stored once.
package archive

import (
	"github.com/postern-gateway/postern/internal/provider"
)

// Version is that of the format of a line; every line says it.
const Version = 1

// timeLayout is how times are written: RFC 3339 in UTC with microseconds, which is all that the log has of a time.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// maxText bounds what is read as one piece, a line or a value, in bytes: six for each byte of the largest body that makes sense.
const maxText = 256 << 20

// Source is where events are imported to.
type Source struct {
	Provider provider.Provider
	// Config needs no secrets: nothing is proven.
	Config *provider.Source
}

// Progress is told now and then how many events a job is through.
type Progress func(events int64)
