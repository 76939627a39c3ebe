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
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/runs"
)

// Answers has what senders ask for carried out without a person, for the sources that are set so: each request is one run. Any number of processes may.
type Answers struct {
	// Pool is connected as postern_processor.
	Pool   *pgxpool.Pool
	Logger *slog.Logger
	// Every is how often is looked for requests.
	Every time.Duration

	mu      sync.Mutex
	sources []string
}

// Replace makes these the sources whose requests are carried out.
func (a *Answers) Replace(sources []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.sources = sources
}

// Run looks for requests until ctx ends. Trouble is logged once per spell.
func (a *Answers) Run(ctx context.Context) error {
	troubled := false
	for ctx.Err() == nil {
		err := a.Tick(ctx)
		if err != nil && !troubled && ctx.Err() == nil {
			a.Logger.Warn("what senders ask for is not looked at; tried again", "error", err)
		}
		troubled = err != nil
		runs.Pause(ctx, a.Every)
	}
	return nil
}

// Tick asks for the redaction that each new request wants.
func (a *Answers) Tick(ctx context.Context) error {
	a.mu.Lock()
	names := a.sources
	a.mu.Unlock()
	if len(names) == 0 {
		return nil
	}
	sources, err := askers(ctx, a.Pool)
	if err != nil {
		return err
	}
	var bad []error
	for i := range sources {
		if slices.Contains(names, sources[i].name) {
			bad = append(bad, a.source(ctx, &sources[i]))
		}
	}
	return errors.Join(bad...)
}

// answersJob names the checkpoint of a source, up to which its requests were looked at.
func answersJob(source int32) string { return fmt.Sprint("redact_on_request/", source) }

const (
	// answeredToSQL: below the auditor's checkpoint nothing comes into the log any more.
	answeredToSQL = `
SELECT coalesce((SELECT c.cursor FROM checkpoints c WHERE c.job = $1 AND c.run = 0), 0), coalesce((SELECT c.cursor FROM checkpoints c WHERE c.job = 'auditor' AND c.run = 0), 0), clock_now()`

	answeredUpToSQL = `
INSERT INTO checkpoints AS c (job, run, cursor, leased_by, leased_until, updated_at) VALUES ($1, 0, $2, '', clock_now(), clock_now())
ON CONFLICT (job, run) DO UPDATE SET cursor = greatest(c.cursor, excluded.cursor), updated_at = excluded.updated_at`

	// askedSQL: nobody has proved what was imported, and what a person has asked for already is theirs.
	askedSQL = `SELECT e.id` + unanswered + ` AND e.origin = 'webhook' AND NOT EXISTS (SELECT FROM redacted d WHERE d.event = e.id)
  AND NOT EXISTS (SELECT FROM runs r WHERE r.job = 'redact' AND r.ended_at IS NULL AND r.asked->>'requested_by' = e.id::text) ORDER BY e.id`
)

// aDay is a day in ids: a partition, mostly.
const aDay = (24 * int64(time.Hour/time.Millisecond)) << 20

// source looks at the requests of a source that came since it last did. The checkpoint moves after they are in the ledger, where each has its key: whoever repeats this asks for nothing again.
func (a *Answers) source(ctx context.Context, s *asker) error {
	job := answersJob(s.number)
	var at, bound int64
	var now time.Time
	if err := a.Pool.QueryRow(ctx, answeredToSQL, job).Scan(&at, &bound, &now); err != nil {
		return fmt.Errorf("see how far requests of source %s were looked at: %w", s.name, err)
	}
	for at = max(at, events.FirstID(now.Add(-PendingWithin))); at < bound; {
		end := min(at+aDay, bound)
		ids, err := collect(ctx, a.Pool, askedSQL, at+1, end+1, s.number, s.types)
		if err != nil {
			return err
		}
		for _, id := range ids {
			if err := a.answer(ctx, id); err != nil {
				return err
			}
		}
		if _, err := a.Pool.Exec(ctx, answeredUpToSQL, job, end); err != nil {
			return fmt.Errorf("note how far requests of source %s were looked at: %w", s.name, err)
		}
		at = end
	}
	return nil
}

// answer enters the run that a request asks for, or says why it waits for a person. What was received after the request is not what it asks for: the shop may have come back.
func (a *Answers) answer(ctx context.Context, id int64) error {
	r, asks, err := request(ctx, a.Pool, id)
	if errors.Is(err, events.ErrNotFound) { // retention was faster
		return nil
	}
	if err != nil {
		return err
	}
	log := a.Logger.With("event_id", id, "source", r.Source, "type", r.Type)
	switch {
	case asks == nil:
		log.Warn("a sender's request waits for a person: see postern redact pending", "reason", r.Problem)
		return nil
	case asks.Kind != provider.EraseRedact:
		log.Info("a sender's request waits for a person: see postern redact pending", "due", r.Due)
		return nil
	case !asks.Proven:
		log.Warn("a sender's request waits for a person: see postern redact pending", "reason", "its body does not show what its type says, which is not signed", "due", r.Due)
		return nil
	}
	o, err := r.order(asks)
	if err != nil {
		return err
	}
	o.Until = id
	run, fresh, err := runs.AskOnce(ctx, a.Pool, runs.Order{Job: Job, Asked: o, Who: "postern", OnceKey: "redact_on_request " + strconv.FormatInt(id, 10), Said: r.Type,
		Reason: fmt.Sprintf("redact_on_request of source %s: asked for by event %d (%s)", r.Source, id, r.Type)})
	if fresh {
		log.Info("redaction asked for", "run", run)
	}
	return err
}
