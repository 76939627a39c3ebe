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

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/replay"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// RetryParams choose failed and dead outcomes to try again.
var RetryParams = slices.Concat(slices.DeleteFunc(slices.Clone(EventParams), func(p Param) bool {
	return p == limitParam || p == cursorParam || p.Name == "status"
}), []Param{
	{"run", "the run whose outcomes they are; 0, the default: live"},
	{"status", "failed or dead (default: both)"},
	{"failure", "a text in the reason of the failure"},
	{"ids", "our ids of events, separated by commas"},
	{"rate", "at most so many events per second (default: as fast as it goes)"},
}, onceParams)

// PlanRetry reads RetryParams; event, if not "", is one event by our id or the provider's key. Errors: events.ErrInvalid, events.ErrNotFound for the event or the
// run, *events.SeveralError.
func PlanRetry(ctx context.Context, pool *pgxpool.Pool, event string, values url.Values) (*replay.Retry, error) {
	q := newQuery(ctx, pool, values, RetryParams)
	f := q.events()
	o := &replay.Retry{Unfinished: processor.Unfinished{Run: q.number("run"), Status: q.oneOf("status", string(versioning.Failed), string(versioning.Dead)),
		Failure: q.text("failure"), Objects: f.Objects}, Words: map[string]string{}, Rate: q.rate()}
	for name := range maps.Keys(values) {
		if name != "rate" && name != "run" && !slices.ContainsFunc(onceParams, func(p Param) bool { return p.Name == name }) {
			o.Words[name] = values.Get(name)
		}
	}
	f.Status, f.Objects = "", nil
	f.Account, f.ObjectType, f.ObjectID = q.given("account"), q.text("object_type"), q.text("object_id")
	if q.values.Has("ids") {
		f.IDs = q.ids("ids")
	}
	if event != "" && q.err == nil {
		o.Words["event"] = event
		var id int64
		if id, q.err = events.Find(ctx, pool, event, f.Source); q.values.Has("ids") {
			q.fail("an event and ids: give the one or the other")
		}
		f.IDs = []int64{id}
	}
	o.Filter = f
	return o, cmp.Or(q.err, retriable(ctx, pool, o.Run))
}

// retriable refuses a run that has no failures of its own to try again.
func retriable(ctx context.Context, pool *pgxpool.Pool, run int64) error {
	if run == events.LiveRun || pool == nil {
		return nil
	}
	r, err := runs.Show(ctx, pool, run)
	switch {
	case err != nil:
		return err
	case r.Job != replay.Job:
		return fmt.Errorf("%w: run %d is a %s, and only the failures of a replay, or of live (0), can be tried again", events.ErrInvalid, run, r.Job)
	case r.Status == runs.Running:
		return fmt.Errorf("%w: run %d is not done yet: wait for its end, or pause it", events.ErrInvalid, run)
	}
	return nil
}

// AskRetry enters a retry, which PlanRetry made of the values, into the ledger; a running processor carries it out. Errors: events.ErrInvalid.
func AskRetry(ctx context.Context, pool *pgxpool.Pool, o *replay.Retry, by By, values url.Values, expected int64) (*Asked, error) {
	return ask(ctx, pool, by, "retry", runs.Order{Job: replay.RetryJob, Asked: o, Expected: expected}, saidOfRetry(o, values))
}

// EarlierRetry is the run of whoever asked for a retry with its once key first, nil where nobody has: there is one also where it has left nothing to choose. Errors: events.ErrInvalid.
func EarlierRetry(ctx context.Context, pool *pgxpool.Pool, o *replay.Retry, values url.Values) (*Asked, error) {
	return earlier(ctx, pool, replay.RetryJob, saidOfRetry(o, values))
}

// saidOfRetry has the event that was given as an argument.
func saidOfRetry(o *replay.Retry, values url.Values) url.Values {
	if event := o.Words["event"]; event != "" {
		values = maps.Clone(values)
		values.Set("event", event)
	}
	return values
}

// retry takes {"event": "...", "run": 7, "source": "stripe", "failure": "...", ..., "reason": "...", "preview": true, "exact": true}.
func (h *handler) retry(ctx context.Context, c echo.Context, query url.Values) (any, error) {
	if len(query) > 0 {
		return nil, fmt.Errorf("%w: what to try again is said in the body, not in the address", events.ErrInvalid)
	}
	values, err := asked(c.Request().Body)
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
	order, err := PlanRetry(ctx, h.Pool, event, values)
	if err != nil {
		return nil, err
	}
	expected, err := order.Preview(ctx, h.Pool, exact)
	if err != nil || preview {
		return expected, err
	}
	return AskRetry(ctx, h.Pool, order, by(c), values, expected.Events)
}
