// Package telemetry provides the log, metrics and traces of a process. Every command sets them up
// at its start. It never decides what is logged or measured; each package registers its own
// metrics.
package telemetry

import (
	"fmt"
	"io"
	"log/slog"
	"strings"
)

// NewLogger returns a logger that writes structured lines to w. format is "text" or "json" ("" is
// text). level is debug, info, warn or error, in upper or lower case ("" is info). Any other value
// is an error that lists the choices.
func NewLogger(w io.Writer, format, level string) (*slog.Logger, error) {
	var least slog.Level
	if level != "" {
		if err := least.UnmarshalText([]byte(level)); err != nil {
			return nil, fmt.Errorf("log level %q: use debug, info, warn or error", level)
		}
	}
	opts := &slog.HandlerOptions{Level: least}
	switch strings.ToLower(format) {
	case "", "text":
		return slog.New(slog.NewTextHandler(w, opts)), nil
	case "json":
		return slog.New(slog.NewJSONHandler(w, opts)), nil
	}
	return nil, fmt.Errorf("log format %q: use text or json", format)
}
