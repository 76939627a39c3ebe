package admin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"

	"github.com/postern-gateway/postern/internal/effects/jobs/backtest"
	"github.com/postern-gateway/postern/internal/events"
)

// maxBacktestChanges limits the changes in the response of a backtest over HTTP. The query timeout
// limits what it reads.
const maxBacktestChanges = 1000

// BacktestParams select the rule and the time range of a backtest.
var BacktestParams = []Param{{"rule", "name of a rule in the current configuration"},
	{"since", "only changes by events stored from this time on: " + timeHelp}}

// backtestResult contains the changes for which the rule would have had effects, or has effects
// that were since deleted.
type backtestResult struct {
	DryRun bool `json:"dry_run"`
	// RuleVersion is the version of the rule that was compared with the ledger.
	RuleVersion int               `json:"rule_version"`
	Changes     []backtest.Change `json:"changes"`
	// Counts are the numbers of changes by the state of their key in the ledger. Anomalies counts
	// events that are now read differently than when they were applied. They are skipped.
	Counts    map[backtest.Ledger]int64 `json:"counts"`
	Anomalies int64                     `json:"anomalies"`
}

var errTooManyChanges = errors.New("too many changes for one response")

// backtestEffects lists the effects that a rule would have had for past changes. It writes nothing.
func (h *handler) backtestEffects(ctx context.Context, values url.Values) (any, error) {
	q := newQuery(ctx, h.Pool, values, BacktestParams)
	name, since := q.text("rule"), q.time("since")
	if q.err == nil && (name == "" || since.IsZero()) {
		q.fail("name the rule, and give since: the start of the time range")
	}
	if q.err != nil {
		return nil, q.err
	}
	if h.Endpoints == nil || h.Rule == nil {
		return nil, fmt.Errorf("%w: this process has no rules; use postern effects backtest --config FILE",
			events.ErrInvalid)
	}
	rule, err := h.Rule(name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("rule %s: %w", name, err)
	case rule == nil:
		return nil, fmt.Errorf("rule %q: %w", name, events.ErrNotFound)
	}
	if !h.dryRunMu.TryLock() {
		return nil, errDryRunBusy
	}
	defer h.dryRunMu.Unlock()
	known, err := sources(ctx, h.Pool)
	if err != nil {
		return nil, err
	}
	out := backtestResult{DryRun: true, RuleVersion: rule.Version, Changes: []backtest.Change{}}
	n, err := backtest.Run(ctx, backtest.Options{Pool: h.Pool, RegisteredSources: known,
		Sources: ConfiguredSources(h.Endpoints(), known), Rule: rule, Since: since},
		func(some []backtest.Change) error {
			if out.Changes = append(out.Changes, some...); len(out.Changes) > maxBacktestChanges {
				return fmt.Errorf("%w: at most %d", errTooManyChanges, maxBacktestChanges)
			}
			return nil
		})
	if errors.Is(err, errTooManyChanges) {
		return nil, &problem{Status: http.StatusUnprocessableEntity, Type: "urn:postern:problem:too-many",
			Title:  "too many for a dry run",
			Detail: err.Error() + ". Give a later since, or use postern effects backtest."}
	}
	if err != nil {
		return nil, err
	}
	out.Counts, out.Anomalies = n.Changes, n.Anomalies
	return out, nil
}
