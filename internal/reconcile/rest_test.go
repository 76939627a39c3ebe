package reconcile_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/apply"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/objectscan"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/reconcile"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/testkit/restfake"
)

// restEnv is a source of a provider that only a configuration describes: the example.
type restEnv struct {
	*testEnv
	fake     *restfake.Fake
	endpoint config.Endpoint
	runner   *reconcile.Runner
	// beforeCall is called before each call of the runner.
	beforeCall func(provider.Call)
}

const thingsSource = "things"

// newRESTEnv makes the source. The edits are pairs of a text of the example and its replacement.
func newRESTEnv(t *testing.T, edits ...string) *restEnv {
	t.Helper()
	text, err := os.ReadFile("../../examples/any-api/postern.yaml")
	if err != nil {
		t.Fatal(err)
	}
	b := &restEnv{fake: restfake.NewWithoutFaults(t), testEnv: newEnvWithoutAPI(t)}
	env := map[string]string{"DATABASE_URL": "postgres://x", "NATS_URL": "nats://x", "THINGS_SECRET": restfake.Secret,
		"THINGS_API": b.fake.URL, "THINGS_API_KEY": restfake.Key}
	cfg, err := config.Parse([]byte(strings.NewReplacer(edits...).Replace(string(text))),
		func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	b.endpoint = cfg.Endpoints()[0]
	b.endpoint.API.Rate = 1000
	known, err := events.RegisterSources(t.Context(), b.Pool, map[string]string{thingsSource: "hmac"})
	if err != nil {
		t.Fatal(err)
	}
	b.Source = known.Number[thingsSource]
	b.Sources[thingsSource] = apply.Source{Number: b.Source, Config: b.endpoint.Source,
		Provider: b.endpoint.Provider, RefetchReader: b.endpoint.RefetchReader()}
	b.proc = b.Applier(t, nil, thingsSource)
	b.runner = b.sourceRunner(t)
	return b
}

// changingCaller calls beforeCall of the environment before each call.
type changingCaller struct {
	providerapi.Caller
	env *restEnv
}

func (c changingCaller) Do(ctx context.Context, call provider.Call) (*providerapi.Response, error) {
	if c.env.beforeCall != nil {
		c.env.beforeCall(call)
	}
	return c.Caller.Do(ctx, call)
}

// sourceRunner makes a runner that calls the API over HTTP.
func (b *restEnv) sourceRunner(t *testing.T) *reconcile.Runner {
	t.Helper()
	s, e := &providerapi.Sources{}, b.endpoint
	source := &providerapi.Source{Name: thingsSource, Number: b.Source, Config: e.Source, API: e.API,
		Provider: e.Provider, Reader: e.Reader}
	source.Caller = changingCaller{newClient(t, b.Pool, source), b}
	s.Replace(source)
	settings := reconcile.DefaultSettings
	settings.RetryDelay = 10 * time.Millisecond
	return &reconcile.Runner{Resources: &refetch.Resources{Pool: b.Pool, Log: b.gateway, Applier: b.proc, Sources: s,
		Limits: refetch.DefaultLimits}, Settings: settings}
}

// deliver appends and applies webhooks, received at the API's time.
func (b *restEnv) deliver(t *testing.T, bodies [][]byte) {
	t.Helper()
	ds := make([]*provider.Delivery, len(bodies))
	for i, body := range bodies {
		ds[i] = &provider.Delivery{Header: http.Header{}, Body: body, ReceivedAt: b.fake.Now()}
	}
	applied.AppendAndApply(t, b.gateway, b.proc, b.Sources[thingsSource], ds...)
}

// thingDifferences returns the things that differ from the API.
func (b *restEnv) thingDifferences(t *testing.T) (wrong []string) {
	t.Helper()
	here := map[string]string{}
	rows, err := b.DB.Pool.Query(t.Context(), `SELECT object_id, deleted, coalesce(state::text, 'null'), ambiguous
		OR refetch_after <> 0 FROM objects WHERE source = $1 AND object_type = 'thing'`, b.Source)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	for rows.Next() {
		var id, state string
		var deleted, pending bool
		if err := rows.Scan(&id, &deleted, &state, &pending); err != nil {
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
		if pending {
			wrong = append(wrong, id+" has a pending refetch")
		}
	}
	for id, name := range b.fake.CurrentNames() {
		if here[id] != name {
			wrong = append(wrong, fmt.Sprintf("%s is %q in the mirror and %q in the API", id, here[id], name))
		}
	}
	return wrong
}

// A refetch of an object of a configured API updates the mirror: a changed object, a missing one,
// and an unknown one.
func TestRefetch_configuredAPI_updatesTheMirror(t *testing.T) {
	t.Parallel()
	b := newRESTEnv(t)
	b.fake.Set("a/1", "old", time.Second)
	b.fake.Set("b", "stays", time.Second)
	b.deliver(t, b.fake.Events())
	if wrong := b.thingDifferences(t); len(wrong) > 0 {
		t.Fatalf("before any loss: %v", wrong)
	}
	b.fake.Set("a/1", "new", time.Second)
	b.fake.Set("b", "", time.Second)
	b.fake.Set("c", "unheard of", time.Second)
	b.fake.Advance(time.Minute)
	if wrong := b.thingDifferences(t); len(wrong) != 3 {
		t.Fatalf("before the refetches: %v", wrong)
	}
	b.startReconciler(t, b.runner)
	for _, id := range []string{"a/1", "b", "c"} {
		wantCounts(t, b.wantDone(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: id}),
			counts{reconcile.Missing: 1})
	}
	wantNone(t, b.thingDifferences(t))
	if n := b.fake.RequestCount("/me"); n != 1 {
		t.Errorf("%d control calls, want one for the missing object", n)
	}
	b.deliver(t, b.fake.Events()) // the lost webhooks arrive late
	wantNone(t, b.thingDifferences(t))
	var body []byte
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT body FROM events WHERE event_type = 'postern.refetch'
		AND object_id = 'a/1'`).Scan(&body); err != nil ||
		!bytes.Contains(body, []byte(`"object":{"data":{"thing":{"changed":`)) {
		t.Errorf("the log has %s (%v), and not the response byte for byte", body, err)
	}
}

// A request for an object of a source with a pinned account need not contain the account.
func TestRefetch_pinnedAccount_needsNoName(t *testing.T) {
	t.Parallel()
	b := newRESTEnv(t, "provider: hmac", "provider: hmac\n    account: shop_1")
	b.fake.Set("a", "one", time.Second)
	b.deliver(t, b.fake.Events())
	b.startReconciler(t, b.runner)
	for _, account := range []string{"", "shop_1"} {
		b.fake.Set("a", "requested by "+account, time.Second)
		b.fake.Advance(time.Minute)
		b.wantDone(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: "a", Account: account})
	}
	var n int
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT count(*) FROM objects`).Scan(&n); err != nil || n != 1 {
		t.Errorf("%d objects of one (%v)", n, err)
	}
	wantNone(t, b.thingDifferences(t))
}

// A rejected response, or a response about another object, is not appended. No message shows the
// key.
func TestRefetch_configuredAPIRejects_appendsNothing(t *testing.T) {
	t.Parallel()
	b := newRESTEnv(t, `get: "/things/{id}"`, `get: "/things/a?id={id}"`)
	b.fake.Set("a", "one", time.Second)
	b.startReconciler(t, b.runner)
	for what, o := range map[string]reconcile.Params{
		"source things, other: the API cannot read objects of that type": {Type: "other", ID: "a"},
		"source things, thing: the API cannot read objects of that type ": {Type: "thing", ID: "a",
			Account: "somebody"},
	} {
		o.Scope = reconcile.Object
		b.wantFailure(t, o, what)
	}
	run := b.startOwnRun(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: "z"})
	b.WaitForRun(t, run, func(r *runs.Run) bool {
		return strings.Contains(r.Detail, `the API returned one whose key is "a"`)
	})
	var n int
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events`).Scan(&n); err != nil || n != 0 {
		t.Errorf("%d events (%v)", n, err)
	}
}

// startOwnRun requests a reconciliation of the source.
func (b *restEnv) startOwnRun(t *testing.T, o reconcile.Params) int64 {
	t.Helper()
	o.Source = b.Source
	run := b.startRun(t, o)
	return run
}

// pagings are edits of the example configuration with another paging.
var pagings = map[string][]string{
	"field": nil,
	"address": {"/lists/field", "/lists/url", `after: "{cursor}", `, "", "next: {field: meta.next}",
		"next: {address: meta.next}"},
	"link": {"/lists/field", "/lists/link", `after: "{cursor}", `, "", "next: {field: meta.next}",
		"next: {link: true}"},
	"last": {"/lists/field", "/lists/last", "next: {field: meta.next}", "next: {last: key, more: more}"},
	"window": {"/lists/field", "/lists/window", `after: "{cursor}", `, "", "next: {field: meta.next}",
		"next: {window: true}"},
	"page": {"/lists/field", "/lists/page", `after: "{cursor}", `, `page: "{cursor}", `},
	"whole": {"/lists/field", "/lists/whole",
		`query: {limit: "{limit}", after: "{cursor}", since: "{since}", until: "{until}"}`, "",
		"            items: items", "", "next: {field: meta.next}", "partial: true"},
}

// changeAndDeliverHalf creates, changes and deletes things, and delivers half of the webhooks.
func (b *restEnv) changeAndDeliverHalf(t *testing.T, seed uint64, changes int) {
	t.Helper()
	r, from := rand.New(rand.NewPCG(seed, 61)), len(b.fake.Events())
	for range changes {
		name := fmt.Sprint("name ", r.IntN(1000))
		if r.IntN(6) == 0 {
			name = ""
		}
		b.fake.Set(fmt.Sprintf("t%02d", r.IntN(40)), name, time.Duration(500+r.IntN(3000))*time.Millisecond)
	}
	var kept [][]byte
	for _, body := range b.fake.Events()[from:] {
		if r.IntN(2) == 0 {
			kept = append(kept, body)
		}
	}
	r.Shuffle(len(kept), func(i, k int) { kept[i], kept[k] = kept[k], kept[i] })
	b.deliver(t, kept)
	b.fake.Advance(time.Minute)
	if len(b.thingDifferences(t)) == 0 {
		t.Fatal("there are no differences: the test is too easy")
	}
}

// Half of the webhooks are lost, and the API fails. After a scan the mirror equals the API with
// each paging. A second scan needs no refetch.
func TestObjectScan_configuredAPI_makesMirrorEqual(t *testing.T) {
	t.Parallel()
	for kind, edits := range pagings {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newRESTEnv(t, append([]string{"limit: 100", "limit: 6"}, edits...)...)
			b.changeAndDeliverHalf(t, 7, 80)
			var n atomic.Int64
			b.fake.NextFault = func(r *http.Request) restfake.Fault {
				switch i := n.Add(1); {
				case i%11 == 3:
					return restfake.ServerError
				case i%11 == 7:
					return restfake.ConnectionDropped
				case i == 5 && r.URL.Query().Get("after") != "":
					return restfake.CursorExpired
				case i == 20:
					return restfake.Throttled
				}
				return restfake.NoFault
			}
			b.startReconciler(t, b.runner)
			b.scan(t, reconcile.Params{})
			wantNone(t, b.thingDifferences(t))
			b.fake.NextFault = nil
			refetches, again := b.fake.RequestCount("/things/"), b.scan(t, reconcile.Params{Full: true})
			alive := int64(0)
			for _, name := range b.fake.CurrentNames() {
				if name != "" {
					alive++
				}
			}
			wantExactCounts(t, again, counts{reconcile.Processed: alive, objectscan.Equal: alive})
			if made := b.fake.RequestCount("/things/") - refetches; made != 0 {
				t.Errorf("%d refetches of equal objects", made)
			}
		})
	}
}

// A late list has old states. They do not replace newer states of webhooks, which are ordered by
// the time of the events only.
func TestObjectScan_configuredLateList_keepsNewerState(t *testing.T) {
	t.Parallel()
	b := newRESTEnv(t, "limit: 100\n            items", "limit: 100\n            lag: 5m\n            items",
		`type: "{json:type}"`, "type: '{json:type}'\n      occurred: {from: 'json:thing.changed'}",
		`version: {from: "json:thing.changed", unit: rfc3339}`, "", "version: {path: changed, unit: rfc3339}", "")
	b.changeAndDeliverHalf(t, 9, 60)
	b.fake.Advance(10 * time.Minute)
	b.startReconciler(t, b.runner)
	b.scan(t, reconcile.Params{})
	wantNone(t, b.thingDifferences(t))
	from := len(b.fake.Events())
	for i := range 10 {
		b.fake.Set(fmt.Sprintf("t%02d", i), []string{"newer", ""}[i%2], time.Second)
	}
	b.deliver(t, b.fake.Events()[from:])
	b.fake.ListAge = 4 * time.Minute
	r := b.scan(t, reconcile.Params{Full: true})
	for _, w := range b.thingDifferences(t) {
		t.Errorf("%s (counts %v)", w, r.Counts)
	}
}

// With a wrong key, or a wrong path of objects, no object is believed to be missing.
func TestRefetch_configurationMistake_deletesNothing(t *testing.T) {
	t.Parallel()
	for slip, of := range map[string]struct{ edits []string }{
		"answered 401: the key is wrong":                      {[]string{"X-Api-Key: {key}", "X-Api-Key: x{key}"}},
		"answered 404 without saying that the object is miss": {[]string{`get: "/things/{id}"`, `get: "/thing/{id}"`}},
	} {
		t.Run(slip, func(t *testing.T) {
			t.Parallel()
			b := newRESTEnv(t, of.edits...)
			b.fake.Set("a", "one", time.Second)
			b.deliver(t, b.fake.Events())
			b.startReconciler(t, b.runner)
			run := b.startOwnRun(t, reconcile.Params{Scope: reconcile.Object, Type: "thing", ID: "a"})
			b.WaitForRun(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, slip) })
			wantNone(t, b.thingDifferences(t))
		})
	}
}

// The first of 43 things is deleted without a webhook before the second page is returned. After one
// such delete the run repairs everything. If it happens each time, the type is not complete.
func TestObjectScan_deletesBetweenNumberedPages_areDetected(t *testing.T) {
	t.Parallel()
	for deletes, want := range map[int]string{1: "", 20: "objects move between its pages all the time"} {
		t.Run(fmt.Sprint(deletes, " deletes"), func(t *testing.T) {
			t.Parallel()
			b := newRESTEnv(t, append([]string{"limit: 100", "limit: 10"}, pagings["page"]...)...)
			for i := range 43 {
				b.fake.Set(fmt.Sprintf("t%02d", i), "x", time.Second)
			}
			b.fake.Advance(time.Minute)
			deleted := 0
			b.beforeCall = func(call provider.Call) {
				if call.Query.Get("page") == "2" && deleted < deletes {
					b.fake.Set(fmt.Sprintf("t%02d", deleted), "", time.Millisecond)
					deleted++
				}
			}
			b.startReconciler(t, b.runner)
			run := b.startOwnRun(t, reconcile.Params{Scope: reconcile.Objects, Type: "thing", Full: true})
			if want != "" {
				if r := b.WaitForRun(t, run,
					func(r *runs.Run) bool { return strings.Contains(r.Detail, want) }); r.Status ==
					runs.Done {
					t.Errorf("the run is done with %v", r.Counts)
				}
				return
			}
			r := b.WaitForRun(t, run, func(r *runs.Run) bool { return r.Status == runs.Done })
			for _, w := range b.thingDifferences(t) {
				if strings.HasPrefix(w, "t00 ") {
					continue // deleted after it was listed
				}
				t.Errorf("%s (counts %v)", w, r.Counts)
			}
		})
	}
}
