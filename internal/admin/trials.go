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

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/replay"
)

// NewTrial returns a trial for an order, whose events are read as the sources of these endpoints say. An order for one source that is not among
// them is refused with events.ErrInvalid; of other orders the events of such sources would fail, and are counted so.
func NewTrial(ctx context.Context, pool *pgxpool.Pool, endpoints []config.Endpoint, o *replay.Order) (*processor.Trial, error) {
	if o.Publish {
		return nil, fmt.Errorf("%w: what is published changes no object: a dry run has nothing to show", events.ErrInvalid)
	}
	known, err := sources(ctx, pool)
	if err != nil {
		return nil, err
	}
	configured := Configured(endpoints, known)
	if name := known.Name[o.Filter.Source]; o.Filter.Source != 0 && configured[name].Provider == nil {
		names := slices.Sorted(maps.Keys(configured))
		return nil, fmt.Errorf("%w: source %s is not in the configuration used here, so its events cannot be read; there are %s", events.ErrInvalid, name, strings.Join(names, ", "))
	}
	return processor.NewTrial(pool, configured, known)
}

// Configured are the sources of these endpoints that the log has events of, by name, as a processor reads them.
func Configured(endpoints []config.Endpoint, known events.Sources) map[string]processor.Source {
	configured := map[string]processor.Source{}
	for _, e := range endpoints {
		if number, ok := known.Number[e.Source.Name]; ok { // else it has stored nothing
			configured[e.Source.Name] = processor.Source{Number: number, Config: e.Source, Provider: e.Provider, Looker: e.Looker()}
		}
	}
	return configured
}

// The bounds of a dry run that is asked for over HTTP, and how many places of a state its answer has.
const (
	tryEvents  = 5000
	tryObjects = 1000
	tryBytes   = 32 << 20
	tryPlaces  = 100
)

// tried is what a replay would do.
type tried struct {
	DryRun bool `json:"dry_run"`
	// Counts are the events by the outcome they would have; "processed" is their sum.
	Counts  map[string]int64       `json:"counts"`
	Objects []processor.Difference `json:"objects"`
}

// errTrying answers who asks for a dry run beside another: what each holds in memory is bounded, so their number has to be as well.
var errTrying = &problem{Status: http.StatusTooManyRequests, Type: "urn:postern:problem:busy", Title: "another dry run is under way",
	Detail: "A process does one dry run at a time. Ask again when the other has ended, or use postern replay --dry-run."}

func (h *handler) tryReplay(ctx context.Context, o *replay.Order) (any, error) {
	if h.Endpoints == nil {
		return nil, fmt.Errorf("%w: dry_run: this process does not know the sources; use postern replay --dry-run --config FILE", events.ErrInvalid)
	}
	if !h.trying.TryLock() {
		return nil, errTrying
	}
	defer h.trying.Unlock()
	trial, err := NewTrial(ctx, h.Pool, h.Endpoints(), o)
	if err != nil {
		return nil, err
	}
	trial.Objects, trial.Bytes = tryObjects, tryBytes
	out := tried{DryRun: true, Objects: []processor.Difference{}}
	out.Counts, err = replay.Try(ctx, h.Pool, trial, o, tryEvents, func(map[string]int64) {})
	if errors.Is(err, replay.ErrTooMany) || errors.Is(err, processor.ErrTooMuch) {
		return nil, &problem{Status: http.StatusUnprocessableEntity, Type: "urn:postern:problem:too-many", Title: "too many for a dry run",
			Detail: err.Error() + ". Narrow the filter, or use postern replay --dry-run."}
	}
	if err != nil {
		return nil, err
	}
	err = trial.Differences(tryPlaces, func(d processor.Difference) error {
		out.Objects = append(out.Objects, d)
		return nil
	})
	return out, err
}
