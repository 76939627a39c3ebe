package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/postern-gateway/postern/internal/effects/hindsight"
	"github.com/postern-gateway/postern/internal/events"
)

// planChanges bounds the changes of a look back that is asked for over HTTP; the time of any query bounds what it reads.
const planChanges = 1000

// EffectPlanParams choose what is looked back at.
var EffectPlanParams = []Param{{"rule", "name of the rule, as the process has it now"}, {"since", "changes by events stored from this time on: " + timeHelp}}

// plannedEffects are the changes that would have had effects, or have some that are gone.
type plannedEffects struct {
	DryRun bool `json:"dry_run"`
	// RuleVersion is the rule's, by which the ledger was asked.
	RuleVersion int                `json:"rule_version"`
	Changes     []hindsight.Change `json:"changes"`
	// Counts are the changes by what the ledger has of their keys; Odd are events that cannot be read as when they were applied, and were left out.
	Counts map[hindsight.Ledger]int64 `json:"counts"`
	Odd    int64                      `json:"odd"`
}

var errTooManyChanges = errors.New("more changes than can be told here")

// planEffects says which changes of the past would have had which effects. Nothing is written.
func (h *handler) planEffects(ctx context.Context, values url.Values) (any, error) {
	q := newQuery(ctx, h.Pool, values, EffectPlanParams)
	name, since := q.text("rule"), q.time("since")
	if q.err == nil && (name == "" || since.IsZero()) {
		q.fail("name the rule, and since when changes count")
	}
	if q.err != nil {
		return nil, q.err
	}
	if h.Endpoints == nil || h.Rule == nil {
		return nil, fmt.Errorf("%w: this process does not know the rules; use postern effects plan --config FILE", events.ErrInvalid)
	}
	rule, err := h.Rule(name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("rule %s: %w", name, err)
	case rule == nil:
		return nil, fmt.Errorf("rule %q: %w", name, events.ErrNotFound)
	}
	if !h.trying.TryLock() {
		return nil, errTrying
	}
	defer h.trying.Unlock()
	known, err := sources(ctx, h.Pool)
	if err != nil {
		return nil, err
	}
	out := plannedEffects{DryRun: true, RuleVersion: rule.Version, Changes: []hindsight.Change{}}
	n, err := hindsight.Plan(ctx, hindsight.Options{Pool: h.Pool, Known: known, Sources: Configured(h.Endpoints(), known), Rule: rule, Since: since}, func(some []hindsight.Change) error {
		if out.Changes = append(out.Changes, some...); len(out.Changes) > planChanges {
			return fmt.Errorf("%w: at most %d", errTooManyChanges, planChanges)
		}
		return nil
	})
	if errors.Is(err, errTooManyChanges) {
		return nil, &problem{Status: http.StatusUnprocessableEntity, Type: "urn:postern:problem:too-many", Title: "too many for a dry run", Detail: err.Error() + ". Give a later since, or use postern effects plan."}
	}
	if err != nil {
		return nil, err
	}
	out.Counts, out.Odd = n.Changes, n.Odd
	return out, nil
}
