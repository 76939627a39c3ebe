package operations

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/effects/jobs/backtest"
	"github.com/postern-gateway/postern/internal/effects/rules"
	"github.com/postern-gateway/postern/internal/replay"
)

// NewDryRun returns a dry run for the parameters of a replay. It reads events as the sources of
// these endpoints define. A replay of one source that is not among them is rejected with
// events.ErrInvalid. In other replays, events of such sources count as failed.
func NewDryRun(ctx context.Context, pool *pgxpool.Pool, endpoints []config.Endpoint,
	o *replay.Params) (*apply.DryRun, error) {
	if o.Publish {
		return nil, invalid("publish changes no object, so a dry run has no result: leave out publish or dry_run")
	}
	known, err := sources(ctx, pool)
	if err != nil {
		return nil, err
	}
	configured := ConfiguredSources(endpoints, known)
	if name := known.Name[o.Filter.Source]; o.Filter.Source != 0 && configured[name].Provider == nil {
		return nil, invalid("source %s is not in this configuration, so its events cannot be read; the sources are %s",
			name, strings.Join(slices.Sorted(maps.Keys(configured)), ", "))
	}
	return apply.NewDryRun(pool, configured, known)
}

// Limits of a dry run whose result is one response. maxDryRunPaths limits the differing paths of
// one state. The time limit of the request limits what a backtest reads.
const (
	maxDryRunEvents    = 5000
	maxDryRunObjects   = 1000
	maxDryRunBytes     = 32 << 20
	maxDryRunPaths     = 100
	maxBacktestChanges = 1000
)

// TooManyError is the error of a dry run whose result is too large for one response.
type TooManyError struct {
	Err error
	// Advice says how to make it smaller.
	Advice string
}

func (e *TooManyError) Error() string { return e.Err.Error() + ". " + e.Advice }
func (e *TooManyError) Unwrap() error { return e.Err }

// DryRunResult lists what a replay would change.
type DryRunResult struct {
	DryRun bool `json:"dry_run"`
	// Counts are the numbers of events by the outcome that they would have; "processed" is their
	// sum.
	Counts  map[string]int64   `json:"counts"`
	Objects []apply.Difference `json:"objects"`
}

// DryRunReplay returns what a replay would change, and changes nothing. Errors: events.ErrInvalid,
// *TooManyError.
func DryRunReplay(ctx context.Context, pool *pgxpool.Pool, endpoints []config.Endpoint,
	o *replay.Params) (*DryRunResult, error) {
	dryRun, err := NewDryRun(ctx, pool, endpoints, o)
	if err != nil {
		return nil, err
	}
	dryRun.Objects, dryRun.Bytes = maxDryRunObjects, maxDryRunBytes
	out := &DryRunResult{DryRun: true, Objects: []apply.Difference{}}
	out.Counts, err = replay.DryRun(ctx, pool, dryRun, o, maxDryRunEvents, func(map[string]int64) {})
	if errors.Is(err, replay.ErrTooMany) || errors.Is(err, apply.ErrTooManyChanges) {
		return nil, &TooManyError{err, "Narrow the filter, or use postern replay --dry-run."}
	}
	if err != nil {
		return nil, err
	}
	return out, dryRun.Differences(maxDryRunPaths, func(d apply.Difference) error {
		out.Objects = append(out.Objects, d)
		return nil
	})
}

// BacktestParams select the rule and the time range of a backtest.
type BacktestParams struct {
	Rule  string `json:"rule,omitzero"`
	Since Time   `json:"since,omitzero"`
}

// Check returns an error unless both are given. Errors: events.ErrInvalid.
func (p *BacktestParams) Check() error {
	if p.Rule == "" || p.Since.IsZero() {
		return invalid("name the rule, and give since: the start of the time range")
	}
	return nil
}

// BacktestResult contains the changes for which the rule would have had effects, or has effects
// that were since deleted.
type BacktestResult struct {
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

// BacktestEffects lists the effects that a rule would have had for past changes. It writes nothing.
// Errors: *TooManyError.
func BacktestEffects(ctx context.Context, pool *pgxpool.Pool, endpoints []config.Endpoint, rule *rules.Rule,
	since Time) (*BacktestResult, error) {
	known, err := sources(ctx, pool)
	if err != nil {
		return nil, err
	}
	out := &BacktestResult{DryRun: true, RuleVersion: rule.Version, Changes: []backtest.Change{}}
	n, err := backtest.Run(ctx, backtest.Options{Pool: pool, RegisteredSources: known,
		Sources: ConfiguredSources(endpoints, known), Rule: rule, Since: since.at},
		func(some []backtest.Change) error {
			if out.Changes = append(out.Changes, some...); len(out.Changes) > maxBacktestChanges {
				return fmt.Errorf("%w: at most %d", errTooManyChanges, maxBacktestChanges)
			}
			return nil
		})
	if errors.Is(err, errTooManyChanges) {
		return nil, &TooManyError{err, "Give a later since, or use postern effects backtest."}
	}
	if err != nil {
		return nil, err
	}
	out.Counts, out.Anomalies = n.Changes, n.Anomalies
	return out, nil
}
