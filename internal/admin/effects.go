package admin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/labstack/echo/v4"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/effects"
	"github.com/postern-gateway/postern/internal/events"
)

// effectStates are the states of effects.
var effectStates = []string{string(effects.AwaitingApproval), string(effects.Planned), string(effects.Running),
	string(effects.Failed), string(effects.Review), string(effects.Done),
	string(effects.Rejected), string(effects.Expired), string(effects.Superseded)}

// EffectParams select effects.
var EffectParams = []Param{
	{"state", strings.Join(effectStates, ", ")},
	{"rule", "name of the rule"},
	sourceParam, accountParam,
	{"type", "object type: invoice"},
	{"object_type", "the same as type, named as in the other lists"},
	{"object_id", "id of the object"},
	{"key", "the effect's key"},
	{"event", "Postern's id of the event that made the change, or the provider's key"},
	{"since", "planned from this time on: " + timeHelp},
	{"until", "planned before this time: " + timeHelp},
	limitParam, cursorParam}

// Effects lists effects by EffectParams. Errors: events.ErrInvalid, events.ErrNotFound and
// *events.AmbiguousKeyError for the event.
func Effects(ctx context.Context, pool *pgxpool.Pool, values url.Values) (events.Page[effects.Effect], error) {
	q := newQuery(ctx, pool, values, EffectParams)
	f := effects.Filter{Source: q.source(), Account: q.optional("account"), Type: q.either("type", "object_type"),
		ID: q.text("object_id"), Rule: q.text("rule"), State: q.oneOf("state", effectStates...),
		Key: q.text("key"), Since: q.time("since"), Until: q.time("until")}
	limit := q.limit()
	if event := q.text("event"); event != "" && q.err == nil {
		f.Event, q.err = events.Find(ctx, pool, event, f.Source)
	}
	if q.err != nil {
		return events.Page[effects.Effect]{}, q.err
	}
	return effects.List(ctx, pool, f, q.text("cursor"), limit)
}

// ParseSince returns the time of the parameter since. Errors: events.ErrInvalid.
func ParseSince(values url.Values) (time.Time, error) {
	q := newQuery(context.Background(), nil, values, []Param{sinceParam})
	since := q.time("since")
	return since, q.err
}

// Effect returns one effect. Errors: events.ErrNotFound.
func Effect(ctx context.Context, pool *pgxpool.Pool, id int64) (*effects.View, error) {
	return onlyView(effects.Show(ctx, pool, id))
}

func onlyView(all []effects.View, err error) (*effects.View, error) {
	if err != nil {
		return nil, err
	}
	return &all[0], nil
}

// effectChanges are the changes that an operator can make to effects, with their parameters besides
// the reason.
var effectChanges = map[string][]Param{
	"approve": nil,
	"reject":  nil,
	"retry":   nil,
	"resolve": {
		{"step", "name of the step"},
		{"done", "true: the step was executed; false: it was not"},
		{"captured", `the values of its response to capture, as a JSON object: {"id": "in_1"}`},
	},
	"compensate": {{"partial", "true: undo what can be undone and keep the rest"}},
}

// ChangeEffects approves, rejects, retries, resolves or compensates effects.
// It changes all of them or none. A reason is required. Errors: events.ErrInvalid,
// events.ErrNotFound.
func ChangeEffects(ctx context.Context, pool *pgxpool.Pool, name string, ids []int64, values url.Values,
	by Requester) ([]effects.View, error) {
	return changeEffects(ctx, pool, name, ids, values, by, func(all []effects.View) []effects.View { return all })
}

