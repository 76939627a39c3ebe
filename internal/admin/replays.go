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

	"github.com/postern-gateway/postern/internal/audit"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/rebuild"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
)

// StoredParams choose stored events.
var StoredParams = append(slices.DeleteFunc(slices.Clone(EventParams), func(p Param) bool { return p == limitParam || p == cursorParam }),
	Param{"ids", "our ids of events, separated by commas"})

// ReplayParams choose what to replay and how.
var ReplayParams = slices.Concat(StoredParams, []Param{
	{"rate", "at most so many events per second, so that live traffic keeps its latency (default: as fast as it goes)"},
	{"mode", "which effects there are of what the replay changes: state (none, the default, and none come later), missing (those that have no ledger entry), force (as missing, and what had followed from the events happens again; a person must approve the run). What was changed before is not changed again; only force has it followed again"},
}, onceParams)

// jobs are what runs are made for.
var jobs = []string{replay.Job, replay.RetryJob, rebuild.Job, retention.Job, redaction.Job, reconcile.Job}

// RunParams choose runs.
var RunParams = []Param{{"job", strings.Join(jobs, ", ")}, {"status", "proposed, waiting, running, paused, done, failed, cancelled"}, {"schedule", "name of the schedule that the run is of"}, limitParam, cursorParam}

// PlanReplay reads ReplayParams. Errors: events.ErrInvalid.
func PlanReplay(ctx context.Context, pool *pgxpool.Pool, values url.Values) (*replay.Order, error) {
	q := newQuery(ctx, pool, values, ReplayParams)
	o := &replay.Order{Filter: q.chosen(), Words: map[string]string{}}
	for name := range maps.Keys(values) {
		if name != "rate" && name != "mode" && !slices.ContainsFunc(onceParams, func(p Param) bool { return p.Name == name }) {
			o.Words[name] = values.Get(name)
		}
	}
	o.Rate = q.rate()
	o.Mode = replay.Mode(q.oneOf("mode", string(replay.State), string(replay.Missing), string(replay.Force)))
	return o, q.err
}

// chosen is the filter of EventParams and ids.
func (q *query) chosen() events.Filter {
	f := q.events()
	if !q.values.Has("ids") {
		return f
	}
	if f.Objects != nil {
		q.fail("ids and an object: give the one or the other")
	}
	f.IDs = q.ids("ids")
	return f
}

// rate is in events per second; 0 where it is absent.
func (q *query) rate() float64 {
	text := q.text("rate")
	if text == "" {
		return 0
	}
	rate, err := strconv.ParseFloat(text, 64)
	if err != nil || !(rate >= 1) || rate > 1e6 {
		q.fail("rate %q: events per second, at least 1", text)
	}
	return rate
}

// ids are never nil: an empty list chooses nothing.
func (q *query) ids(name string) []int64 {
	ids := []int64{}
	for _, text := range strings.FieldsFunc(q.text(name), func(r rune) bool { return r == ',' || r == ' ' }) {
		id, ok := events.ParseID(text)
		if !ok {
			q.fail("%s: %q is none of our ids", name, text)
		}
		ids = append(ids, id)
	}
	slices.Sort(ids)
	return slices.Compact(ids)
}

// ReplayPreview is how much would be replayed.
type ReplayPreview struct {
	events.Preview
	// Again is how many effects would happen again, with replay.Force; nil: none would.
	Again *replay.AgainPreview `json:"again,omitempty"`
}

// PreviewReplay says how much would be replayed: estimated, or counted if exact.
func PreviewReplay(ctx context.Context, pool *pgxpool.Pool, o *replay.Order, exact bool) (p ReplayPreview, err error) {
	if o.Mode == replay.Force && !o.Publish {
		again, err := replay.PreviewAgain(ctx, pool, o, exact)
		if err != nil {
			return p, err
		}
		p.Again = &again
	}
	look := events.Estimate
	if exact {
		look = events.Count
	}
	p.Preview, err = look(ctx, pool, &o.Filter)
	return p, err
}

// Replay enters a replay, which PlanReplay made of the values, into the ledger; a running processor carries it out, with replay.Force once it is
// approved. Errors: events.ErrInvalid.
func Replay(ctx context.Context, pool *pgxpool.Pool, o *replay.Order, by By, values url.Values, expected int64) (*Asked, error) {
	order := replayed(o)
	order.Expected = expected
	return ask(ctx, pool, by, "replay", order, saidOfReplay(o, values))
}

// EarlierReplay is EarlierRetry of a replay.
func EarlierReplay(ctx context.Context, pool *pgxpool.Pool, o *replay.Order, values url.Values) (*Asked, error) {
	return earlier(ctx, pool, replay.Job, saidOfReplay(o, values))
}

// saidOfReplay has the flag that is no parameter.
func saidOfReplay(o *replay.Order, values url.Values) url.Values {
	if o.Publish {
		values = maps.Clone(values)
		values.Set("publish", "true")
	}
	return values
}

// replayed is a replay as the ledger has it.
func replayed(o *replay.Order) runs.Order {
	return runs.Order{Job: replay.Job, Asked: o, Propose: o.Mode == replay.Force}
}

// Runs lists runs by RunParams. Errors: events.ErrInvalid.
func Runs(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[runs.Run], error) {
	q := newQuery(ctx, pool, values, RunParams)
	f := runs.Filter{Job: q.oneOf("job", jobs...), Status: runs.Status(q.oneOf("status", string(runs.Proposed), string(runs.Waiting), string(runs.Running), string(runs.Paused),
		string(runs.Done), string(runs.Failed), string(runs.Cancelled))), Schedule: q.text("schedule")}
	limit := q.limit()
	if q.err != nil {
		return events.Page[runs.Run]{}, q.err
	}
	return runs.List(ctx, pool, f, q.text("cursor"), limit)
}

// changes are what a person may do to a run, by the word for it.
var changes = map[string]runs.Status{"pause": runs.Paused, "resume": runs.Waiting, "cancel": runs.Cancelled}

// ChangeRun pauses, resumes or cancels a run and returns it as it stands then. Errors: events.ErrNotFound, events.ErrInvalid.
func ChangeRun(ctx context.Context, pool *pgxpool.Pool, run int64, what string, by By) (*runs.Run, error) {
	to, ok := changes[what]
	if !ok {
		return nil, fmt.Errorf("%w: %q is nothing that can be done to a run", events.ErrInvalid, what)
	}
	return steer(ctx, pool, run, "runs "+what, by, func(ctx context.Context, tx pgx.Tx) error { return runs.Change(ctx, tx, run, to) })
}

// steer changes a run and returns it as it stands then.
func steer(ctx context.Context, pool *pgxpool.Pool, run int64, action string, by By, do func(context.Context, pgx.Tx) error) (*runs.Run, error) {
	return change(ctx, pool, by, action, func(ctx context.Context, tx pgx.Tx, e *audit.Entry) (*runs.Run, error) {
		if err := do(ctx, tx); err != nil {
			return nil, err
		}
		e.Run, e.Target = run, fmt.Sprintf("run %d", run)
		return runs.Show(ctx, tx, run)
	})
}

// ApproveRun lets a proposed run begin, for by's reason, and returns it as it stands then. Errors: events.ErrNotFound, events.ErrInvalid.
func ApproveRun(ctx context.Context, pool *pgxpool.Pool, run int64, by By) (*runs.Run, error) {
	return steer(ctx, pool, run, "runs approve", by, func(ctx context.Context, tx pgx.Tx) error { return runs.Approve(ctx, tx, run, by.String(), by.Reason) })
}
