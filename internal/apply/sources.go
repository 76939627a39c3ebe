package apply

import (
	"context"
	"fmt"
	"maps"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

// directory maps source names to numbers and back, and holds the configured sources. It reads the
// table of sources again on demand, because a gateway may have added a source.
type directory struct {
	mu         sync.Mutex
	known      events.Sources
	configured map[string]Source
	refreshed  time.Time
}

func newDirectory(known events.Sources, configured map[string]Source) *directory {
	d := &directory{known: events.Sources{Number: map[string]int32{}, Name: map[int32]string{}}}
	maps.Copy(d.known.Number, known.Number)
	maps.Copy(d.known.Name, known.Name)
	d.configure(configured)
	return d
}

// configure replaces the configured sources. The previous ones stay known.
func (d *directory) configure(configured map[string]Source) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.configured = configured
	for name, s := range configured {
		d.known.Number[name], d.known.Name[s.Number] = s.Number, name
	}
}

// source returns a configured source.
func (d *directory) source(name string) (Source, bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	s, ok := d.configured[name]
	return s, ok
}

// Replace replaces the configured sources in one step. Events of a source that was removed wait,
// without losing an attempt, until the source is configured again. The processor owns the map from
// now on.
func (a *Applier) Replace(sources map[string]Source) {
	a.sources.configure(sources)
	a.metrics.createSeries(sources)
}

// CachedSource returns the name of a source, "" if this process does not know the number, and
// whether the source is configured here.
func (a *Applier) CachedSource(number int32) (name string, configured bool) {
	name = a.sources.name(number)
	_, configured = a.sources.source(name)
	return name, configured
}

// ConfiguredSources returns the numbers of the configured sources.
func (a *Applier) ConfiguredSources() []int32 {
	a.sources.mu.Lock()
	defer a.sources.mu.Unlock()
	numbers := make([]int32, 0, len(a.sources.configured))
	for _, s := range a.sources.configured {
		numbers = append(numbers, s.Number)
	}
	return numbers
}

// FindSource is like CachedSource, but reads the sources again if the number is unknown. ok says
// that the source is configured, so that its events can be read.
func (a *Applier) FindSource(ctx context.Context, number int32) (name string, ok bool, err error) {
	if a.sources.name(number) == "" {
		if err := a.sources.refresh(ctx, a.Pool); err != nil {
			return "", false, unavailable(err)
		}
	}
	name = a.sources.name(number)
	_, ok = a.sources.source(name)
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
	if time.Since(d.refreshed) < time.Second {
		return nil
	}
	found, err := events.RegisterSources(ctx, pool, nil)
	if err != nil {
		return fmt.Errorf("find new sources: %w", err)
	}
	d.refreshed = time.Now()
	maps.Copy(d.known.Number, found.Number)
	maps.Copy(d.known.Name, found.Name)
	return nil
}
