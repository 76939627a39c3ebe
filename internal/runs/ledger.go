// Package runs keeps the ledger of runs: long jobs over the log, such as replays, rebuilds and
// reconciliations. Commands, the admin interface and schedules create runs. Processors execute them
// under a lease, save checkpoints, and publish the end of each run. The package does not know what
// a job does.
package runs

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
)

// Status is the state of a run.
type Status string

// The statuses of a run. Done, Failed and Cancelled end it.
const (
	// AwaitingApproval waits for an operator's approval.
	AwaitingApproval Status = "awaiting_approval"
	Queued           Status = "queued"
	Running          Status = "running"
	Paused           Status = "paused"
	Done             Status = "done"
	Failed           Status = "failed"
	Cancelled        Status = "cancelled"
)

// Ended reports whether the run has ended. An ended run never changes again.
func (s Status) Ended() bool { return s == Done || s == Failed || s == Cancelled }

// Run is a row of the ledger.
type Run struct {
	ID  int64  `json:"run"`
	Job string `json:"job"`
	// Params are the parameters of the job, in a format that the job defines.
	Params json.RawMessage `json:"params"`
	Actor  string          `json:"actor"`
	Reason string          `json:"reason"`
	// ApprovedBy is the operator who approved the run, and ApprovalReason the reason. Both are
	// empty where the run needed no approval.
	ApprovedBy     string `json:"approved_by"`
	ApprovalReason string `json:"approval_reason"`
	// Approvals lists all approvals, the oldest first, each with its subject.
	Approvals []Approval `json:"approvals,omitzero"`
	Status    Status     `json:"status"`
	// Detail is the reason of a failure. In an open run it says what the run waits for, or the
	// error of the last attempt (ConsecutiveFailures).
	Detail string `json:"detail"`
	// ConsecutiveFailures counts how often an open run was deferred since it last made progress.
	ConsecutiveFailures int `json:"deferrals,omitzero"`
	// Bound is the event id up to which the run reads the log; 0 until the run has set it. Every
	// event up to Cursor has its outcome.
	Bound  int64 `json:"bound,string"`
	Cursor int64 `json:"cursor,string"`
	// Expected is an estimate of the number of events; 0 means that there is no estimate.
	Expected int64 `json:"expected"`
	// Counts are the numbers of events by outcome. "processed" is their sum. "deduplicated" counts
	// events that the run had decided before.
	Counts    map[string]int64 `json:"counts"`
	CreatedAt events.Instant   `json:"created_at"`
	StartedAt events.Instant   `json:"started_at"`
	EndedAt   events.Instant   `json:"ended_at"`
	UpdatedAt events.Instant   `json:"updated_at"`
	// Schedule is the name of the schedule that created the run, and PlannedAt its planned time.
	// Both are empty where an operator requested the run.
	Schedule  string         `json:"schedule,omitzero"`
	PlannedAt events.Instant `json:"planned_at,omitzero"`
	// IdempotencyKey identifies the request. A second request with the same key gets this run.
	IdempotencyKey string `json:"idempotency_key,omitzero"`
	// LeaseOwner is the process that executes the run now; "" if none does.
	LeaseOwner string `json:"lease_owner"`
	// StalledSince is when a running run last made progress, if that was a minute ago or earlier;
	// else null. Without a LeaseOwner, no process executes the run.
	StalledSince events.Instant `json:"stalled_since"`
	// InProgress are events that MarkInProgress recorded and that the checkpoint has not passed
	// yet.
	InProgress []int64 `json:"-"`
}

// Approval is an operator's decision to let a run continue.
type Approval struct {
	// Subject says what was approved, in the job's own format; "" means the run as a whole. Message
	// is the text that the operator saw.
	Subject string         `json:"subject"`
	Message string         `json:"message"`
	Actor   string         `json:"actor"`
	Reason  string         `json:"reason"`
	At      events.Instant `json:"at"`
}

// Request describes a run to create.
type Request struct {
	Job           string
	Params        any
	Actor, Reason string
	// Expected is an estimate of the number of events; 0 means that there is none.
	Expected int64
	// NeedsApproval makes the run wait until an operator approves it.
	NeedsApproval bool
	// IdempotencyKey makes all requests with the same key one run; "" creates a run for each
	// request. ParamsText are the parameters as the requester wrote them. A request with the same
	// key and other ParamsText is an error.
	IdempotencyKey, ParamsText string
}

// runColumns are the columns of a Run, in the order of its fields.
const runColumns = `r.run, r.job, r.params, r.actor, r.reason, r.approved_by, r.approval_reason,
	nullif(r.approvals, '[]'), r.status, r.detail, CASE WHEN r.ended_at IS NULL THEN coalesce(c.deferrals, 0)
		ELSE 0 END,
	coalesce(r.bound, 0), coalesce(c.cursor, 0), coalesce(r.expected, 0), r.counts, r.created_at, r.started_at,
	r.ended_at, r.updated_at, coalesce(r.schedule, ''), r.planned_at, coalesce(r.idempotency_key, ''),
	CASE WHEN c.lease_until > clock_now() AND r.status = 'running' THEN c.lease_owner ELSE '' END,
	CASE WHEN r.status = 'running' AND r.updated_at <= clock_now() - interval '1 minute' THEN r.updated_at END,
	nullif(r.in_progress, '{}')`