// changeEffects is ChangeEffects. render converts the changed effects into the response.
func changeEffects[T any](ctx context.Context, pool *pgxpool.Pool, name string, ids []int64, values url.Values,
	by Requester, render func([]effects.View) T) (T, error) {
	q := newQuery(ctx, pool, values, effectChanges[name])
	do := q.parseEffectChange(name, by.Reason)
	if strings.TrimSpace(by.Reason) == "" {
		q.fail("give a reason: it is stored in the audit")
	}
	if q.err != nil {
		var none T
		return none, q.err
	}
	return change(ctx, pool, by, "effects "+name, func(ctx context.Context, tx pgx.Tx, e *adminauth.AuditEntry) (out T,
		err error) {
		e.Target = effectsTarget(ids, values)
		all, err := do(ctx, tx, ids)
		if err != nil {
			return out, err
		}
		return render(all), nil
	})
}

// parseEffectChange reads the parameters of a change and returns a function that executes it.
func (q *query) parseEffectChange(name, reason string) func(context.Context, pgx.Tx, []int64) ([]effects.View, error) {
	resolveParams := effects.ResolveParams{Step: q.text("step"), Captured: json.RawMessage(q.text("captured"))}
	done, partial := q.flag("done"), q.flag("partial")
	if done != nil {
		resolveParams.Done = *done
	}
	if name == "resolve" && (resolveParams.Step == "" || done == nil) {
		q.fail("give the step, and done: true or false")
	}
	return func(ctx context.Context, tx pgx.Tx, ids []int64) ([]effects.View, error) {
		switch name {
		case "approve":
			return effects.Approve(ctx, tx, ids...)
		case "reject":
			return effects.Reject(ctx, tx, reason, ids...)
		case "retry":
			return effects.Retry(ctx, tx, ids...)
		case "resolve":
			return effects.Resolve(ctx, tx, ids[0], resolveParams)
		}
		return effects.Compensate(ctx, tx, partial != nil && *partial, ids...)
	}
}

// effectsTarget describes the changed effects and the parameters for the audit.
func effectsTarget(ids []int64, values url.Values) string {
	texts := make([]string, len(ids))
	for i, id := range ids {
		texts[i] = strconv.FormatInt(id, 10)
	}
	target := "effect " + strings.Join(texts, ", ")
	if len(values) > 0 {
		target += "; " + values.Encode()
	}
	return target
}

// effectRoutes serves the ledger of effects. Routes that change effects take {"reason": "..."}.
// resolve also takes {"step": "mail", "done": true, "captured": {"id": "m_1"}}, compensate
// {"partial": true}.
func (h *handler) effectRoutes(api *echo.Group) {
	api.GET("/effects", list(h, Effects))
	api.GET("/effects/backtest", h.serveJSON(func(ctx context.Context, _ echo.Context, values url.Values) (any, error) {
		return h.backtestEffects(ctx, values)
	}))
	api.GET("/effects/:effect", h.serveJSON(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
		id, err := effectNumber(c)
		if err != nil {
			return nil, err
		}
		return Effect(ctx, h.Pool, id)
	}))
	for change := range effectChanges {
		api.POST("/effects/:effect/"+change,
			h.serveJSON(func(ctx context.Context, c echo.Context, _ url.Values) (any, error) {
				return h.changeEffect(ctx, c, change)
			}), requireJSON, h.withIdempotencyKey)
	}
}

func (h *handler) changeEffect(ctx context.Context, c echo.Context, name string) (any, error) {
	id, err := effectNumber(c)
	if err != nil {
		return nil, err
	}
	values, err := parseBody(c.Request().Body, "captured")
	if err != nil {
		return nil, err
	}
	by := requesterOf(c)
	by.Reason = values.Get("reason")
	values.Del("reason")
	return changeEffects(ctx, h.Pool, name, []int64{id}, values, by,
		func(all []effects.View) *effects.View { return &all[0] })
}

func effectNumber(c echo.Context) (int64, error) {
	id, err := strconv.ParseInt(c.Param("effect"), 10, 64)
	if err != nil {
		return 0, fmt.Errorf("effect %q: %w", param(c, "effect"), events.ErrNotFound)
	}
	return id, nil
}
