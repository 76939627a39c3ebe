package admin

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
)

// StoredEventParams select stored events.
var StoredEventParams = append(slices.DeleteFunc(slices.Clone(EventParams), func(p Param) bool {
	return p == limitParam || p == cursorParam
}),
	Param{"ids", "Postern's ids of events, separated by commas"})

// ReplayParams select what to replay and how.
var ReplayParams = slices.Concat(StoredEventParams, []Param{
	{"rate", "maximum number of events per second, so that live traffic keeps its latency (default: no limit)"},
	{"mode", "effects of the changes that the replay makes: state (the default: none, now or later), missing (only " +
		"those without a ledger entry), force (as missing, and the effects of the events happen again; an operator " +
		"must approve the run). Events that are already applied make no change; only force repeats their effects"},
}, requestParams)

// jobs are the kinds of runs.
var jobs = []string{replay.Job, replay.RetryJob, rebuild.Job, retention.Job, redaction.Job, reconcile.Job}

// RunParams select runs.
var RunParams = []Param{{"job", strings.Join(jobs, ", ")},
	{"status", "awaiting_approval, queued, running, paused, done, failed, cancelled"},
	{"schedule", "name of the schedule that started the run"}, limitParam, cursorParam}

// ParseReplay reads ReplayParams. Errors: events.ErrInvalid.
func ParseReplay(ctx context.Context, pool *pgxpool.Pool, values url.Values) (*replay.Params, error) {
	q := newQuery(ctx, pool, values, ReplayParams)
	o := &replay.Params{Filter: q.storedEventFilter(), Input: map[string]string{}}
	for name := range maps.Keys(values) {
		if name != "rate" && name != "mode" &&
			!slices.ContainsFunc(requestParams, func(p Param) bool { return p.Name == name }) {
			o.Input[name] = values.Get(name)
		}
	}
	o.Rate = q.rate()
	o.Mode = replay.Mode(q.oneOf("mode", string(replay.State), string(replay.Missing), string(replay.Force)))
	return o, q.err
}

// storedEventFilter returns the filter of EventParams and ids.
func (q *query) storedEventFilter() events.Filter {
	f := q.eventFilter()
	if !q.values.Has("ids") {
		return f
	}
	if f.Objects != nil {
		q.fail("ids cannot be combined with an object: give one of them")
	}
	f.IDs = q.ids("ids")
	return f
}

// rate returns events per second; 0 where the parameter is absent.
func (q *query) rate() float64 {
	text := q.text("rate")
	if text == "" {
		return 0
	}
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil || !(rate >= 1) || rate > 1e6 {
		q.fail("rate %q: give a number of events per second, at least 1", text)
	}
	return rate
}

