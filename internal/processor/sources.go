package processor

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

// directory knows the sources by name and by number, and which of them are configured. A gateway may have added one since this
// process started.
type directory struct {
	mu         sync.Mutex
	known      events.Sources
	configured map[string]Source
	asked      time.Time
}

func newDirectory(known events.Sources, configured map[string]Source) *directory {
	d := &directory{known: events.Sources{Number: map[string]int32{}, Name: map[int32]string{}}}
	maps.Copy(d.known.Number, known.Number)
	maps.Copy(d.known.Name, known.Name)
	d.configure(configured)
	return d
}

// configure replaces the configured sources; those that were configured stay known.
func (d *directory) configure(configured map[string]Source) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.configured = configured
	for name, s := range configured {
		d.known.Number[name], d.known.Name[s.Number] = s.Number, name
	}
}

// source is a configured source.
func (d *directory) source(name string) (Source, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.configured[name]
	return s, ok
}

// Replace makes other sources the configured ones, in one step. Events of a source that is no longer among them wait, without
// losing an attempt, until it is again. The map belongs to the processor from now on.
func (p *Processor) Replace(sources map[string]Source) { p.sources.configure(sources) }

// Knows is the name of a source, "" where there is none of the number, and whether it is configured here.
func (p *Processor) Knows(number int32) (name string, configured bool) {
	name = p.sources.name(number)
	_, configured = p.sources.source(name)
	return name, configured
}

// Reads says whether a source is among the configured ones, so that its events can be read, and its name, "" where nobody knows it.
func (p *Processor) Reads(ctx context.Context, number int32) (name string, ok bool, err error) {
	if p.sources.name(number) == "" {
		if err := p.sources.refresh(ctx, p.Pool); err != nil {
			return "", false, unavailable(err)
		}
	}
	name = p.sources.name(number)
	_, ok = p.sources.source(name)
	return name, ok, nil
}

func (d *directory) name(number int32) string {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known.Name[number]
}

func (d *directory) number(name string) int32 {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.known.Number[name]
}

// refresh reads the sources again, at most once a second.
func (d *directory) refresh(ctx context.Context, pool *pgxpool.Pool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if time.Since(d.asked) < time.Second {
		return nil
	}
	found, err := events.RegisterSources(ctx, pool, nil)
	if err != nil {
		return fmt.Errorf("look for new sources: %w", err)
	}
	d.asked = time.Now()
	maps.Copy(d.known.Number, found.Number)
	maps.Copy(d.known.Name, found.Name)
	return nil
}