const (
	listSQL = `SELECT ` + runColumns + ` FROM runs r LEFT JOIN checkpoints c ON c.job = r.job AND c.run = r.run
WHERE r.run < $1 AND ($2::text IS NULL OR r.job = $2) AND ($3::text IS NULL OR r.status = $3)
  AND ($4::text IS NULL OR r.schedule = $4) ORDER BY r.run DESC LIMIT $5`

	showSQL = `SELECT ` + runColumns + ` FROM runs r LEFT JOIN checkpoints c ON c.job = r.job AND c.run = r.run
		WHERE r.run = $1`
)

// Filter selects runs. An empty field selects all.
type Filter struct {
	Job    string
	Status Status
	// Schedule is the name of the schedule that created the run.
	Schedule string
}

// List returns a page of runs, the newest first. Errors: events.ErrInvalid.
func List(ctx context.Context, pool *pgxpool.Pool, f Filter, cursor string, limit int) (events.Page[Run], error) {
	return events.ReadPage("list runs", cursor, limit, int64(1)<<62, func(r *Run) int64 { return r.ID },
		func(below int64, limit int) ([]Run, error) {
			return postgres.Collect(ctx, pool, pgx.RowToStructByPos[Run], listSQL, below, events.NilIfZero(f.Job),
				events.NilIfZero(string(f.Status)), events.NilIfZero(f.Schedule), limit)
		})
}

// Show returns one run. Errors: events.ErrNotFound.
func Show(ctx context.Context, db postgres.DB, run int64) (*Run, error) {
	found, err := postgres.CollectOne(ctx, db, pgx.RowToStructByPos[Run], showSQL, run)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil, fmt.Errorf("run %d: %w", run, events.ErrNotFound)
	case err != nil:
		return nil, fmt.Errorf("show run %d: %w", run, err)
	}
	return &found, nil
}

// allowedChanges lists for each new status the statuses from which an operator may set it.
var allowedChanges = map[Status][]Status{
	Paused:    {Queued, Running},
	Queued:    {Paused},
	Cancelled: {AwaitingApproval, Queued, Running, Paused},
}

// changeStatusSQL does not cancel a rebuild that has replaced objects, as its transactions count
// them: the others would stay as the old rule made them.
const changeStatusSQL = `
UPDATE runs SET status = $2, ended_at = CASE WHEN $2 = 'cancelled' THEN clock_now() END, updated_at = clock_now()
WHERE run = $1 AND status = ANY($3::text[]) AND NOT ($2 = 'cancelled' AND job = 'rebuild' AND counts ? 'swapped')`

// ChangeStatus pauses a run (Paused), continues it (Queued) or cancels it (Cancelled). The process
// that executes it notices the change at its next checkpoint. Work that is done stays done. Errors:
// events.ErrNotFound, and events.ErrInvalid where the run's status does not allow the change.
func ChangeStatus(ctx context.Context, db postgres.DB, run int64, to Status) error {
	tag, err := db.Exec(ctx, changeStatusSQL, run, to, allowedChanges[to])
	if err != nil {
		return fmt.Errorf("change run %d: %w", run, err)
	}
	if tag.RowsAffected() > 0 {
		return nil
	}
	r, err := Show(ctx, db, run)
	if err != nil {
		return err
	}
	if r.Status == to || to == Queued && r.Status == Running {
		return nil
	}
	if r.Status == AwaitingApproval {
		return fmt.Errorf("%w: run %d awaits approval: approve it or cancel it (postern runs approve %d --reason "+
			"TEXT, postern runs cancel %d)", events.ErrInvalid, run, run, run)
	}
	if to == Cancelled && !r.Status.Ended() {
		return fmt.Errorf("%w: run %d has replaced objects already, and it replaces the others before it ends: "+
			"let it finish (postern runs resume %d if it is paused)", events.ErrInvalid, run, run)
	}
	return fmt.Errorf("%w: run %d is %s, so it cannot become %s", events.ErrInvalid, run, r.Status, to)
}

const approveSQL = `
UPDATE runs SET status = 'queued', approved_by = $2, approval_reason = $3, updated_at = clock_now(), proposal = '',
  approvals = approvals || jsonb_build_object('subject', proposal, 'message', detail, 'actor', $2::text,
    'reason', $3::text, 'at', clock_now())
WHERE run = $1 AND status = 'awaiting_approval'`

// Approve lets a run start that awaits approval. Errors: events.ErrNotFound, and events.ErrInvalid
// where the run does not await approval or the reason is empty.
func Approve(ctx context.Context, db postgres.DB, run int64, actor, reason string) error {
	if strings.TrimSpace(reason) == "" {
		return fmt.Errorf("%w: approve run %d: give a reason", events.ErrInvalid, run)
	}
	tag, err := db.Exec(ctx, approveSQL, run, events.SanitizeText(actor), events.SanitizeText(reason))
	if err != nil {
		return fmt.Errorf("approve run %d: %w", run, err)
	}
	if tag.RowsAffected() > 0 {
		return nil
	}
	found, err := Show(ctx, db, run)
	if err != nil {
		return err
	}
	return fmt.Errorf("%w: run %d is %s and does not await approval", events.ErrInvalid, run, found.Status)
}
