package admin

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/replay"
)

// NewDryRun returns a dry run for the parameters of a replay. It reads events as the sources of
// these endpoints define. A replay of one source that is not among them is rejected with
// events.ErrInvalid. In other replays, events of such sources count as failed.
func NewDryRun(ctx context.Context, pool *pgxpool.Pool, endpoints []config.Endpoint,
	o *replay.Params) (*apply.DryRun, error) {
	if o.Publish {
		return nil, fmt.Errorf("%w: publish changes no object, so a dry run has no result: leave one of them out",
			events.ErrInvalid)
	}
	known, err := sources(ctx, pool)
	if err != nil {
		return nil, err
	}
	configured := ConfiguredSources(endpoints, known)
	if name := known.Name[o.Filter.Source]; o.Filter.Source != 0 && configured[name].Provider == nil {
		names := slices.Sorted(maps.Keys(configured))
		return nil, fmt.Errorf("%w: source %s is not in this configuration, so its "+
			"events cannot be read; the sources are %s", events.ErrInvalid, name, strings.Join(names, ", "))
	}
	return apply.NewDryRun(pool, configured, known)
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

// Limits of a dry run over HTTP. maxDryRunPaths limits the differing paths of one state in the
// response.
const (
	maxDryRunEvents  = 5000
	maxDryRunObjects = 1000
	maxDryRunBytes   = 32 << 20
	maxDryRunPaths   = 100
)

// dryRunResult lists what a replay would change.
type dryRunResult struct {
	DryRun bool `json:"dry_run"`
	// Counts are the numbers of events by the outcome that they would have; "processed" is their
	// sum.
	Counts  map[string]int64   `json:"counts"`
	Objects []apply.Difference `json:"objects"`
}

// errDryRunBusy is the response to a second dry run at the same time. Each may use much memory, so
// only one may run.
var errDryRunBusy = &problem{Status: http.StatusTooManyRequests, Type: "urn:postern:problem:busy",
	Title: "another dry run is in progress",
	Detail: "A process executes one dry run at a time. Try again when the other has " +
		"finished, or use postern replay --dry-run."}

func (h *handler) dryRunReplay(ctx context.Context, o *replay.Params) (any, error) {
	if h.Endpoints == nil {
		return nil, fmt.Errorf("%w: dry_run: this process has no sources; use postern replay --dry-run "+
			"--config FILE", events.ErrInvalid)
	}
	if !h.dryRunMu.TryLock() {
		return nil, errDryRunBusy
	}
	defer h.dryRunMu.Unlock()
	dryRun, err := NewDryRun(ctx, h.Pool, h.Endpoints(), o)
	if err != nil {
		return nil, err
	}
	dryRun.Objects, dryRun.Bytes = maxDryRunObjects, maxDryRunBytes
	out := dryRunResult{DryRun: true, Objects: []apply.Difference{}}
	out.Counts, err = replay.DryRun(ctx, h.Pool, dryRun, o, maxDryRunEvents, func(map[string]int64) {})
	if errors.Is(err, replay.ErrTooMany) || errors.Is(err, apply.ErrTooManyChanges) {
		return nil, &problem{Status: http.StatusUnprocessableEntity, Type: "urn:postern:problem:too-many",
			Title:  "too many for a dry run",
			Detail: err.Error() + ". Narrow the filter, or use postern replay --dry-run."}
	}
	if err != nil {
		return nil, err
	}
	err = dryRun.Differences(maxDryRunPaths, func(d apply.Difference) error {
		out.Objects = append(out.Objects, d)
		return nil
	})
	return out, err
}
