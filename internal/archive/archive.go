// Package archive exports the log to files and streams, and imports such files and other files of
// events into a log. Operators use it through the commands export, import and verify. Both
// directions can be continued: an export by its state file, and an import because a key is stored
// only once.
package archive

import (
	"github.com/postern-gateway/postern/internal/provider"
)

// Version is the version of the line format. Every line contains it.
const Version = 1

// timeLayout is the format of times: RFC 3339 in UTC with microseconds, the resolution of the log.
const timeLayout = "2006-01-02T15:04:05.000000Z"

// maxTextBytes bounds a line: six bytes for each byte of the largest reasonable body.
const maxTextBytes = 256 << 20

// Source is a source to import events into.
type Source struct {
	Provider provider.Provider
	// Config needs no secrets, because signatures are not verified.
	Config *provider.Source
}

// Progress reports how many events are processed.
type Progress func(events int64)
