package providertest

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
)

// greetings: what is no event is answered if its sender is proven, and to nobody else; an event is not taken for one.
func greetings(t *testing.T, s Suite) {
	for _, sample := range s.Provider.Samples() {
		if got := s.answer(s.Source, s.Deliver(t, s.Source, sample)); got != nil {
			t.Errorf("%s is answered as no event: %+v", sample.Type, got)
		}
	}
	for _, g := range s.Greetings {
		d := s.Deliver(t, s.Source, g.Sample)
		if diff := cmp.Diff(withStatus(g.Want), withStatus(s.answer(s.Source, d))); diff != "" || g.Want == nil {
			t.Errorf("greeting %s is answered otherwise:\n%s", g.Name, diff)
		}
		strange := s.Deliver(t, s.with(stranger), g.Sample)
		unsigned := *d
		unsigned.Header = http.Header{"Content-Type": d.Header["Content-Type"]}
		forged := *d
		forged.Body = grown(t, d.Body)
		late := *d
		late.ReceivedAt = d.ReceivedAt.Add(s.Tolerance + time.Minute)
		for name, bad := range map[string]*provider.Delivery{"strange": strange, "unsigned": &unsigned, "forged": &forged, "late": &late} {
			if name == "forged" && s.BodyNotCovered != "" || name == "late" && !s.Dated || name == "unsigned" && s.InBody != "" {
				continue
			}
			if got := s.answer(s.Source, bad); got != nil {
				t.Errorf("greeting %s, %s, is answered: %+v", g.Name, name, got)
			}
		}
	}
}

// answer is what a POST that is no event is answered, in the gateway's own order: proof first.
func (s Suite) answer(src *provider.Source, d *provider.Delivery) *provider.Reply {
	g, ok := s.Provider.(provider.Greeter)
	if _, err := s.Provider.Verify(src, d); err != nil || !ok {
		return nil
	}
	return g.Greet(src, d)
}

// challenges: a request that nobody signed is answered where the sender asks so, and no other is.
func challenges(t *testing.T, s Suite) {
	c, _ := s.Provider.(provider.Challenger)
	ask := func(src *provider.Source, d *provider.Delivery) *provider.Reply {
		if c == nil {
			return nil
		}
		return c.Challenge(src, d)
	}
	for _, each := range s.Challenges {
		src := s.Source
		if each.Source != nil {
			src = each.Source
		}
		if diff := cmp.Diff(withStatus(each.Want), withStatus(ask(src, each.Ask))); diff != "" {
			t.Errorf("challenge %s is answered otherwise:\n%s", each.Name, diff)
		}
	}
	if len(s.Challenges) > 0 {
		return
	}
	asks := []*provider.Delivery{{Method: http.MethodGet, Header: http.Header{}, ReceivedAt: now}, {Method: http.MethodHead, Header: http.Header{}, ReceivedAt: now}}
	for _, g := range s.Greetings { // nobody gets by GET what must be signed
		d := s.Deliver(t, s.with(stranger), g.Sample)
		d.Method = http.MethodGet
		asks = append(asks, d)
	}
	for _, d := range asks {
		if got := ask(s.Source, d); got != nil {
			t.Errorf("%s is answered: %+v", d.Method, got)
		}
	}
}

// reply: a stored delivery is answered as the sender wants it.
func reply(t *testing.T, s Suite) {
	for _, sample := range s.Provider.Samples() {
		var got *provider.Reply
		if a, ok := s.Provider.(provider.Acknowledger); ok {
			got = a.Acknowledge(s.Source, s.Deliver(t, s.Source, sample))
		}
		if diff := cmp.Diff(withStatus(s.Reply), withStatus(got)); diff != "" {
			t.Errorf("%s is acknowledged otherwise:\n%s", sample.Type, diff)
		}
	}
}

// withStatus writes out the status that none stands for.
func withStatus(r *provider.Reply) *provider.Reply {
	if r == nil || r.Status != 0 {
		return r
	}
	told := *r
	told.Status = http.StatusOK
	return &told
}
