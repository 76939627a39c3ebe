package events

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"
)

const ensurePartitionsSQL = `
SELECT ensure_partitions(m.ms, m.ms + $1) FROM (SELECT greatest(clock_ms(), (SELECT f.ms FROM log_floor f) + 1) AS ms) m`

// querier is what both a connection and a pool can do.
type querier interface {
	Exec(ctx context.Context, sql string, args ...any) (pgconn.CommandTag, error)
}

// EnsurePartitions makes the log's daily partitions from now until ahead from now, where they are missing.
func EnsurePartitions(ctx context.Context, db querier, ahead time.Duration) error {
	if _, err := db.Exec(ctx, ensurePartitionsSQL, ahead.Milliseconds()); err != nil {
		return fmt.Errorf("make partitions %s ahead: %w", ahead, err)
	}
	return nil
}

// partitionsUntilSQL walks the days from now on to the first that has no partition.
const partitionsUntilSQL = `
SELECT to_timestamp(d.day * 86400), to_timestamp(d.day * 86400) - clock_now()
FROM (SELECT clock_ms() / 86400000 AS today) t, generate_series(t.today, t.today + 400) AS d(day)
WHERE NOT EXISTS (SELECT FROM pg_class c JOIN pg_inherits i ON i.inhrelid = c.oid WHERE i.inhparent = 'events'::regclass AND NOT i.inhdetachpending
  AND c.relname = 'events_' || to_char(to_timestamp(d.day * 86400) AT TIME ZONE 'UTC', 'YYYYMMDD'))
ORDER BY d.day LIMIT 1`

// PartitionsUntil is the end of the last of the log's partitions from today on, without a gap, and how far ahead that is; at most 400 days.
func PartitionsUntil(ctx context.Context, pool *pgxpool.Pool) (until time.Time, left time.Duration, err error) {
	if err := pool.QueryRow(ctx, partitionsUntilSQL).Scan(&until, &left); err != nil {
		return until, 0, fmt.Errorf("look how far partitions are made ahead: %w", err)
	}
	return until, left, nil
}

const addSourceSQL = `INSERT INTO sources (name, provider) VALUES ($1, $2) ON CONFLICT (name) DO NOTHING`

const sourcesSQL = `SELECT number, name, provider FROM sources`

// Sources are the known sources, both ways.
type Sources struct {
	Number map[string]int32
	Name   map[int32]string
	// Provider is the provider's name by the source's.
	Provider map[string]string
}

// RegisterSources gives each named source (name → provider) its number, making it where it is new, and returns all that are
// known. A name that was another provider's before is an error: what is stored under it would be read wrongly.
func RegisterSources(ctx context.Context, pool *pgxpool.Pool, providers map[string]string) (Sources, error) {
	known := Sources{Number: map[string]int32{}, Name: map[int32]string{}, Provider: map[string]string{}}
	load := func() error {
		rows, err := pool.Query(ctx, sourcesSQL)
		if err != nil {
			return fmt.Errorf("read sources: %w", err)
		}
		var number int32
		var name, prov string
		_, err = pgx.ForEachRow(rows, []any{&number, &name, &prov}, func() error {
			known.Number[name], known.Name[number], known.Provider[name] = number, name, prov
			return nil
		})
		return err
	}
	if err := load(); err != nil {
		return known, err
	}
	added := false
	for _, name := range slices.Sorted(maps.Keys(providers)) { // so that the same sources have the same numbers wherever they are new
		if known.Provider[name] == "" {
			added = true
			if _, err := pool.Exec(ctx, addSourceSQL, name, providers[name]); err != nil {
				return known, fmt.Errorf("add source %s: %w", name, err)
			}
		}
	}
	if added {
		if err := load(); err != nil {
			return known, err
		}
	}
	for name, prov := range providers {
		if was := known.Provider[name]; was != prov {
			return known, fmt.Errorf("source %s is stored as provider %s, the configuration says %s: %w", name, was, prov, ErrOtherProvider)
		}
	}
	return known, nil
}
