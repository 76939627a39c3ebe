package reconciled

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
)

// RESTEnv is a source of a provider that only a configuration describes: the example.
type RESTEnv struct {
	*Env
	Fake     *restfake.Fake
	Endpoint config.Endpoint
	Runner   *reconcile.Runner
	// BeforeCall is called before each call of the runner.
	BeforeCall func(provider.Call)
}

const thingsSource = "things"

// ExampleEndpoint returns the endpoint of the example, with the address of a fake. The edits are
// pairs of a text of the example and its replacement.
func ExampleEndpoint(t *testing.T, url string, edits ...string) config.Endpoint {
	t.Helper()
	text, err := os.ReadFile("../../examples/any-api/postern.yaml")
	testkit.Must(t, err)
	env := map[string]string{"DATABASE_URL": "postgres://x", "NATS_URL": "nats://x", "THINGS_SECRET": restfake.Secret,
		"THINGS_API": url, "THINGS_API_KEY": restfake.Key}
	cfg, err := config.Parse([]byte(strings.NewReplacer(edits...).Replace(string(text))),
		func(name string) string { return env[name] })
	testkit.Must(t, err)
	return cfg.Endpoints()[0]
}

// NewRESTEnv makes the source, with edits of the example.
func NewRESTEnv(t *testing.T, edits ...string) *RESTEnv {
	t.Helper()
	b := &RESTEnv{Fake: restfake.NewWithoutFaults(t), Env: newEnvWithoutAPI(t)}
	b.Endpoint = ExampleEndpoint(t, b.Fake.URL, edits...)
	b.Endpoint.API.Rate = 1000
	known, err := events.RegisterSources(t.Context(), b.Pool, map[string]string{thingsSource: "hmac"})
	testkit.Must(t, err)
	b.Source = known.Number[thingsSource]
	b.Sources[thingsSource] = apply.Source{Number: b.Source, Config: b.Endpoint.Source,
		Provider: b.Endpoint.Provider, RefetchReader: b.Endpoint.RefetchReader()}
	b.Proc = b.Applier(t, nil, thingsSource)
	b.Runner = b.SourceRunner(t)
	return b
}

// changingCaller calls BeforeCall of the environment before each call.
type changingCaller struct {
	providerapi.Caller
	env *RESTEnv
}

func (c changingCaller) Do(ctx context.Context, call provider.Call) (*providerapi.Response, error) {
	if c.env.BeforeCall != nil {
		c.env.BeforeCall(call)
	}
	return c.Caller.Do(ctx, call)
}

// SourceRunner makes a runner that calls the API over HTTP.
func (b *RESTEnv) SourceRunner(t *testing.T) *reconcile.Runner {
	t.Helper()
	s, e := &providerapi.Sources{}, b.Endpoint
	source := &providerapi.Source{Name: thingsSource, Number: b.Source, Config: e.Source, API: e.API,
		Provider: e.Provider, Reader: e.Reader}
	source.Caller = changingCaller{newClient(t, b.Pool, source), b}
	s.Replace(source)
	settings := reconcile.DefaultSettings
	settings.RetryDelay = 10 * time.Millisecond
	return &reconcile.Runner{Resources: &refetch.Resources{Pool: b.Pool, Log: b.Gateway, Applier: b.Proc, Sources: s,
		Limits: refetch.DefaultLimits}, Settings: settings}
}

// Deliver appends and applies webhooks, received at the API's time.
func (b *RESTEnv) Deliver(t *testing.T, bodies [][]byte) {
	t.Helper()
	ds := make([]*provider.Delivery, len(bodies))
	for i, body := range bodies {
		ds[i] = &provider.Delivery{Header: http.Header{}, Body: body, ReceivedAt: b.Fake.Now()}
	}
	applied.AppendAndApply(t, b.Gateway, b.Proc, b.Sources[thingsSource], ds...)
}

// ThingDifferences returns the things that differ from the API.
func (b *RESTEnv) ThingDifferences(t *testing.T) (wrong []string) {
	t.Helper()
	here := map[string]string{}
	rows, err := b.DB.Pool.Query(t.Context(), `SELECT object_id, deleted, coalesce(state::text, 'null'), ambiguous
		OR refetch_after <> 0 FROM objects WHERE source = $1 AND object_type = 'thing'`, b.Source)
	testkit.Must(t, err)
	defer rows.Close()
	for rows.Next() {
		var id, state string
		var deleted, pending bool
		testkit.Must(t, rows.Scan(&id, &deleted, &state, &pending))
		var thing struct{ Name string }
		testkit.Must(t, json.Unmarshal([]byte(state), &thing))
		here[id] = thing.Name
		if deleted {
			here[id] = ""
		}
		if pending {
			wrong = append(wrong, id+" has a pending refetch")
		}
	}
	for id, name := range b.Fake.CurrentNames() {
		if here[id] != name {
			wrong = append(wrong, fmt.Sprintf("%s is %q in the mirror and %q in the API", id, here[id], name))
		}
	}
	return wrong
}
