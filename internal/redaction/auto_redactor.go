package redaction

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/runs"
)

// AutoRedactor creates a run for each new redaction request of a sender, for the sources that are
// configured so. Several processes may run one at the same time.
type AutoRedactor struct {
	// Pool is connected as postern_processor.
	Pool   *pgxpool.Pool
	Logger *slog.Logger
	// Every is the interval of checks.
	Every time.Duration

	mu      sync.Mutex
	sources []string
}

// Replace sets the sources whose requests are executed.
func (a *AutoRedactor) Replace(sources []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sources = sources
}

// Run checks for requests until ctx ends. It logs only the first of consecutive errors.
func (a *AutoRedactor) Run(ctx context.Context) error {
	return lifecycle.Repeat(ctx, a.Every, nil, func(err error) {
		a.Logger.Warn("senders' redaction requests not checked; retrying", "error", err)
	}, func(ctx context.Context) (bool, error) { return false, a.Tick(ctx) })
}

// Tick starts the redaction of each new request.
func (a *AutoRedactor) Tick(ctx context.Context) error {
	a.mu.Lock()
	names := a.sources
	a.mu.Unlock()
	if len(names) == 0 {
		return nil
	}
	sources, err := requestSources(ctx, a.Pool)
	if err != nil {
		return err
	}
	var bad []error
	for i := range sources {
		if slices.Contains(names, sources[i].name) {
			bad = append(bad, a.processSource(ctx, &sources[i]))
		}
	}
	return errors.Join(bad...)
}

// autoRedactJob names the checkpoint of a source, up to which its requests were processed.
func autoRedactJob(source int32) string { return fmt.Sprint("redact_on_request/", source) }

const (
	// progressSQL reads the checkpoint of a source, and that of the republisher, below which the
	// log is complete.
	progressSQL = `
SELECT coalesce((SELECT c.cursor FROM checkpoints c WHERE c.job = $1 AND c.run = 0), 0), coalesce((SELECT c.cursor
	FROM checkpoints c WHERE c.job = 'republisher' AND c.run = 0), 0), clock_now()`

	saveProgressSQL = `
INSERT INTO checkpoints AS c (job, run, cursor, lease_owner, lease_until, updated_at)
	VALUES ($1, 0, $2, '', clock_now(),
	clock_now())
ON CONFLICT (job, run) DO UPDATE SET cursor = greatest(c.cursor, excluded.cursor), updated_at = excluded.updated_at`

	// newRequestsSQL excludes imported events, which are not verified, and requests for which an
	// operator has started a redaction.
	newRequestsSQL = `SELECT e.id` + openRequestSQL + ` AND e.origin = 'webhook' AND NOT EXISTS (SELECT
		FROM redacted_events d
		WHERE d.event = e.id)
  AND NOT EXISTS (SELECT FROM runs r WHERE r.job = 'redact' AND r.ended_at IS NULL
  	AND r.params->>'requested_by' = e.id::text) ORDER BY e.id`
)

// dayOfIDs is the number of ids in one day, usually a partition.
const dayOfIDs = (24 * int64(time.Hour/time.Millisecond)) << 20

// processSource processes the new requests of a source. The checkpoint advances after their runs
// are in the ledger, where each has an idempotency key. A repetition starts nothing twice.
func (a *AutoRedactor) processSource(ctx context.Context, s *requestSource) error {
	job := autoRedactJob(s.number)
	var at, bound int64
	var now time.Time
	if err := a.Pool.QueryRow(ctx, progressSQL, job).Scan(&at, &bound, &now); err != nil {
		return fmt.Errorf("read the progress of requests of source %s: %w", s.name, err)
	}
	for at = max(at, events.FirstID(now.Add(-PendingWithin))); at < bound; {
		end := min(at+dayOfIDs, bound)
		ids, err := collect(ctx, a.Pool, newRequestsSQL, at+1, end+1, s.number, s.types)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if err := a.startRun(ctx, id); err != nil {
				return err
			}
		}
		if _, err := a.Pool.Exec(ctx, saveProgressSQL, job, end); err != nil {
			return fmt.Errorf("save the progress of requests of source %s: %w", s.name, err)
		}
		at = end
	}
	return nil
}

// startRun starts the run of a request, or logs why it waits for an operator. Events received after
// the request stay, because the shop may have installed the app again.
func (a *AutoRedactor) startRun(ctx context.Context, id int64) error {
	r, erasure, err := readRequest(ctx, a.Pool, id)
	if errors.Is(err, events.ErrNotFound) { // its partition is dropped
		return nil
	}
	if err != nil {
		return err
	}
	log := a.Logger.With("event_id", id, "source", r.Source, "type", r.Type)
	switch {
	case erasure == nil:
		log.Warn("a sender's request waits for an operator: see postern redact pending", "reason", r.Problem)
		return nil
	case erasure.Kind != provider.EraseRedact:
		log.Info("a sender's request waits for an operator: see postern redact pending", "due", r.Due)
		return nil
	case !erasure.FullySigned:
		log.Warn("a sender's request waits for an operator: see postern redact pending", "reason",
			"its type is not signed, and its body does not confirm it", "due", r.Due)
		return nil
	}
	o, err := r.params(erasure)
	if err != nil {
		return err
	}
	o.Until = id
	run, created, err := runs.CreateIdempotent(ctx, a.Pool, runs.Request{Job: Job, Params: o, Actor: "postern",
		IdempotencyKey: "redact_on_request " + strconv.FormatInt(id, 10), ParamsText: r.Type,
		Reason: fmt.Sprintf("redact_on_request of source %s: requested by event %d (%s)", r.Source, id, r.Type)})
	if created {
		log.Info("redaction requested", "run", run)
	}
	return err
}
