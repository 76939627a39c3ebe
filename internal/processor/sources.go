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

// directory knows the sources by name and by number. A gateway may have added one since this process started.
type directory struct {
	mu    sync.Mutex
	known events.Sources
	asked time.Time
}

func newDirectory(known events.Sources, configured map[string]Source) *directory {
	d := &directory{known: events.Sources{Number: map[string]int32{}, Name: map[int32]string{}}}
	maps.Copy(d.known.Number, known.Number)
	maps.Copy(d.known.Name, known.Name)
	for name, s := range configured {
		d.known.Number[name], d.known.Name[s.Number] = s.Number, name
	}
	return d
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
