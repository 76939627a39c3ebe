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
	b := &described{fake: restfake.New(t), world: bare(t)}
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
	b.Source = known.Number[things]
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
	s, e := &reconcile.Sources{}, b.endpoint
	source := &reconcile.Source{Name: things, Number: b.Source, Config: e.Source, API: e.API, Provider: e.Provider, Reader: e.Reader}
	source.Caller = changingCaller{newClient(t, b.Pool, source), b}
	s.Replace(source)
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
	b.carry(t, b.runner)
	for _, id := range []string{"a/1", "b", "c"} {
		has(t, b.done(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: id}), counts{reconcile.Missing: 1})
	}
	none(t, b.differs(t))
	if n := b.fake.Calls("/me"); n != 1 {
		t.Errorf("%d controls, of which one belongs to what is missing", n)
	}
	b.deliver(t, b.fake.Events()) // what was lost comes after all
	none(t, b.differs(t))
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
	b.carry(t, b.runner)
	for _, account := range []string{"", "shop_1"} {
		b.fake.Set("a", "asked for by "+account, time.Second)
		b.fake.Advance(time.Minute)
		b.done(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: "a", Account: account})
	}
	var n int
	if err := b.DB.Pool.QueryRow(t.Context(), `SELECT count(*) FROM objects`).Scan(&n); err != nil || n != 1 {
		t.Errorf("%d objects of one (%v)", n, err)
	}
	none(t, b.differs(t))
}

// What the API refuses, or answers of another object, enters nothing, and no word shows the key.
func TestDescribedAPIRefuses(t *testing.T) {
	t.Parallel()
	b := newDescribed(t, `get: "/things/{id}"`, `get: "/things/a?id={id}"`)
	b.fake.Set("a", "one", time.Second)
	b.carry(t, b.runner)
	for what, o := range map[string]reconcile.Order{
		"source things, other: the API reads no object of that type":  {Type: "other", ID: "a"},
		"source things, thing: the API reads no object of that type ": {Type: "thing", ID: "a", Account: "somebody"},
	} {
		o.What = reconcile.Object
		b.fails(t, o, what)
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
	run := b.order(t, o)
	return run
}

// pagings are edits of the example that page otherwise.
var pagings = map[string][]string{
	"field":   nil,
	"address": {"/lists/field", "/lists/url", `after: "{cursor}", `, "", "next: {field: meta.next}", "next: {address: meta.next}"},
	"link":    {"/lists/field", "/lists/link", `after: "{cursor}", `, "", "next: {field: meta.next}", "next: {link: true}"},
	"last":    {"/lists/field", "/lists/last", "next: {field: meta.next}", "next: {last: key, more: more}"},
	"window":  {"/lists/field", "/lists/window", `after: "{cursor}", `, "", "next: {field: meta.next}", "next: {window: true}"},
	"page":    {"/lists/field", "/lists/page", `after: "{cursor}"`, `page: "{cursor}"`},
	"whole":   {"/lists/field", "/lists/whole", `query: {limit: "{limit}", after: "{cursor}", since: "{since}", until: "{until}"}`, "", "            items: items", "", "next: {field: meta.next}", "partial: true"},
}

// live has things made, changed and deleted, and delivers half of the webhooks that tell of it.
func (b *described) live(t *testing.T, seed uint64, changes int) {
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
	if len(b.differs(t)) == 0 {
		t.Fatal("nothing is wrong: there is nothing to find")
	}
}

// Half of the webhooks are lost, and the API has its troubles: after a sweep the mirror is what the API has, however it pages, and few calls were made.
func TestSweepOfADescribedAPI(t *testing.T) {
	t.Parallel()
	for kind, edits := range pagings {
		t.Run(kind, func(t *testing.T) {
			t.Parallel()
			b := newDescribed(t, append([]string{"limit: 100", "limit: 6"}, edits...)...)
			b.live(t, 7, 80)
			var n atomic.Int64
			b.fake.Fails = func(r *http.Request) restfake.Fault {
				switch i := n.Add(1); {
				case i%11 == 3:
					return restfake.Broken
				case i%11 == 7:
					return restfake.Cut
				case i == 5 && r.URL.Query().Get("after") != "":
					return restfake.Forgotten
				case i == 20:
					return restfake.Throttled
				}
				return restfake.None
			}
			b.carry(t, b.runner)
			b.sweep(t, reconcile.Order{})
			none(t, b.differs(t))
			b.fake.Fails = nil
			looks, again := b.fake.Calls("/things/"), b.sweep(t, reconcile.Order{Full: true})
			alive := int64(0)
			for _, name := range b.fake.Truth() {
				if name != "" {
					alive++
				}
			}
			counted(t, again, counts{reconcile.Seen: alive, reconcile.Equal: alive})
			if made := b.fake.Calls("/things/") - looks; made != 0 {
				t.Errorf("%d looks at what is as it should be", made)
			}
		})
	}
}

// A list that is late tells old states, which change nothing where webhooks have brought newer ones; here nothing but the time of the events orders them.
func TestLateListOfADescribedAPI(t *testing.T) {
	t.Parallel()
	b := newDescribed(t, "limit: 100\n            items", "limit: 100\n            lag: 5m\n            items", `type: "{json:type}"`, "type: '{json:type}'\n      occurred: {from: 'json:thing.changed'}",
		`version: {from: "json:thing.changed", unit: rfc3339}`, "", "version: {path: changed, unit: rfc3339}", "")
	b.live(t, 9, 60)
	b.fake.Advance(10 * time.Minute)
	b.carry(t, b.runner)
	b.sweep(t, reconcile.Order{})
	none(t, b.differs(t))
	from := len(b.fake.Events())
	for i := range 10 {
		b.fake.Set(fmt.Sprintf("t%02d", i), []string{"newer", ""}[i%2], time.Second)
	}
	b.deliver(t, b.fake.Events()[from:])
	b.fake.Late = 4 * time.Minute
	r := b.sweep(t, reconcile.Order{Full: true})
	for _, w := range b.differs(t) {
		t.Errorf("%s (counts %v)", w, r.Counts)
	}
}

// Where the key is wrong, or the path of an object is, nothing is believed to be missing.
func TestNothingIsMissingBySlip(t *testing.T) {
	t.Parallel()
	for slip, of := range map[string]struct{ edits []string }{
		"answered 401: the key is wrong":                      {[]string{"X-Api-Key: {key}", "X-Api-Key: x{key}"}},
		"answered 404 without saying that the object is miss": {[]string{`get: "/things/{id}"`, `get: "/thing/{id}"`}},
	} {
		t.Run(slip, func(t *testing.T) {
			t.Parallel()
			b := newDescribed(t, of.edits...)
			b.fake.Set("a", "one", time.Second)
			b.deliver(t, b.fake.Events())
			b.carry(t, b.runner)
			run := b.askOnly(t, reconcile.Order{What: reconcile.Object, Type: "thing", ID: "a"})
			b.Until(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, slip) })
			none(t, b.differs(t))
		})
	}
}

