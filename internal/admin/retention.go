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

// Retention returns what a policy would delete from the log now. With count it also counts
// everything else that is too old. Errors: events.ErrInvalid.
func Retention(ctx context.Context, pool *pgxpool.Pool, p retention.Policy, count bool) (*retention.View,
	*retention.Params, error) {
	params, err := retention.NewParams(ctx, pool, p)
	if err != nil {
		return nil, nil, err
	}
	preview := retention.Show
	if count {
		preview = retention.Preview
	}
	view, err := preview(ctx, pool, params)
	return view, params, err
}

// RetentionRunParams are the parameters of a retention run, besides its policy.
var RetentionRunParams = requestParams

// StartRetention queues a retention run, with RetentionRunParams. A running processor executes it.
// Errors: events.ErrInvalid where one is open already.
func StartRetention(ctx context.Context, pool *pgxpool.Pool, o *retention.Params, by Requester,
	values url.Values) (*StartedRun, error) {
	p := o.Policy
	values = maps.Clone(values)
	for name, days := range map[string]int{"bodies": p.Bodies, "keys": p.Keys, "outcomes": p.Outcomes,
		"rejections": p.Rejections, "runs": p.Runs, "effects": p.Effects, "effect_keys": p.EffectKeys} {
		values.Set(name, strconv.Itoa(days))
	}
	run, err := startRun(ctx, pool, by, "retention run", runs.Request{Job: retention.Job, Params: o}, values)
	return run, retention.ExplainConflict(err)
}

// retentionPolicyParams are the parameters of a retention schedule.
var retentionPolicyParams = []Param{{"bodies", "days to keep events"}, {"keys", "days to keep keys"},
	{"outcomes", "days to keep outcomes"},
	{"rejections", "days to keep rejected deliveries"}, {"runs", "days to keep finished runs"},
	{"effects", "days to keep the input and responses of finished effects"},
	{"effect_keys", "days to keep finished effects, so that they do not happen again"},
	{"export", "the folder to which each day is exported before it is dropped; if absent, " +
		"retention.export, if it is set"}}

// maxDays is the maximum age.
const maxDays = 36_500

// parseRetention reads retentionPolicyParams. Data without an age is kept without limit.
func parseRetention(ctx context.Context, pool *pgxpool.Pool, values url.Values) (runs.Request, error) {
	q := newQuery(ctx, pool, values, retentionPolicyParams)
	days := func(name string) int {
		n := q.number(name)
		if n > maxDays {
			q.fail("%s %d: the maximum is %d days", name, n, maxDays)
		}
		return int(n)
	}
	p := retention.Policy{Bodies: days("bodies"), Keys: days("keys"), Outcomes: days("outcomes"),
		Rejections: days("rejections"), Runs: days("runs"), Effects: days("effects"), EffectKeys: days("effect_keys")}
	if p.Empty() {
		q.fail("no age is set, so everything is kept without limit: give bodies, rejections or another one, in days")
	}
	folder := q.text("export")
	switch {
	case folder == "":
	case !filepath.IsAbs(folder):
		q.fail("export %q: give an absolute path, the same for every processor, e.g. /srv/postern/archive", folder)
	case p.Bodies == 0:
		q.fail("export is set, but no day of the log is dropped: give bodies, in days, or leave it out")
	}
	if q.err == nil {
		q.err = p.Check()
	}
	if q.err != nil || pool == nil {
		return runs.Request{}, q.err
	}
	o, err := retention.NewParams(ctx, pool, p)
	if err != nil {
		return runs.Request{}, err
	}
	o.Folder, o.Export = folder, folder != ""
	return runs.Request{Params: o}, nil
}

// retention serves GET /retention: the policy of this process and what it would delete from the
// log.
func (h *handler) retention(ctx context.Context, pool *pgxpool.Pool, values url.Values) (any, error) {
	if q := newQuery(ctx, pool, values, nil); q.err != nil {
		return nil, q.err
	}
	view, _, err := Retention(ctx, pool, h.Options.Retention, false)
	return view, err
}
