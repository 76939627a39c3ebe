package admin

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"net/url"
	"slices"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// RetryParams select failed and dead outcomes to retry.
var RetryParams = slices.Concat(slices.DeleteFunc(slices.Clone(EventParams), func(p Param) bool {
	return p == limitParam || p == cursorParam || p.Name == "status"
}), []Param{
	{"run", "number of the run of the outcomes (default: " + events.LiveRunName + ")"},
	{"status", "failed or dead (default: both)"},
	{"failure", "a text in the reason of the failure"},
	{"ids", "Postern's ids of events, separated by commas"},
	{"rate", "maximum number of events per second (default: no limit)"},
}, requestParams)

// ParseRetry reads RetryParams. event, if not "", is one event by Postern's id or the provider's
// key. Errors: events.ErrInvalid, events.ErrNotFound for the event or the run,
// *events.AmbiguousKeyError.
func ParseRetry(ctx context.Context, pool *pgxpool.Pool, event string, values url.Values) (*replay.RetryParams, error) {
	q := newQuery(ctx, pool, values, RetryParams)
	f := q.eventFilter()
	o := &replay.RetryParams{Unfinished: apply.Unfinished{Run: q.run(),
		Status:         q.oneOf("status", string(versioning.Failed), string(versioning.Dead)),
		ReasonContains: q.text("failure"), Objects: f.Objects}, Input: map[string]string{}, Rate: q.rate()}
	for name := range maps.Keys(values) {
		if name != "rate" && name != "run" &&
			!slices.ContainsFunc(requestParams, func(p Param) bool { return p.Name == name }) {
			o.Input[name] = values.Get(name)
		}
	}
	f.Status, f.Objects = "", nil
	f.Account, f.ObjectType, f.ObjectID = q.optional("account"), q.text("object_type"), q.text("object_id")
	if q.values.Has("ids") {
		f.IDs = q.ids("ids")
	}
	if event != "" && q.err == nil {
		o.Input["event"] = event
		var id int64
		if id, q.err = events.Find(ctx, pool, event, f.Source); q.values.Has("ids") {
			q.fail("an event cannot be combined with ids: give one of them")
		}
		f.IDs = []int64{id}
	}
	o.Filter = f
	return o, cmp.Or(q.err, checkRetriable(ctx, pool, o.Run))
}

// checkRetriable rejects a run whose failures cannot be retried.
func checkRetriable(ctx context.Context, pool *pgxpool.Pool, run int64) error {
	if run == events.LiveRun || pool == nil {
		return nil
	}
	r, err := runs.Show(ctx, pool, run)
	switch {
	case err != nil:
		return err
	case r.Job != replay.Job:
		return fmt.Errorf("%w: run %d is a %s: only failures of a replay, or of live (0), can be retried",
			events.ErrInvalid, run, r.Job)
	case r.Status == runs.Running:
		return fmt.Errorf("%w: run %d is not finished: wait for its end, or pause it", events.ErrInvalid, run)
	}
	return nil
}

// StartRetry queues a retry that ParseRetry read from the values. A running processor executes it.
// Errors: events.ErrInvalid.
func StartRetry(ctx context.Context, pool *pgxpool.Pool, o *replay.RetryParams, by Requester, values url.Values,
	expected int64) (*StartedRun, error) {
	return startRun(ctx, pool, by, "retry", runs.Request{Job: replay.RetryJob, Params: o, Expected: expected},
		retryParams(o, values))
}

// ExistingRetry returns the run that was started earlier with the same idempotency key, or nil. It
// exists even if that run left nothing to retry. Errors: events.ErrInvalid.
func ExistingRetry(ctx context.Context, pool *pgxpool.Pool, o *replay.RetryParams, values url.Values) (*StartedRun,
	error) {
	return existingRun(ctx, pool, replay.RetryJob, retryParams(o, values))
}

// retryParams adds the event that was given as an argument.
func retryParams(o *replay.RetryParams, values url.Values) url.Values {
	if event := o.Input["event"]; event != "" {
		values = maps.Clone(values)
		values.Set("event", event)
	}
	return values
}

// retry takes {"event": "...", "run": 7, "source": "stripe", "failure": "...", ..., "reason":
// "...", "preview": true, "exact": true}.
func (h *handler) retry(ctx context.Context, c echo.Context, query url.Values) (any, error) {
	if len(query) > 0 {
		return nil, fmt.Errorf("%w: send the parameters of a retry in the body, not in the URL", events.ErrInvalid)
	}
	values, err := parseBody(c.Request().Body)
	if err != nil {
		return nil, err
	}
	preview, err1 := flag(values, "preview")
	exact, err2 := flag(values, "exact")
	if err := cmp.Or(err1, err2); err != nil {
		return nil, err
	}
	event := values.Get("event")
	values.Del("event")
	params, err := ParseRetry(ctx, h.Pool, event, values)
	if err != nil {
		return nil, err
	}
	expected, err := params.Preview(ctx, h.Pool, exact)
	if err != nil || preview {
		return expected, err
	}
	return StartRetry(ctx, h.Pool, params, requesterOf(c), values, expected.Events)
}