// TestReconcile_deletesBetweenCountedPages deletes the first of 43 things, of which no webhook came, before the second page is
// answered: once, so that nothing is missing after the run, or each time, so that the type is not reported as complete.
func TestReconcile_deletesBetweenCountedPages(t *testing.T) {
	t.Parallel()
	for deletes, want := range map[int]string{1: "", 20: "objects move between its pages all the time"} {
		t.Run(fmt.Sprint(deletes, " deletes"), func(t *testing.T) {
			t.Parallel()
			b := newDescribed(t, append([]string{"limit: 100", "limit: 10"}, pagings["page"]...)...)
			for i := range 43 {
				b.fake.Set(fmt.Sprintf("t%02d", i), "x", time.Second)
			}
			b.fake.Advance(time.Minute)
			deleted := 0
			b.change = func(call provider.Call) {
				if call.Query.Get("page") == "2" && deleted < deletes {
					b.fake.Set(fmt.Sprintf("t%02d", deleted), "", time.Millisecond)
					deleted++
				}
			}
			b.carry(t, b.runner)
			run := b.askOnly(t, reconcile.Order{What: reconcile.Objects, Type: "thing", Full: true})
			if want != "" {
				if r := b.Until(t, run, func(r *runs.Run) bool { return strings.Contains(r.Detail, want) }); r.Status == runs.Done {
					t.Errorf("the run is done with %v", r.Counts)
				}
				return
			}
			r := b.Until(t, run, func(r *runs.Run) bool { return r.Status == runs.Done })
			for _, w := range b.differs(t) {
				if strings.HasPrefix(w, "t00 ") {
					continue // deleted after it was listed
				}
				t.Errorf("%s (counts %v)", w, r.Counts)
			}
		})
	}
}
