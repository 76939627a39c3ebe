package reconcile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
)

// described is a source of a sender that Postern knows only by a configuration, which is the example's.
type described struct {
	*world
	fake     *restfake.Fake
	endpoint config.Endpoint
	runner   *reconcile.Runner
	// change is called before each call of the runner.
	change func(provider.Call)
}

const things = "things"

// newDescribed makes one; edits are texts of the example, each with what replaces it.
func newDescribed(t *testing.T, edits ...string) *described {
	t.Helper()
	text, err := os.ReadFile("../../examples/any-api/postern.yaml")
	if err != nil {
		t.Fatal(err)
	}
	b := &described{fake: restfake.New(t), world: &world{Log: applied.New(t)}}
	env := map[string]string{"DATABASE_URL": "postgres://x", "NATS_URL": "nats://x", "THINGS_SECRET": restfake.Secret, "THINGS_API": b.fake.URL, "THINGS_API_KEY": restfake.Key}
	cfg, err := config.Parse([]byte(strings.NewReplacer(edits...).Replace(string(text))), func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	b.endpoint = cfg.Endpoints()[0]
	b.endpoint.API.Rate = 1000
	known, err := events.RegisterSources(t.Context(), b.Pool, map[string]string{things: "hmac"})
	if err != nil {
		t.Fatal(err)
	}
	b.Source, b.gateway = known.Number[things], b.DB.Role(t, "gateway")
	b.Sources[things] = processor.Source{Number: b.Source, Config: b.endpoint.Source, Provider: b.endpoint.Provider, Looker: b.endpoint.Looker()}
	b.proc = b.Processor(t, nil, things)
	b.runner = b.sourceRunner(t)
	return b
}

// changingCaller makes calls after the changes that a test makes before each.
type changingCaller struct {
	reconcile.Caller
	of *described
}

func (c changingCaller) Do(ctx context.Context, call provider.Call) (*reconcile.Response, error) {
	if c.of.change != nil {
		c.of.change(call)
	}
	return c.Caller.Do(ctx, call)
}

// sourceRunner carries out reconciliations of the source over HTTP.
func (b *described) sourceRunner(t *testing.T) *reconcile.Runner {
	t.Helper()
	metrics, err := reconcile.NewMetrics(prometheus.NewRegistry(), []string{things})
	if err != nil {
		t.Fatal(err)
	}
	c, err := reconcile.NewClient(reconcile.Options{Pool: b.Pool, Number: b.Source, Source: things, Reader: b.endpoint.Reader, API: b.endpoint.API, Metrics: metrics,
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	s := &reconcile.Sources{}
	s.Replace(&reconcile.Source{Name: things, Number: b.Source, Config: b.endpoint.Source, API: b.endpoint.API, Provider: b.endpoint.Provider, Reader: b.endpoint.Reader, Caller: changingCaller{c, b}})
	settings := reconcile.DefaultSettings
	settings.Again = 10 * time.Millisecond
	return &reconcile.Runner{Pool: b.Pool, Log: b.gateway, Processor: b.proc, Sources: s, Settings: settings}
}

// deliver stores and applies webhooks, which come at the API's time.
func (b *described) deliver(t *testing.T, bodies [][]byte) {
	t.Helper()
	ds := make([]*provider.Delivery, len(bodies))
	for i, body := range bodies {
		ds[i] = &provider.Delivery{Header: http.Header{}, Body: body, ReceivedAt: b.fake.Now()}
	}
	applied.Deliver(t, b.gateway, b.proc, b.Sources[things], ds...)
}

// differs says what of the mirror is not as the API has it.
func (b *described) differs(t *testing.T) (wrong []string) {
	t.Helper()
	here := map[string]string{}
	rows, err := b.DB.Pool.Query(t.Context(), `SELECT object_id, deleted, coalesce(state::text, 'null'), ambiguous OR look_after <> 0 FROM objects WHERE source = $1 AND object_type = 'thing'`, b.Source)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, state string
		var deleted, doubt bool
		if err := rows.Scan(&id, &deleted, &state, &doubt); err != nil {
			t.Fatal(err)
		}
		var thing struct{ Name string }
		if err := json.Unmarshal([]byte(state), &thing); err != nil {
			t.Fatal(err)
		}
		here[id] = thing.Name
		if deleted {
			here[id] = ""
		}
		if doubt {
			wrong = append(wrong, id+" is in doubt")
		}
	}
	for id, name := range b.fake.Truth() {
		if here[id] != name {
			wrong = append(wrong, fmt.Sprintf("%s is %q here and %q there", id, here[id], name))
		}
	}
	return wrong
}

// A look at an object of a described API enters the mirror: what changed, what is gone, and what no webhook has told of.
func TestLookThroughADescribedAPI(t *testing.T) {
	t.Parallel()
	b := newDescribed(t)
	b.fake.Set("a/1", "old", time.Second)
	b.fake.Set("b", "stays", time.Second)
	b.deliver(t, b.fake.Events())
	if wrong := b.differs(t); len(wrong) > 0 {
		t.Fatalf("before anything was lost: %v", wrong)
	}
	b.fake.Set("a/1", "new", time.Second)
	b.fake.Set("b", "", time.Second)
	b.fake.Set("c", "unheard of", time.Second)
	b.fake.Advance(time.Minute)
	if wrong := b.differs(t); len(wrong) != 3 {
		t.Fatalf("before the looks: %v", wrong)
	}
	b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner.Carry})
	for _, id := range []string{"a/1", "b", "c"} {
		if r := b.ask(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: id}); r.Status != runs.Done || r.Counts[reconcile.Missing] != 1 {
			t.Errorf("a look at %s is %s with %v: %s", id, r.Status, r.Counts, r.Detail)
		}
	}
	if wrong := b.differs(t); len(wrong) > 0 {
		t.Errorf("after the looks: %v", wrong)
	}
	if n := b.fake.Calls("/me"); n != 1 {
		t.Errorf("%d controls, of which one belongs to what is missing", n)
	}
	b.deliver(t, b.fake.Events()) // what was lost comes after all
	if wrong := b.differs(t); len(wrong) > 0 {
		t.Errorf("after the webhooks: %v", wrong)
	}
	var body []byte
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT body FROM events WHERE event_type = 'postern.look' AND object_id = 'a/1'`).Scan(&body); err != nil || !bytes.Contains(body, []byte(`"object":{"data":{"thing":{"changed":`)) {
		t.Errorf("the log has %s (%v), and not the answer byte for byte", body, err)
	}
}

// Who asks for an object of a source that is pinned to an account need not name it.
func TestLookWithinTheSourcesAccount(t *testing.T) {
	t.Parallel()
	b := newDescribed(t, "provider: hmac", "provider: hmac\n    account: shop_1")
	b.fake.Set("a", "one", time.Second)
	b.deliver(t, b.fake.Events())
	b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner.Carry})
	for _, account := range []string{"", "shop_1"} {
		b.fake.Set("a", "asked for by "+account, time.Second)
		b.fake.Advance(time.Minute)
		if r := b.ask(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: "a", Account: account}); r.Status != runs.Done {
			t.Errorf("account %q: %s: %s", account, r.Status, r.Detail)
		}
	}
	var n int
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT count(*) FROM objects`).Scan(&n); err != nil || n != 1 {
		t.Errorf("%d objects of one (%v)", n, err)
	}
	if wrong := b.differs(t); len(wrong) > 0 {
		t.Error(wrong)
	}
}

// What the API refuses, or answers of another object, enters nothing, and no word shows the key.
func TestDescribedAPIRefuses(t *testing.T) {
	t.Parallel()
	b := newDescribed(t, `get: "/things/{id}"`, `get: "/things/a?id={id}"`)
	b.fake.Set("a", "one", time.Second)
	b.Carry(t, "one", 1, map[string]runs.Carry{reconcile.Job: b.runner.Carry})
	for what, o := range map[string]reconcile.Order{
		"source things, other: the API reads no object of that type":  {Type: "other", ID: "a"},
		"source things, thing: the API reads no object of that type ": {Type: "thing", ID: "a", Account: "somebody"},
	} {
		o.What = reconcile.Object
		if r := b.ask(t, o); r.Status != runs.Failed || !strings.Contains(r.Detail, what) {
			t.Errorf("%+v is %s: %s", o, r.Status, r.Detail)
		}
	}
	run := b.askOnly(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: "z"})
	b.Until(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, `the API answered one whose key is "a"`) })
	var n int
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d events (%v)", n, err)
	}
}

// askOnly orders a reconciliation.
func (b *described) askOnly(t *testing.T, o reconcile.Order) int64 {
	t.Helper()
	o.Source = b.Source
	run, err := runs.Ask(t.Context(), b.Operator, runs.Order{Job: reconcile.Job, Asked: o, Who: "test"})
	if err != nil {
		t.Fatal(err)
	}
	return run
}
