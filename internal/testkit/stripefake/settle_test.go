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

const lag = 2 * time.Second

// rows is a mirror of a fake, without a database.
type rows struct {
	t        *testing.T
	fake     *stripefake.Fake
	ask      *client
	rows     map[string]*versioning.Row
	volatile map[string][]string
	looks    int
}

func (m *rows) row(id string) *versioning.Row {
	if m.rows[id] == nil {
		row := versioning.NewRow()
		m.rows[id] = &row
	}
	return m.rows[id]
}

// event takes an event, from wherever it came.
func (m *rows) event(body []byte) {
	m.t.Helper()
	o, err := stripe.Stripe{}.Observe(&provider.Source{}, &provider.Stored{Body: body})
	if err != nil {
		m.t.Fatal(err)
	}
	in, err := versioning.FromObservation(o, m.fake.Now())
	if err != nil {
		m.t.Fatal(err)
	}
	m.volatile[o.ObjectType] = o.Volatile
	versioning.Apply(m.row(o.ObjectID), in)
}

// look asks for an object and puts the answer into the terms of the rule.
func (m *rows) look(plural, id string) {
	m.t.Helper()
	m.looks++
	status, header, body, err := m.ask.ask("/v1/"+plural+"/"+id, nil)
	at, err2 := http.ParseTime(header.Get("Date"))
	if err != nil || err2 != nil {
		m.t.Fatal(err, err2)
	}
	a := sim.Answer{Date: at.UnixMicro(), Lag: lag.Microseconds(), Unit: second, VersionUnit: second, State: versioning.NullState(true)}
	if status == http.StatusOK {
		v, err := canonical.Parse(body)
		if err != nil {
			m.t.Fatal(err)
		}
		if a.Stub, _ = v.Get("deleted").Bool(); !a.Stub {
			kind, _ := v.Get("object").Text()
			a.State = versioning.NewState(v, false, m.volatile[kind])
		}
		if updated, ok := v.Get("updated").Int64(); ok {
			a.Own, a.Version = true, updated*second
		}
	}
	versioning.Apply(m.row(id), a.Input())
}

const second = 1_000_000

// wrong are the objects that are not as they are in truth.
func (m *rows) wrong() []string {
	m.t.Helper()
	var out []string
	for _, o := range m.fake.Truth() {
		row := m.row(o.ID)
		truth := versioning.NullState(true)
		if !o.Deleted() {
			v, err := canonical.Parse(o.Body)
			if err != nil {
				m.t.Fatal(err)
			}
			truth = versioning.NewState(v, false, m.volatile[o.Type])
		}
		if row.State.Deleted != truth.Deleted || !o.Deleted() && row.State.Hash != truth.Hash {
			out = append(out, fmt.Sprintf("%s is %s, in truth %s", o.ID, row.State.JSON, o.Body))
		}
	}
	return out
}

// Webhooks alone leave a mirror wrong. The events that the API lists and looks at what is still in doubt make it right, although
// answers lag, events come late into the list, and somebody looked at things at the worst of times.
func TestTheAPISettlesWhatWebhooksLeave(t *testing.T) {
	t.Parallel()
	left, doubts, looks, objects := 0, 0, 0, 0
	for seed := range uint64(8) {
		m := live(t, seed)
		left += len(m.wrong())
		m.fake.Advance(10 * time.Second) // lists are behind by less
		page := url.Values{"limit": {"100"}}
		for {
			status, _, body, err := m.ask.ask("/v1/events", page)
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
				m.event(e)
			}
			if !events.More {
				break
			}
			page.Set("starting_after", tree(t, events.Data[len(events.Data)-1])["id"].(string))
		}
		m.fake.Advance(10 * time.Second) // a look must begin after all it is to settle
		m.looks = 0
		for _, o := range m.fake.Truth() {
			objects++
			if row := m.row(o.ID); row.LookAfter != 0 {
				doubts++
				m.look(o.Type+"s", o.ID)
			}
			if row := m.row(o.ID); row.LookAfter != 0 || row.Ambiguous {
				t.Errorf("seed %d: %s still owes a look", seed, o.ID)
			}
		}
		looks += m.looks
		if wrong := m.wrong(); len(wrong) > 0 {
			t.Fatalf("seed %d: in the end %d objects are wrong: %s", seed, len(wrong), wrong[0])
		}
	}
	t.Logf("of %d objects webhooks left %d wrong; after the events were listed %d owed a look", objects, left, doubts)
	if left < 20 || doubts == 0 || looks != doubts {
		t.Errorf("webhooks left %d objects wrong, %d owed a look, there were %d looks", left, doubts, looks)
	}
}

// live is a mirror after a life with bad webhooks and looks at any moment.
func live(t *testing.T, seed uint64) *rows {
	t.Helper()
	f := stripefake.New(t, stripefake.Options{
		Seed: seed, Live: true, Burst: 40, Reborn: 30,
		Webhooks: stripefake.Webhooks{Lost: 20, Swallowed: 10, Doubled: 20, Delayed: 30, Delay: 10 * time.Second, Shuffled: 30},
		Faults:   stripefake.Faults{Lag: lag, Late: 5 * time.Second},
	})
	m := &rows{t: t, fake: f, ask: connect(t, f), rows: map[string]*versioning.Row{}, volatile: map[string][]string{"invoice": {"webhooks_delivered_at", "hosted_invoice_url", "invoice_pdf"}, "charge": {"receipt_url"}}}
	r := rand.New(rand.NewPCG(seed, 5))
	for range 250 {
		f.Step()
		if r.IntN(3) == 0 {
			f.Deliver(func(d *provider.Delivery) bool { m.event(slices.Clone(d.Body)); return true })
		}
		if r.IntN(4) == 0 {
			all := f.Truth()
			o := all[r.IntN(len(all))]
			m.look(o.Type+"s", o.ID)
		}
	}
	return m
}
