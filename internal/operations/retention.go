package operations

import (
	"context"
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

// StartRetention queues a retention run. A running processor executes it. Errors:
// events.ErrInvalid where one is open already.
func StartRetention(ctx context.Context, pool *pgxpool.Pool, o *retention.Params, r RunRequest,
	by Requester) (*StartedRun, error) {
	p, selection := o.Policy, map[string]string{}
	for name, days := range map[string]int{"bodies": p.Bodies, "keys": p.Keys, "outcomes": p.Outcomes,
		"rejections": p.Rejections, "runs": p.Runs, "effects": p.Effects, "effect_keys": p.EffectKeys} {
		selection[name] = strconv.Itoa(days) // also 0, which keeps without limit
	}
	run, err := startRun(ctx, pool, by, "retention run", runs.Request{Job: retention.Job, Params: o}, r, selection)
	return run, retention.ExplainConflict(err)
}

// RetentionPolicyParams are the parameters of a retention schedule, in days. Data without an age is
// kept without limit.
type RetentionPolicyParams struct {
	retention.Policy
	Export string `json:"export,omitzero"`
}

// maxDays is the maximum age.
const maxDays = 36_500

// buildRetention returns the request of a retention schedule.
func buildRetention(ctx context.Context, pool *pgxpool.Pool, r RetentionPolicyParams) (runs.Request, error) {
	p := r.Policy
	if n := max(p.Bodies, p.Keys, p.Outcomes, p.Rejections, p.Runs, p.Effects, p.EffectKeys); n > maxDays {
		return runs.Request{}, invalid("%d days: the maximum is %d days", n, maxDays)
	}
	switch {
	case p.Empty():
		return runs.Request{}, invalid("no age is set, so everything is kept without limit: give bodies, rejections " +
			"or another one, in days")
	case r.Export == "":
	case !filepath.IsAbs(r.Export):
		return runs.Request{}, invalid("export %q: give an absolute path, the same for every processor, e.g. "+
			"/srv/postern/archive", r.Export)
	case p.Bodies == 0:
		return runs.Request{}, invalid("export is set, but no day of the log is dropped: give bodies, in days, or " +
			"leave it out")
	}
	if err := p.Check(); err != nil || pool == nil {
		return runs.Request{}, err
	}
	o, err := retention.NewParams(ctx, pool, p)
	if err != nil {
		return runs.Request{}, err
	}
	o.Folder, o.Export = r.Export, r.Export != ""
	return runs.Request{Params: o}, nil
}
