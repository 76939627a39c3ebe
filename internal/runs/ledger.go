// Package runs is the ledger of jobs over the log: who asked for what, how far it is, what came of it. A run is carried out by one process
// at a time, which holds a lease on its checkpoint; any other goes on from there when that ends.
package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Status is how a run stands.
type Status string

// The statuses of a run. Done, failed and cancelled are final.
const (
	// Proposed waits for a person's approval.
	Proposed  Status = "proposed"
	Waiting   Status = "waiting"
	Running   Status = "running"
	Paused    Status = "paused"
	Done      Status = "done"
	Failed    Status = "failed"
	Cancelled Status = "cancelled"
)

// Final says that nothing more will happen to the run.
func (s Status) Final() bool { return s == Done || s == Failed || s == Cancelled }

// Run is a row of the ledger.
type Run struct {
	Run int64  `json:"run"`
	Job string `json:"job"`
	// Asked is what was asked for, in the job's own terms.
	Asked  json.RawMessage `json:"asked"`
	Who    string          `json:"who"`
	Reason string          `json:"reason"`
	// ApprovedBy let a run begin that was only proposed, for the reason Approval; "" where nobody had to.
	ApprovedBy string `json:"approved_by"`
	Approval   string `json:"approval"`
	// Approvals are all of them, the oldest first, each with what was approved.
	Approvals []Approval `json:"approvals,omitzero"`
	Status    Status     `json:"status"`
	// Detail says why a run failed, or of one that is under way what it waits for, or met at its last try (Troubles).
	Detail string `json:"detail"`
	// Troubles is how often in a row an open run was put off without getting on in between.
	Troubles int `json:"troubles,omitzero"`
	// Bound is the id up to which the log is read, 0 until the run has frozen it; Cursor, up to where everything has its outcome.
	Bound  int64 `json:"bound,string"`
	Cursor int64 `json:"cursor,string"`
	// Expected is how many events there will be, about; 0: nobody has estimated.
	Expected int64 `json:"expected"`
	// Counts are events by what became of them; "processed" is their sum, and "deduplicated" how many of them were found decided by the run already.
	Counts    map[string]int64 `json:"counts"`
	MadeAt    events.Instant   `json:"made_at"`
	StartedAt events.Instant   `json:"started_at"`
	EndedAt   events.Instant   `json:"ended_at"`
	UpdatedAt events.Instant   `json:"updated_at"`
	// Schedule is the schedule that the run is of, and PlannedAt the time it was planned for; "" and zero where somebody asked.
	Schedule  string         `json:"schedule,omitzero"`
	PlannedAt events.Instant `json:"planned_at,omitzero"`
	// OnceKey is the key under which it was asked for; what asks with that again gets this run.
	OnceKey string `json:"once_key,omitzero"`
	// HeldBy is the process that carries the run out, "" where none does now.
	HeldBy string `json:"held_by"`
	// Hand are events that were kept (Hold.Keep) and are not passed by the checkpoint.
	Hand []int64 `json:"-"`
}

// Approval is what a person let a run do that was proposed.
type Approval struct {
	// What was approved, in the job's own terms, "" where that is the run as a whole, and Said what the person was told.
	What string         `json:"what"`
	Said string         `json:"said"`
	Who  string         `json:"who"`
	Why  string         `json:"why"`
	At   events.Instant `json:"at"`
}

// Order is what somebody wants done.
type Order struct {
	Job         string
	Asked       any
	Who, Reason string
	// Expected is an estimate of the events, 0: none.
	Expected int64
	// Propose: it waits until a person approves it.
	Propose bool
	// OnceKey makes one run of all that ask with it, "": each is one. Said is what was asked for in the words of whoever asked, so that two
	// things asked for under one key are told apart.
	OnceKey, Said string
}

const runColumns = `r.run, r.job, r.asked, r.who, r.reason, r.status, r.detail, coalesce(r.bound, 0), coalesce(c.cursor, 0), coalesce(r.expected, 0), r.counts,
  r.made_at, r.started_at, r.ended_at, r.updated_at, coalesce(r.schedule, ''), r.planned_at, coalesce(r.once_key, ''),
  CASE WHEN c.leased_until > clock_now() AND r.status = 'running' THEN c.leased_by ELSE '' END, r.approved_by, r.approval, r.approvals, r.hand,
  CASE WHEN r.ended_at IS NULL THEN coalesce(c.troubles, 0) ELSE 0 END`

const (
	listSQL = `SELECT ` + runColumns + ` FROM runs r LEFT JOIN checkpoints c ON c.job = r.job AND c.run = r.run
WHERE r.run < $1 AND ($2::text IS NULL OR r.job = $2) AND ($3::text IS NULL OR r.status = $3)
  AND ($4::text IS NULL OR r.schedule = $4) ORDER BY r.run DESC LIMIT $5`

	showSQL = `SELECT ` + runColumns + ` FROM runs r LEFT JOIN checkpoints c ON c.job = r.job AND c.run = r.run WHERE r.run = $1`
)

// Filter chooses runs; what is zero chooses all.
type Filter struct {
	Job    string
	Status Status
	// Schedule is the name of the schedule that the run is of.
	Schedule string
}

