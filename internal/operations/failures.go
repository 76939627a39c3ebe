package operations

import (
	"cmp"
	"context"
	"maps"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/versioning"
)

// FailureParams select failed and dead outcomes of live events.
type FailureParams struct {
	Status     string `json:"status,omitzero" validate:"omitempty,retry_status"`
	Source     string `json:"source,omitzero"`
	Type       string `json:"type,omitzero"`
	ObjectType string `json:"object_type,omitzero"`
	Since      Time   `json:"since,omitzero"`
}

// FailureGroup has the failures whose reasons differ only in variable parts.
type FailureGroup struct {
	// Pattern is the reason; … stands for each variable part, such as an id. The parameter
	// failure_pattern of outcomes and of a retry selects the group by it.
	Pattern string `json:"pattern"`
	Status  string `json:"status"`
	// The number of failures in the group.
	Count int `json:"count"`
	// Example is the reason of ExampleEvent, the newest event of the group.
	Example      string `json:"example"`
	ExampleEvent int64  `json:"example_event,string"`
	// FirstAt and LastAt are the times of the first and the last outcome of the group.
	FirstAt events.Instant `json:"first_at"`
	LastAt  events.Instant `json:"last_at"`
	// NextDue is the time of the next attempt; null if there is none.
	NextDue events.Instant `json:"next_due"`
	// Sources, EventTypes and ObjectTypes have at most 20 names each.
	Sources     []string `json:"sources"`
	EventTypes  []string `json:"event_types"`
	ObjectTypes []string `json:"object_types"`
}

// FailureGroups are the groups of failures, those with the most failures first.
type FailureGroups struct {
	Items []FailureGroup `json:"items"`
	// Examined is how many outcomes were read, the newest first.
	Examined int `json:"examined"`
	// Truncated is true if there are older failures, or more groups, than these.
	Truncated bool `json:"truncated"`
}

const (
	maxFailureGroups = 200
	maxFailureNames  = 20
)

// FailuresByReason groups the newest failures by the pattern of their reason. Errors:
// events.ErrInvalid.
func FailuresByReason(ctx context.Context, pool *pgxpool.Pool, p FailureParams) (*FailureGroups, error) {
	source, err := checkSource(ctx, pool, p, p.Source)
	if err != nil {
		return nil, err
	}
	found, read, err := apply.ListFailures(ctx, pool, apply.FailureFilter{Source: source,
		Status: versioning.Status(p.Status), Type: p.Type, ObjectType: p.ObjectType, Since: p.Since.at})
	if err != nil {
		return nil, err
	}
	groups := map[[2]string]*failureGroup{}
	for i := range found {
		f := &found[i]
		pattern := apply.FailurePattern(f.Reason)
		g := groups[[2]string{f.Status, pattern}]
		if g == nil {
			g = &failureGroup{FailureGroup: FailureGroup{Pattern: pattern, Status: f.Status,
				FirstAt: f.FirstAt}, sources: map[string]bool{},
				eventTypes: map[string]bool{}, objectTypes: map[string]bool{}}
			groups[[2]string{f.Status, pattern}] = g
		}
		g.add(f)
	}
	all := &FailureGroups{Items: []FailureGroup{}, Examined: read, Truncated: read == apply.MaxFailures}
	for _, g := range groups {
		g.Sources, g.EventTypes, g.ObjectTypes = someNames(g.sources), someNames(g.eventTypes), someNames(g.objectTypes)
		all.Items = append(all.Items, g.FailureGroup)
	}
	slices.SortFunc(all.Items, func(a, b FailureGroup) int {
		return cmp.Or(cmp.Compare(b.Count, a.Count), cmp.Compare(b.ExampleEvent, a.ExampleEvent))
	})
	if len(all.Items) > maxFailureGroups {
		all.Items, all.Truncated = all.Items[:maxFailureGroups], true
	}
	return all, nil
}

// failureGroup collects the failures of a group.
type failureGroup struct {
	FailureGroup
	sources, eventTypes, objectTypes map[string]bool
}

func (g *failureGroup) add(f *apply.Failures) {
	g.Count += f.Count
	if f.Event > g.ExampleEvent {
		g.ExampleEvent, g.Example = f.Event, f.Reason
	}
	if f.FirstAt.Before(g.FirstAt.Time) {
		g.FirstAt = f.FirstAt
	}
	if f.LastAt.After(g.LastAt.Time) {
		g.LastAt = f.LastAt
	}
	if !f.Due.IsZero() && (g.NextDue.IsZero() || f.Due.Before(g.NextDue.Time)) {
		g.NextDue = f.Due
	}
	g.sources[f.Source], g.eventTypes[f.EventType], g.objectTypes[f.ObjectType] = true, true, true
}

// someNames returns the first names of a set in order, without the empty one.
func someNames(set map[string]bool) []string {
	delete(set, "")
	all := append([]string{}, slices.Sorted(maps.Keys(set))...)
	return all[:min(len(all), maxFailureNames)]
}
