package main

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strconv"
	"strings"
	"sync"
	"time"
)

// progress is a slog handler for a waiting reader. Each line has the elapsed time, the estimated
// remaining time and the message.
type progress struct {
	mu    sync.Mutex
	to    io.Writer
	began time.Time
	// ends is the estimated end. It is zero while there is no estimate.
	ends time.Time
}

func newProgress(to io.Writer) *progress { return &progress{to: to, began: time.Now()} }

// setRemaining sets the estimate of the remaining time.
func (p *progress) setRemaining(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends = time.Now().Add(d)
}

// Enabled hides debug messages.
func (p *progress) Enabled(_ context.Context, level slog.Level) bool { return level >= slog.LevelInfo }

// Handle writes a line.
func (p *progress) Handle(_ context.Context, r slog.Record) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	b.WriteString(clock(time.Since(p.began)))
	if rest := time.Until(p.ends); rest > 0 {
		fmt.Fprintf(&b, " (%s left)", clock(rest))
	}
	b.WriteString("  ")
	if r.Level >= slog.LevelWarn {
		b.WriteString(r.Level.String() + " ")
	}
	b.WriteString(r.Message)
	r.Attrs(func(a slog.Attr) bool {
		fmt.Fprintf(&b, "  %s %s", a.Key, formatValue(a.Value))
		return true
	})
	_, err := io.WriteString(p.to, b.String()+"\n")
	return err
}

// formatValue writes a value without needless digits.
func formatValue(v slog.Value) string {
	if v.Kind() == slog.KindFloat64 {
		return strconv.FormatFloat(v.Float64(), 'f', 2, 64)
	}
	return v.String()
}

// clock formats a duration as minutes and seconds.
func clock(d time.Duration) string {
	s := int(d.Seconds())
	return fmt.Sprintf("%2d:%02d", s/60, s%60)
}

// WithAttrs and WithGroup are not used here.
func (p *progress) WithAttrs([]slog.Attr) slog.Handler { return p }

// WithGroup is not used here.
func (p *progress) WithGroup(string) slog.Handler { return p }
