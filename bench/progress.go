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

// progress writes log lines for a person who waits: how long it has taken, how long it will still
// take about, and what happened.
type progress struct {
	mu    sync.Mutex
	to    io.Writer
	began time.Time
	// ends is when all will be done, about; zero: nobody knows.
	ends time.Time
}

func newProgress(to io.Writer) *progress { return &progress{to: to, began: time.Now()} }

// left tells how long the rest will take, about.
func (p *progress) left(d time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.ends = time.Now().Add(d)
}

// Enabled is true for what a person wants to see.
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
		fmt.Fprintf(&b, "  %s %s", a.Key, said(a.Value))
		return true
	})
	_, err := io.WriteString(p.to, b.String()+"\n")
	return err
}

// said is a value without needless digits.
func said(v slog.Value) string {
	if v.Kind() == slog.KindFloat64 {
		return strconv.FormatFloat(v.Float64(), 'f', 2, 64)
	}
	return v.String()
}

// clock is a duration as minutes and seconds.
func clock(d time.Duration) string {
	s := int(d.Seconds())
	return fmt.Sprintf("%2d:%02d", s/60, s%60)
}

// WithAttrs and WithGroup are not used here.
func (p *progress) WithAttrs([]slog.Attr) slog.Handler { return p }

// WithGroup is not used here.
func (p *progress) WithGroup(string) slog.Handler { return p }
