package reconciled

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/github"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/githubfake"
)

// GitHubEnv is a GitHub source with a fake.
type GitHubEnv struct {
	*Env
	Fake      *githubfake.Fake
	config    *provider.Source
	APISource *providerapi.Source
}

// NewGitHubEnv makes a source with its own client. A non-nil edit changes its API.
func NewGitHubEnv(t *testing.T, o githubfake.Options, edit func(*provider.API)) *GitHubEnv {
	t.Helper()
	f := &GitHubEnv{Env: newEnvWithoutAPI(t), Fake: githubfake.New(t, o), config: &provider.Source{Name: "code"}}
	known, err := events.RegisterSources(t.Context(), f.Pool, map[string]string{"code": "github"})
	testkit.Must(t, err)
	f.Source = known.Number["code"]
	f.Sources["code"] = apply.Source{Number: f.Source, Config: f.config, Provider: github.GitHub{}}
	f.Proc = f.Applier(t, nil)
	api := &provider.API{BaseURL: f.Fake.URL, Key: provider.Secret{Name: "api.key", Value: []byte(githubfake.Key)},
		Rate: 1000, Timeout: 30 * time.Second, MaxBytes: 1 << 20,
		Webhooks: f.Fake.Hooks(), Repositories: f.Fake.Repositories()}
	if edit != nil {
		edit(api)
	}
	testkit.Must(t, (github.GitHub{}).CompleteAPI(api))
	f.APISource = &providerapi.Source{Name: "code", Number: f.Source, Config: f.config, API: api,
		Provider: github.GitHub{}, Reader: github.GitHub{}}
	f.APISource.Caller = newClient(t, f.Pool, f.APISource)
	return f
}

// StartThrough starts a reconciler that calls the API through c.
func (f *GitHubEnv) StartThrough(t *testing.T, c providerapi.Caller) {
	t.Helper()
	source := *f.APISource
	source.Caller = c
	r := f.Runner()
	r.Sources.Replace(&source)
	f.StartReconciler(t, r)
}

// Receive appends and applies a delivery as the gateway and the processor do. It returns whether
// the event was a duplicate or a conflict.
func (f *GitHubEnv) Receive(t *testing.T, d *provider.Delivery) (duplicate, conflict bool) {
	t.Helper()
	d.ReceivedAt = f.Fake.Now()
	r := applied.AppendDeliveries(t, f.Gateway, f.Sources["code"], d)[0]
	if !r.Duplicate {
		applied.Apply(t, f.Proc, 0, []int64{r.ID})
	}
	return r.Duplicate, r.Conflict
}

// Deliver receives all due deliveries.
func (f *GitHubEnv) Deliver(t *testing.T) int {
	t.Helper()
	var ds []*provider.Delivery
	n := f.Fake.Deliver(func(d *provider.Delivery) bool {
		d.ReceivedAt = f.Fake.Now()
		ds = append(ds, d)
		return true
	})
	applied.AppendAndApply(t, f.Gateway, f.Proc, f.Sources["code"], ds...)
	return n
}

func (f *GitHubEnv) Count(t *testing.T, sql string, args ...any) (n int64) {
	t.Helper()
	testkit.Must(t, f.DB.Pool.QueryRow(t.Context(), sql, args...).Scan(&n))
	return n
}

// Refetch refetches an object.
func (f *GitHubEnv) Refetch(t *testing.T, objectType, id string) *runs.Run {
	t.Helper()
	return f.RunToEnd(t, reconcile.Params{Scope: reconcile.Object, Type: objectType, ID: id})
}

// ObjectDifferences returns the objects that differ in the mirror. The delete of a comment is
// reported by its own event only.
func (f *GitHubEnv) ObjectDifferences(t *testing.T) (wrong []string) {
	t.Helper()
	for _, o := range f.Fake.CurrentObjects() {
		var title, updated string
		var deleted, pending bool
		err := f.DB.Pool.QueryRow(t.Context(), `SELECT coalesce(state ->> 'title', state ->> 'name', state ->> 'body',
			''), coalesce(state ->> 'updated_at', ''), deleted, ambiguous OR refetch_after <> 0
			FROM objects WHERE source = $1 AND object_type = $2 AND object_id = $3`, f.Source, o.Type,
			o.ID).Scan(&title, &updated, &deleted, &pending)
		if err != nil && o.Body != nil || err == nil && (pending || deleted != (o.Body == nil) || !deleted &&
			(!strings.Contains(string(o.Body), fmt.Sprintf("%q", title)) ||
				!strings.Contains(string(o.Body), fmt.Sprintf("%q", updated)))) {
			wrong = append(wrong, fmt.Sprintf("%s %s: %v: %q of %s, deleted %t, pending %t; it is %s", o.Type, o.ID,
				err, title, updated, deleted, pending, o.Body))
		}
	}
	return wrong
}

// Runner makes a runner for the fake.
func (f *GitHubEnv) Runner() *reconcile.Runner {
	r := &reconcile.Runner{Resources: &refetch.Resources{Pool: f.Pool, Log: f.Gateway, Applier: f.Proc,
		Sources: &providerapi.Sources{}, Limits: refetch.DefaultLimits}, Settings: reconcile.DefaultSettings}
	r.Sources.Replace(f.APISource)
	r.Limits.ListDelay, r.Settings.RetryDelay = time.Second, time.Millisecond
	return r
}

// ListedTypes returns the number of listed types.
func (f *GitHubEnv) ListedTypes() int64 {
	return int64(len(github.GitHub{}.Lists(f.config, f.APISource.API, "")))
}

const CompleteSQL = `SELECT coalesce(string_agg(subject, ' ' ORDER BY subject), '') FROM watermarks`

// InterceptingCaller is a Caller that may respond in place of the API.
type InterceptingCaller struct {
	providerapi.Caller
	Intercept func(c provider.Call) *providerapi.Response
}

func (m InterceptingCaller) Do(ctx context.Context, c provider.Call) (*providerapi.Response, error) {
	if a := m.Intercept(c); a != nil {
		return a, nil
	}
	return m.Caller.Do(ctx, c)
}
