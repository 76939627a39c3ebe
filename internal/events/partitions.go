package events

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
)

const ensurePartitionsSQL = `
SELECT ensure_partitions(m.ms, m.ms + $1) FROM (SELECT greatest(clock_ms(), (SELECT f.ms FROM log_floor f) + 1) AS ms)
	m`

// EnsurePartitions creates the missing daily partitions of the log from now until ahead from now.
func EnsurePartitions(ctx context.Context, db postgres.DB, ahead time.Duration) error {
	if _, err := db.Exec(ctx, ensurePartitionsSQL, ahead.Milliseconds()); err != nil {
		return fmt.Errorf("create partitions %s ahead: %w", ahead, err)
	}
	return nil
}

// partitionsUntilSQL finds the first day from today on that has no partition.
const partitionsUntilSQL = `
SELECT to_timestamp(d.day * 86400), to_timestamp(d.day * 86400) - clock_now()
FROM (SELECT clock_ms() / 86400000 AS today) t, generate_series(t.today, t.today + 400) AS d(day)
WHERE NOT EXISTS (SELECT FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid WHERE i.inhparent = 'events'::regclass
	AND NOT i.inhdetachpending
  AND c.relname = 'events_' || to_char(to_timestamp(d.day * 86400) AT TIME ZONE 'UTC', 'YYYYMMDD'))
ORDER BY d.day LIMIT 1`

// PartitionsUntil returns the end of the log's contiguous partitions from today on, and how far
// ahead that is; at most 400 days.
func PartitionsUntil(ctx context.Context, pool *pgxpool.Pool) (until time.Time, ahead time.Duration, err error) {
	if err := pool.QueryRow(ctx, partitionsUntilSQL).Scan(&until, &ahead); err != nil {
		return until, 0, fmt.Errorf("read how far ahead partitions exist: %w", err)
	}
	return until, ahead, nil
}

const addSourceSQL = `INSERT INTO sources (name, provider) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING`

const sourcesSQL = `SELECT number, name, provider FROM sources`

// Sources are the registered sources, by name and by number.
type Sources struct {
	Number map[string]int32
	Name   map[int32]string
	// Provider is the name of the provider by the name of the source.
	Provider map[string]string
}

// RegisterSources gives each named source (name → provider) its number, registers new ones, and
// returns all registered sources. It returns an error if a name belongs to another provider,
// because the stored events would be misread.
func RegisterSources(ctx context.Context, pool *pgxpool.Pool, providers map[string]string) (Sources, error) {
	registered := Sources{Number: map[string]int32{}, Name: map[int32]string{}, Provider: map[string]string{}}
	load := func() error {
		var number int32
		var name, prov string
		err := postgres.ForEach(ctx, pool, sourcesSQL, nil, []any{&number, &name, &prov}, func() error {
			registered.Number[name], registered.Name[number], registered.Provider[name] = number, name, prov
			return nil
		})
		if err != nil {
			return fmt.Errorf("read sources: %w", err)
		}
		return nil
	}
	if err := load(); err != nil {
		return registered, err
	}
	added := false
	// sorted, so that the same new sources get the same numbers everywhere
	for _, name := range slices.Sorted(maps.Keys(providers)) {
		if registered.Provider[name] == "" {
			added = true
			if _, err := pool.Exec(ctx, addSourceSQL, name, providers[name]); err != nil {
				return registered, fmt.Errorf("add source %s: %w", name, err)
			}
		}
	}
	if added {
		if err := load(); err != nil {
			return registered, err
		}
	}
	for name, prov := range providers {
		if stored := registered.Provider[name]; stored != prov {
			return registered, fmt.Errorf("source %s is stored as provider %s, the configuration says %s: %w", name,
				stored, prov, ErrOtherProvider)
		}
	}
	return registered, nil
}