// List returns a page of runs, the newest first. Errors: events.ErrInvalid.
func List(ctx context.Context, pool *pgxpool.Pool, f Filter, cursor string, limit int) (events.Page[Run], error) {
	var page events.Page[Run]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	below := int64(1) << 62
	if err := events.ReadCursor(cursor, &below); err != nil {
		return page, err
	}
	rows, err := pool.Query(ctx, listSQL, below, events.Optional(f.Job), events.Optional(string(f.Status)), events.Optional(f.Schedule), limit)
	if err != nil {
		return page, fmt.Errorf("list runs: %w", err)
	}
	if page.Items, err = pgx.CollectRows(rows, scan); err != nil {
		return page, fmt.Errorf("list runs: %w", err)
	}
	if len(page.Items) == limit {
		page.Next = events.MakeCursor(page.Items[limit-1].Run)
	}
	return page, nil
}

// Show returns one run. Errors: events.ErrNotFound.
func Show(ctx context.Context, db postgres.DB, run int64) (*Run, error) {
	rows, err := db.Query(ctx, showSQL, run)
	if err != nil {
		return nil, fmt.Errorf("show run %d: %w", run, err)
	}
	found, err := pgx.CollectExactlyOneRow(rows, scan)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("run %d: %w", run, events.ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("show run %d: %w", run, err)
	}
	return &found, nil
}

func scan(row pgx.CollectableRow) (Run, error) { return scanWith(row) }

// scanWith reads what follows the run's columns as well.
func scanWith(row pgx.CollectableRow, more ...any) (Run, error) {
	var r Run
	var started, ended, planned *time.Time
	err := row.Scan(append([]any{&r.Run, &r.Job, &r.Asked, &r.Who, &r.Reason, &r.Status, &r.Detail, &r.Bound, &r.Cursor, &r.Expected, &r.Counts,
		&r.MadeAt.Time, &started, &ended, &r.UpdatedAt.Time, &r.Schedule, &planned, &r.OnceKey, &r.HeldBy, &r.ApprovedBy, &r.Approval, &r.Approvals, &r.Hand, &r.Troubles}, more...)...)
	if len(r.Hand) == 0 {
		r.Hand = nil
	}
	if len(r.Approvals) == 0 {
		r.Approvals = nil
	}
	r.StartedAt, r.EndedAt, r.PlannedAt = instant(started), instant(ended), instant(planned)
	return r, err
}

// instant is zero for null.
func instant(at *time.Time) (i events.Instant) {
	if at != nil {
		i.Time = *at
	}
	return i
}

// The changes that a person may make to a run, each from some statuses to another.
var changes = map[Status][]Status{
	Paused:    {Waiting, Running},
	Waiting:   {Paused},
	Cancelled: {Proposed, Waiting, Running, Paused},
}

const changeSQL = `
UPDATE runs SET status = $2, ended_at = CASE WHEN $2 = 'cancelled' THEN clock_now() END, updated_at = clock_now()
WHERE run = $1 AND status = ANY($3::text[])`

// Change pauses a run (Paused), lets it go on (Waiting) or ends it for good (Cancelled). Whoever carries it out sees that at its next
// checkpoint. What the run has done stays done. Errors: events.ErrNotFound, and events.ErrInvalid where the run does not stand so.
func Change(ctx context.Context, db postgres.DB, run int64, to Status) error {
	done, err := db.Exec(ctx, changeSQL, run, to, changes[to])
	if err != nil {
		return fmt.Errorf("change run %d: %w", run, err)
	}
	if done.RowsAffected() > 0 {
		return nil
	}
	r, err := Show(ctx, db, run)
	if err != nil {
		return err
	}
	if r.Status == to || to == Waiting && r.Status == Running {
		return nil
	}
	if r.Status == Proposed {
		return fmt.Errorf("%w: run %d is proposed: approve it or cancel it (postern runs approve %d --reason WHY, postern runs cancel %d)", events.ErrInvalid, run, run, run)
	}
	return fmt.Errorf("%w: run %d is %s, so it cannot become %s", events.ErrInvalid, run, r.Status, to)
}

const approveSQL = `
UPDATE runs SET status = 'waiting', approved_by = $2, approval = $3, updated_at = clock_now(), proposal = '',
  approvals = approvals || jsonb_build_object('what', proposal, 'said', detail, 'who', $2::text, 'why', $3::text, 'at', clock_now())
WHERE run = $1 AND status = 'proposed'`

// Approve lets a proposed run begin. Errors: events.ErrNotFound, and events.ErrInvalid where the run is not proposed or no reason is given.
func Approve(ctx context.Context, db postgres.DB, run int64, who, reason string) error {
	if strings.TrimSpace(reason) == "" {
		return fmt.Errorf("%w: approve run %d: say why", events.ErrInvalid, run)
	}
	done, err := db.Exec(ctx, approveSQL, run, events.Text(who), events.Text(reason))
	if err != nil {
		return fmt.Errorf("approve run %d: %w", run, err)
	}
	if done.RowsAffected() > 0 {
		return nil
	}
	found, err := Show(ctx, db, run)
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: run %d is %s and waits for nobody's approval", events.ErrInvalid, run, found.Status)
}