// ids returns event ids. It never returns nil, because an empty list selects nothing.
func (q *query) ids(name string) []int64 {
	ids := []int64{}
	for _, text := range strings.FieldsFunc(q.text(name), func(r rune) bool { return r == ',' || r == ' ' }) {
		id, ok := events.ParseID(text)
		if !ok {
			q.fail("%s: %q is not an event id of Postern", name, text)
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// ReplayPreview is the size of a replay.
type ReplayPreview struct {
	events.Preview
	// RepeatedEffects is the number of effects that would happen again, with replay.Force; nil for
	// other modes.
	RepeatedEffects *replay.ForcePreview `json:"again,omitempty"`
}

// PreviewReplay returns the size of a replay: estimated, or counted if exact is true.
func PreviewReplay(ctx context.Context, pool *pgxpool.Pool, o *replay.Params, exact bool) (p ReplayPreview, err error) {
	if o.Mode == replay.Force && !o.Publish {
		again, err := replay.PreviewForce(ctx, pool, o, exact)
		if err != nil {
			return p, err
		}
		p.RepeatedEffects = &again
	}
	preview := events.Estimate
	if exact {
		preview = events.Count
	}
	p.Preview, err = preview(ctx, pool, &o.Filter)
	return p, err
}

// Replay queues a replay that ParseReplay read from the values. A running processor executes it;
// with replay.Force only after an approval. Errors: events.ErrInvalid.
func Replay(ctx context.Context, pool *pgxpool.Pool, o *replay.Params, by Requester, values url.Values,
	expected int64) (*StartedRun, error) {
	request := replayRequest(o)
	request.Expected = expected
	return startRun(ctx, pool, by, "replay", request, replayParams(o, values))
}

// ExistingReplay returns the run that was started earlier with the same idempotency key, or nil. It
// exists even if nothing is left to replay. Errors: events.ErrInvalid.
func ExistingReplay(ctx context.Context, pool *pgxpool.Pool, o *replay.Params, values url.Values) (*StartedRun, error) {
	return existingRun(ctx, pool, replay.Job, replayParams(o, values))
}

// replayParams adds the flag publish, which is not in ReplayParams.
func replayParams(o *replay.Params, values url.Values) url.Values {
	if o.Publish {
		values = maps.Clone(values)
		values.Set("publish", "true")
	}
	return values
}

// replayRequest returns the request for a run of a replay.
func replayRequest(o *replay.Params) runs.Request {
	return runs.Request{Job: replay.Job, Params: o, NeedsApproval: o.Mode == replay.Force}
}

// Runs lists runs by RunParams. Errors: events.ErrInvalid.
func Runs(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[runs.Run], error) {
	q := newQuery(ctx, pool, values, RunParams)
	f := runs.Filter{Job: q.oneOf("job", jobs...),
		Status: runs.Status(q.oneOf("status", string(runs.AwaitingApproval), string(runs.Queued), string(runs.Running),
			string(runs.Paused),
			string(runs.Done), string(runs.Failed), string(runs.Cancelled))), Schedule: q.text("schedule")}
	limit := q.limit()
	if q.err != nil {
		return events.Page[runs.Run]{}, q.err
	}
	return runs.List(ctx, pool, f, q.text("cursor"), limit)
}

// runChanges maps an operator's command to the new status of a run.
var runChanges = map[string]runs.Status{"pause": runs.Paused, "resume": runs.Queued, "cancel": runs.Cancelled}

// ChangeRun pauses, resumes or cancels a run and returns the run. Errors: events.ErrNotFound,
// events.ErrInvalid.
func ChangeRun(ctx context.Context, pool *pgxpool.Pool, run int64, action string, by Requester) (*runs.Run, error) {
	to, ok := runChanges[action]
	if !ok {
		return nil, fmt.Errorf("%w: %q is not an action for a run: use pause, resume or cancel", events.ErrInvalid,
			action)
	}
	return changeRun(ctx, pool, run, "runs "+action, by,
		func(ctx context.Context, tx pgx.Tx) error { return runs.ChangeStatus(ctx, tx, run, to) })
}

// changeRun executes a change of a run and returns the run.
func changeRun(ctx context.Context, pool *pgxpool.Pool, run int64, action string, by Requester,
	do func(context.Context, pgx.Tx) error) (*runs.Run, error) {
	return change(ctx, pool, by, action, func(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry) (*runs.Run,
		error) {
		if err := do(ctx, tx); err != nil {
			return nil, err
		}
		e.Run, e.Target = run, fmt.Sprintf("run %d", run)
		return runs.Show(ctx, tx, run)
	})
}

// ApproveRun starts a run that awaits approval, with by's reason, and returns the run. Errors:
// events.ErrNotFound, events.ErrInvalid.
func ApproveRun(ctx context.Context, pool *pgxpool.Pool, run int64, by Requester) (*runs.Run, error) {
	return changeRun(ctx, pool, run, "runs approve", by,
		func(ctx context.Context, tx pgx.Tx) error { return runs.Approve(ctx, tx, run, by.String(), by.Reason) })
}
