package operations

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
)

// checkSource is check for parameters with a source. It returns the source's number.
func checkSource(ctx context.Context, pool *pgxpool.Pool, params any, source string) (int32, error) {
	if err := check(params); err != nil {
		return 0, err
	}
	return sourceNumber(ctx, pool, source)
}

// sourceNumber returns the number of the named source; 0 where no name is given, and without a
// pool. Errors: events.ErrInvalid for an unknown source.
func sourceNumber(ctx context.Context, pool *pgxpool.Pool, name string) (int32, error) {
	if name == "" || pool == nil {
		return 0, nil
	}
	known, err := sources(ctx, pool)
	if err != nil {
		return 0, err
	}
	number, ok := known.Number[name]
	if !ok {
		return 0, invalid("source %q is not known; the known sources are %s", name, sourceNames(known))
	}
	return number, nil
}

// existingSource returns the number of the named source. Errors: events.ErrNotFound.
func existingSource(ctx context.Context, pool *pgxpool.Pool, name string) (int32, error) {
	known, err := sources(ctx, pool)
	if err != nil {
		return 0, err
	}
	number, ok := known.Number[name]
	if !ok {
		return 0, fmt.Errorf("source %s: %w: the known sources are %s", name, events.ErrNotFound, sourceNames(known))
	}
	return number, nil
}

func sources(ctx context.Context, pool *pgxpool.Pool) (events.Sources, error) {
	return events.RegisterSources(ctx, pool, nil)
}

func sourceNames(known events.Sources) string {
	if len(known.Number) == 0 {
		return "none"
	}
	return strings.Join(slices.Sorted(maps.Keys(known.Number)), ", ")
}

// ConfiguredSources returns the sources of these endpoints that have events in the log, by name, in
// the form that a processor uses.
func ConfiguredSources(endpoints []config.Endpoint, known events.Sources) map[string]apply.Source {
	configured := map[string]apply.Source{}
	for _, e := range endpoints {
		if number, ok := known.Number[e.Source.Name]; ok { // otherwise it has no stored events
			configured[e.Source.Name] = apply.Source{Number: number, Config: e.Source, Provider: e.Provider,
				RefetchReader: e.RefetchReader()}
		}
	}
	return configured
}
