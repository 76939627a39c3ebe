package operations

import (
	"context"
	"fmt"
	"os"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/activity"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/watermarks"
)

// Source is a source of the log, or of the configuration of the process that responds.
type Source struct {
	Name     string `json:"name"`
	Provider string `json:"provider"`
	// AddedAt is when the source was registered; null if it is not registered yet.
	AddedAt events.Instant `json:"added_at"`
	// LastEventAt is when a delivery last brought a new event, reported once a minute; null if none
	// did.
	LastEventAt events.Instant `json:"last_event_at"`
	// SilentTypes is the number of event types that have been missing for unusually long.
	SilentTypes int64 `json:"silent_types"`
	// Configured: this process has the source in its configuration. Otherwise Settings is null.
	Configured bool            `json:"configured"`
	Settings   *SourceSettings `json:"settings"`
}

// SourceSettings are the settings of a source in the process that responds.
type SourceSettings struct {
	// Endpoint is the path of its ingest endpoint.
	Endpoint string         `json:"endpoint"`
	Secrets  []SourceSecret `json:"secrets"`
	// Account is the only tenant of the source, and Accounts are the allowed ones; empty: the
	// provider's default applies.
	Account  string   `json:"account"`
	Accounts []string `json:"accounts"`
	// MaxBodyBytes is the size of the largest accepted body.
	MaxBodyBytes int64 `json:"max_body_bytes"`
	// PerSecond and Burst limit accepted deliveries; 0: no limit.
	PerSecond int `json:"per_second"`
	Burst     int `json:"burst"`
	// AllowFrom are the networks that may send; empty: all.
	AllowFrom []string `json:"allow_from"`
	// RequireCommit: its deliveries never go to the spool.
	RequireCommit bool `json:"require_commit"`
	// API: the provider's API is configured.
	API bool `json:"api"`
}

// SourceSecret describes a signing secret without its value.
type SourceSecret struct {
	Name string `json:"name"`
	// From is env, file, or value, which is in the configuration itself. Place is the name of the
	// variable or file.
	From  string `json:"from"`
	Place string `json:"place,omitzero"`
	// ChangedAt is when the file was last changed; null if it is not in a file, or cannot be read.
	ChangedAt events.Instant `json:"changed_at"`
}

// SourceDetail is a source with the use of its secrets, and with until when its log and mirror are
// complete.
type SourceDetail struct {
	Source
	// SecretUses are how much its signing secrets were used in the last 30 days.
	SecretUses []activity.SecretUse      `json:"secret_uses"`
	Watermarks []watermarks.Completeness `json:"watermarks"`
}

// sourcesSQL reads the registered sources and the configured ones, which are $1 with providers $2.
// $3 is the position of the page, and $4 a name; "" for all. The types are MATERIALIZED, because a
// generic plan otherwise aggregates them once per source.
const sourcesSQL = `
WITH types AS MATERIALIZED (
  SELECT t.source, max(t.last_at) AS last_at, count(*) FILTER (WHERE ` + activity.IsSilentSQL + `) AS silent
  FROM source_types t WHERE $4 = '' OR t.source = (SELECT number FROM sources WHERE name = $4) GROUP BY t.source
)
SELECT coalesce(s.name, c.name), coalesce(s.provider, c.provider), s.added_at, t.last_at, coalesce(t.silent, 0)
FROM sources s FULL JOIN (SELECT * FROM unnest($1::text[], $2::text[]) AS c(name, provider)) c ON c.name = s.name
LEFT JOIN types t ON t.source = s.number
WHERE coalesce(s.name, c.name) > $3 AND ($4 = '' OR coalesce(s.name, c.name) = $4)
ORDER BY coalesce(s.name, c.name) LIMIT $5`

// Sources returns a page of the sources, by name: those of the log, and the configured ones of this
// process. Errors: events.ErrInvalid.
func Sources(ctx context.Context, pool *pgxpool.Pool, configured []config.Endpoint, p Page) (page events.Page[Source],
	err error) {
	if err := check(p); err != nil {
		return page, err
	}
	return events.ReadPage("list sources", p.Cursor, p.limit(), "", func(s *Source) string { return s.Name },
		func(after string, limit int) ([]Source, error) {
			return readSources(ctx, pool, configured, after, "", limit)
		})
}

