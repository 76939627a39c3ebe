package admin

import (
	"context"
	"maps"
	"net/url"
	"path/filepath"
	"strconv"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/retention"
	"github.com/postern-gateway/postern/internal/runs"
)

// Retention says what a policy means for the log as it is; with count also how much else is past its age. Errors: events.ErrInvalid.
func Retention(ctx context.Context, pool *pgxpool.Pool, p retention.Policy, count bool) (*retention.View, *retention.Order, error) {
	order, err := retention.Now(ctx, pool, p)
	if err != nil {
		return nil, nil, err
	}
	look := retention.Show
	if count {
		look = retention.Preview
	}
	view, err := look(ctx, pool, order)
	return view, order, err
}

// RetainParams are those of a run of retention, beside its policy.
var RetainParams = onceParams

// Retain enters a run of retention into the ledger, with RetainParams; a running processor carries it out.
// Errors: events.ErrInvalid where one is open already.
func Retain(ctx context.Context, pool *pgxpool.Pool, o *retention.Order, by By, values url.Values) (*Asked, error) {
	p := o.Policy
	values = maps.Clone(values)
	for name, days := range map[string]int{"bodies": p.Bodies, "keys": p.Keys, "outcomes": p.Outcomes, "rejections": p.Rejections, "runs": p.Runs, "effects": p.Effects, "effect_keys": p.EffectKeys} {
		values.Set(name, strconv.Itoa(days))
	}
	run, err := ask(ctx, pool, by, "retention run", runs.Order{Job: retention.Job, Asked: o}, values)
	return run, retention.Explain(err)
}

// planParams are what a schedule may say of retention.
var planParams = []Param{{"bodies", "days that events are kept"}, {"keys", "days that keys are kept"}, {"outcomes", "days that outcomes are kept"},
	{"rejections", "days that refused deliveries are kept"}, {"runs", "days that ended runs are kept"},
	{"effects", "days that what effects that ended were planned with and answered is kept"}, {"effect_keys", "days that effects that ended are kept, so that they do not follow again"},
	{"export", "the folder into which each day is written and read back before it is dropped; left out, that of retention.export, if there is one"}}

// mostDays bounds an age.
const mostDays = 36_500

// planRetention reads planParams; what has no age is kept for ever.
func planRetention(ctx context.Context, pool *pgxpool.Pool, values url.Values) (runs.Order, error) {
	q := newQuery(ctx, pool, values, planParams)
	days := func(name string) int {
		n := q.number(name)
		if n > mostDays {
			q.fail("%s %d: at most %d days", name, n, mostDays)
		}
		return int(n)
	}
	p := retention.Policy{Bodies: days("bodies"), Keys: days("keys"), Outcomes: days("outcomes"), Rejections: days("rejections"), Runs: days("runs"), Effects: days("effects"), EffectKeys: days("effect_keys")}
	if p.Empty() {
		q.fail("no age is set, so everything is kept for ever: give bodies, rejections or another, in days")
	}
	folder := q.text("export")
	switch {
	case folder == "":
	case !filepath.IsAbs(folder):
		q.fail("export %q: name the whole path of a folder, the same for every processor, e.g. /srv/postern/archive", folder)
	case p.Bodies == 0:
		q.fail("export is set, but no day of the log is dropped: give bodies, in days, or leave it out")
	}
	if q.err == nil {
		q.err = p.Check()
	}
	if q.err != nil || pool == nil {
		return runs.Order{}, q.err
	}
	o, err := retention.Now(ctx, pool, p)
	if err != nil {
		return runs.Order{}, err
	}
	o.Folder, o.Export = folder, folder != ""
	return runs.Order{Asked: o}, nil
}

// retention serves GET /retention: the policy of this process and what it means for the log.
func (h *handler) retention(ctx context.Context, pool *pgxpool.Pool, values url.Values) (any, error) {
	if q := newQuery(ctx, pool, values, nil); q.err != nil {
		return nil, q.err
	}
	view, _, err := Retention(ctx, pool, h.Options.Retention, false)
	return view, err
}
