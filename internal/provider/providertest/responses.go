package providertest

import (
	"net/http"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
)

// testHandshakes checks that a handshake gets its response only with a valid signature, and that no
// event is treated as a handshake.
func testHandshakes(t *testing.T, s Suite) {
	for _, sample := range s.Provider.Samples() {
		if got := s.respond(s.Source, s.Deliver(t, s.Source, sample)); got != nil {
			t.Errorf("%s gets a handshake response: %+v", sample.Type, got)
		}
	}
	for _, g := range s.Handshakes {
		d := s.Deliver(t, s.Source, g.Sample)
		if diff := cmp.Diff(withStatus(g.Want), withStatus(s.respond(s.Source, d))); diff != "" || g.Want == nil {
			t.Errorf("handshake %s has another response:\n%s", g.Name, diff)
		}
		wrongSecret := s.Deliver(t, s.withSecrets(unknownSecret), g.Sample)
		unsigned := *d
		unsigned.Header = http.Header{"Content-Type": d.Header["Content-Type"]}
		forged := *d
		forged.Body = addMember(t, d.Body)
		late := *d
		late.ReceivedAt = d.ReceivedAt.Add(s.Tolerance + time.Minute)
		for name, bad := range map[string]*provider.Delivery{"wrong secret": wrongSecret, "unsigned": &unsigned,
			"forged": &forged, "late": &late} {
			if name == "forged" && s.BodyNotCovered != "" || name == "late" && !s.SignsTime || name == "unsigned" &&
				s.InBody != "" {
				continue
			}
			if got := s.respond(s.Source, bad); got != nil {
				t.Errorf("handshake %s, %s, gets the response %+v", g.Name, name, got)
			}
		}
	}
}

// respond returns the response to a POST that is no event. It verifies first, as the gateway does.
func (s Suite) respond(src *provider.Source, d *provider.Delivery) *provider.Reply {
	g, ok := s.Provider.(provider.Handshaker)
	if _, err := s.Provider.Verify(src, d); err != nil || !ok {
		return nil
	}
	return g.Handshake(src, d)
}

// testChallenges checks that only the sender's unsigned challenges get a response.
func testChallenges(t *testing.T, s Suite) {
	c, _ := s.Provider.(provider.Challenger)
	challenge := func(src *provider.Source, d *provider.Delivery) *provider.Reply {
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
		if diff := cmp.Diff(withStatus(each.Want), withStatus(challenge(src, each.Request))); diff != "" {
			t.Errorf("challenge %s has another response:\n%s", each.Name, diff)
		}
	}
	if len(s.Challenges) > 0 {
		return
	}
	requests := []*provider.Delivery{{Method: http.MethodGet, Header: http.Header{}, ReceivedAt: now},
		{Method: http.MethodHead, Header: http.Header{}, ReceivedAt: now}}
	for _, g := range s.Handshakes { // a handshake must be signed, so GET must not return its response
		d := s.Deliver(t, s.withSecrets(unknownSecret), g.Sample)
		d.Method = http.MethodGet
		requests = append(requests, d)
	}
	for _, d := range requests {
		if got := challenge(s.Source, d); got != nil {
			t.Errorf("%s gets the response %+v", d.Method, got)
		}
	}
}

// testAcknowledgement checks the response to a stored delivery.
func testAcknowledgement(t *testing.T, s Suite) {
	for _, sample := range s.Provider.Samples() {
		var got *provider.Reply
		if a, ok := s.Provider.(provider.Acknowledger); ok {
			got = a.Acknowledge(s.Source, s.Deliver(t, s.Source, sample))
		}
		if diff := cmp.Diff(withStatus(s.Reply), withStatus(got)); diff != "" {
			t.Errorf("%s has another acknowledgement:\n%s", sample.Type, diff)
		}
	}
}

// withStatus replaces status 0 by 200, which it means.
func withStatus(r *provider.Reply) *provider.Reply {
	if r == nil || r.Status != 0 {
		return r
	}
	out := *r
	out.Status = http.StatusOK
	return &out
}