// SourceName names a source.
type SourceName struct {
	Name string `json:"name"`
}

// ShowSource returns one source. Errors: events.ErrNotFound.
func ShowSource(ctx context.Context, pool *pgxpool.Pool, configured []config.Endpoint, p SourceName) (*SourceDetail,
	error) {
	found, err := readSources(ctx, pool, configured, "", p.Name, 1)
	if err != nil {
		return nil, fmt.Errorf("show source %s: %w", p.Name, err)
	}
	if len(found) == 0 {
		_, err := existingSource(ctx, pool, p.Name)
		return nil, err
	}
	out := &SourceDetail{Source: found[0], SecretUses: []activity.SecretUse{}, Watermarks: []watermarks.Completeness{}}
	if out.AddedAt.IsZero() {
		return out, nil
	}
	number, err := existingSource(ctx, pool, p.Name)
	if err != nil {
		return nil, err
	}
	if out.SecretUses, err = activity.SecretUses(ctx, pool, number); err != nil {
		return nil, err
	}
	complete, err := watermarks.List(ctx, pool, number, "", events.MaxLimit)
	if err != nil {
		return nil, err
	}
	out.Watermarks = append(out.Watermarks, complete.Items...)
	return out, nil
}

// readSources reads sources after a name, or the one with a name.
func readSources(ctx context.Context, pool *pgxpool.Pool, configured []config.Endpoint, after, name string,
	limit int) ([]Source, error) {
	var names, providers []string
	byName := map[string]config.Endpoint{}
	for _, e := range configured {
		names, providers = append(names, e.Source.Name), append(providers, e.Provider.Name())
		byName[e.Source.Name] = e
	}
	return postgres.Collect(ctx, pool, func(row pgx.CollectableRow) (s Source, err error) {
		err = row.Scan(&s.Name, &s.Provider, &s.AddedAt, &s.LastEventAt, &s.SilentTypes)
		if e, ok := byName[s.Name]; ok {
			s.Configured, s.Settings = true, sourceSettings(e)
		}
		return s, err
	}, sourcesSQL, names, providers, after, name, limit)
}

func sourceSettings(e config.Endpoint) *SourceSettings {
	s := &SourceSettings{Endpoint: "/webhooks/" + e.Source.Name, Secrets: []SourceSecret{}, Account: e.Source.Account,
		Accounts: append([]string{}, e.Source.Accounts...), MaxBodyBytes: e.MaxBodyBytes,
		PerSecond: e.RateLimit.PerSecond, Burst: e.RateLimit.Burst, AllowFrom: []string{},
		RequireCommit: e.RequireCommit, API: e.API != nil}
	for _, network := range e.AllowFrom {
		s.AllowFrom = append(s.AllowFrom, network.String())
	}
	for _, o := range e.SecretOrigins {
		s.Secrets = append(s.Secrets, sourceSecret(o))
	}
	return s
}

func sourceSecret(o config.SecretOrigin) SourceSecret {
	switch {
	case o.Env != "":
		return SourceSecret{Name: o.Name, From: "env", Place: o.Env}
	case o.File == "":
		return SourceSecret{Name: o.Name, From: "value"}
	}
	s := SourceSecret{Name: o.Name, From: "file", Place: o.File}
	if info, err := os.Stat(o.File); err == nil {
		s.ChangedAt = events.Instant{Time: info.ModTime()}
	}
	return s
}

// SourceTypeParams select event types.
type SourceTypeParams struct {
	Source string `json:"source,omitzero"`
	Silent *bool  `json:"silent,omitzero"`
	Page
}

// SourceTypes lists the event types that deliveries brought. Errors: events.ErrInvalid.
func SourceTypes(ctx context.Context, pool *pgxpool.Pool,
	p SourceTypeParams) (page events.Page[activity.SourceType], err error) {
	source, err := checkSource(ctx, pool, p, p.Source)
	if err != nil {
		return page, err
	}
	return activity.SourceTypes(ctx, pool, source, p.Silent, p.Cursor, p.limit())
}
