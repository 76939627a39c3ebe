package stripefake_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/url"
	"slices"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/testkit/sim"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
	"github.com/postern-gateway/postern/internal/versioning"
)

const maxLag = 2 * time.Second

// mirrorRows is a mirror of a fake, without a database.
type mirrorRows struct {
	t            *testing.T
	fake         *stripefake.Fake
	client       *client
	byID         map[string]*versioning.Row
	ignoredPaths map[string][]string
	refetches    int
}

func (m *mirrorRows) row(id string) *versioning.Row {
	if m.byID[id] == nil {
		row := versioning.NewRow()
		m.byID[id] = &row
	}
	return m.byID[id]
}

// applyEvent applies an event from a webhook or the API.
func (m *mirrorRows) applyEvent(body []byte) {
	m.t.Helper()
	o, err := stripe.Stripe{}.Observe(&provider.Source{}, &provider.StoredEvent{Body: body})
	if err != nil {
		m.t.Fatal(err)
	}
	in, err := versioning.InputFromObservation(o, m.fake.Now())
	if err != nil {
		m.t.Fatal(err)
	}
	m.ignoredPaths[o.ObjectType] = o.IgnoredPaths
	versioning.Apply(m.row(o.ObjectID), in)
}

// refetch reads an object and applies the response as an input of the version rule.
func (m *mirrorRows) refetch(plural, id string) {
	m.t.Helper()
	m.refetches++
	status, header, body, err := m.client.request("/v1/"+plural+"/"+id, nil)
	at, err2 := http.ParseTime(header.Get("Date"))
	if err != nil || err2 != nil {
		m.t.Fatal(err, err2)
	}
	a := sim.APIResponse{Date: at.UnixMicro(), Lag: maxLag.Microseconds(), Unit: second, VersionUnit: second,
		State: versioning.NullState(true)}
	if status == http.StatusOK {
		v, err := canonical.Parse(body)
		if err != nil {
			m.t.Fatal(err)
		}
		if a.Stub, _ = v.Get("deleted").Bool(); !a.Stub {
			kind, _ := v.Get("object").Text()
			a.State = versioning.NewState(v, false, m.ignoredPaths[kind])
		}
		if updated, ok := v.Get("updated").Int64(); ok {
			a.HasVersion, a.Version = true, updated*second
		}
	}
	versioning.Apply(m.row(id), a.Input())
}

const second = 1_000_000

// differences returns the objects that differ from the fake.
func (m *mirrorRows) differences() []string {
	m.t.Helper()
	var out []string
	for _, o := range m.fake.CurrentObjects() {
		row := m.row(o.ID)
		truth := versioning.NullState(true)
		if !o.Deleted() {
			v, err := canonical.Parse(o.Body)
			if err != nil {
				m.t.Fatal(err)
			}
			truth = versioning.NewState(v, false, m.ignoredPaths[o.Type])
		}
		if row.State.Deleted != truth.Deleted || !o.Deleted() && row.State.Hash != truth.Hash {
			out = append(out, fmt.Sprintf("%s is %s, want %s", o.ID, row.State.JSON, o.Body))
		}
	}
	return out
}

// Webhooks alone leave differences. The listed events and refetches of pending objects remove them,
// although responses are old, events appear late in the list, and earlier refetches ran at any
// time.
func TestRefetches_afterLossyWebhooks_reachCurrentState(t *testing.T) {
	t.Parallel()
	left, pending, refetched, objects := 0, 0, 0, 0
	for seed := range uint64(8) {
		m := mirrorAfterRandomSteps(t, seed)
		left += len(m.differences())
		m.fake.Advance(10 * time.Second) // longer than the delay of lists
		page := url.Values{"limit": {"100"}}
		for {
			status, _, body, err := m.client.request("/v1/events", page)
			if err != nil || status != http.StatusOK {
				t.Fatal(status, err)
			}
			var events struct {
				Data []json.RawMessage
				More bool `json:"has_more"`
			}
			if err := json.Unmarshal(body, &events); err != nil {
				t.Fatal(err)
			}
			for _, e := range events.Data {
				m.applyEvent(e)
			}
			if !events.More {
				break
			}
			page.Set("starting_after", tree(t, events.Data[len(events.Data)-1])["id"].(string))
		}
		m.fake.Advance(10 * time.Second) // a refetch must begin after the state that it replaces
		m.refetches = 0
		for _, o := range m.fake.CurrentObjects() {
			objects++
			if row := m.row(o.ID); row.RefetchAfter != 0 {
				pending++
				m.refetch(o.Type+"s", o.ID)
			}
			if row := m.row(o.ID); row.RefetchAfter != 0 || row.Ambiguous {
				t.Errorf("seed %d: a refetch of %s is still pending", seed, o.ID)
			}
		}
		refetched += m.refetches
		if wrong := m.differences(); len(wrong) > 0 {
			t.Fatalf("seed %d: at the end %d objects differ: %s", seed, len(wrong), wrong[0])
		}
	}
	t.Logf("of %d objects webhooks left %d different; after the events were listed %d refetches were pending", objects,
		left, pending)
	if left < 20 || pending == 0 || refetched != pending {
		t.Errorf("webhooks left %d objects different, %d refetches were pending, %d were made", left, pending,
			refetched)
	}
}

// mirrorAfterRandomSteps returns a mirror after random changes with lossy webhooks and refetches at
// any time.
func mirrorAfterRandomSteps(t *testing.T, seed uint64) *mirrorRows {
	t.Helper()
	f := stripefake.New(t, stripefake.Options{
		Seed: seed, LiveMode: true, Burst: 40, ReusedIDs: 30,
		Webhooks: stripefake.Webhooks{LostUnacknowledged: 20, LostAcknowledged: 10, Repeated: 20, Delayed: 30,
			Delay:    10 * time.Second,
			Shuffled: 30},
		Faults: stripefake.Faults{Lag: maxLag, MaxListDelay: 5 * time.Second},
	})
	m := &mirrorRows{t: t, fake: f, client: newClient(t, f), byID: map[string]*versioning.Row{},
		ignoredPaths: map[string][]string{"invoice": {"webhooks_delivered_at", "hosted_invoice_url", "invoice_pdf"},
			"charge": {"receipt_url"}}}
	r := rand.New(rand.NewPCG(seed, 5))
	for range 250 {
		f.Step()
		if r.IntN(3) == 0 {
			f.Deliver(func(d *provider.Delivery) bool { m.applyEvent(slices.Clone(d.Body)); return true })
		}
		if r.IntN(4) == 0 {
			all := f.CurrentObjects()
			o := all[r.IntN(len(all))]
			m.refetch(o.Type+"s", o.ID)
		}
	}
	return m
}
