package providertest

import (
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// identified returns the events of a delivery.
func (s Suite) identified(t *testing.T, d *provider.Delivery) []provider.Event {
	t.Helper()
	events, err := s.Provider.Identify(s.Source, d)
	if err != nil || len(events) == 0 {
		t.Fatalf("identify: %d events, %v", len(events), err)
	}
	return events
}

// testMissingKey checks that a delivery without a key gets a content key, which is the same for
// equal content only.
func testMissingKey(t *testing.T, s Suite) {
	d := s.firstDelivery(t)
	if s.NoKey == nil {
		if first := s.identified(t, d)[0]; !first.ContentKey {
			t.Errorf("the suite has no NoKey, but event %+v has a key", first)
		}
	} else {
		s.NoKey(t, s.Source, d)
	}
	if _, err := s.Provider.Verify(s.Source, d); err != nil {
		t.Fatal(err)
	}
	a := s.identified(t, d)[0]
	if !a.ContentKey || a.Key == "" {
		t.Errorf("identify without key: %+v", a)
	}
	if again := s.identified(t, d)[0]; again.Key != a.Key {
		t.Errorf("one body has content keys %s and %s", a.Key, again.Key)
	}
	d.Body = addMember(t, d.Body)
	if b := s.identified(t, d)[0]; b.Key == a.Key {
		t.Errorf("two bodies have one content key %s", b.Key)
	}
}

// testSameEvent checks that a delivery sent again, signed with another secret, is the same event.
// So is one signed later, except for its time if the sender puts that outside of the body.
func testSameEvent(t *testing.T, s Suite) {
	for _, sample := range s.Provider.Samples() {
		once := s.identified(t, s.Deliver(t, s.Source, sample))
		for _, later := range []time.Duration{0, time.Minute} {
			d, err := s.Provider.Sign(s.withSecrets(s.Source.Secrets[1]), sample, now.Add(later))
			if err != nil {
				t.Fatal(err)
			}
			again := s.identified(t, d)
			for i := range again {
				if later > 0 && i < len(once) {
					again[i].OccurredAt = once[i].OccurredAt
				}
			}
			if diff := cmp.Diff(once, again); diff != "" {
				t.Errorf("%s sent again %s later is another event:\n%s", sample.Type, later, diff)
			}
		}
	}
}

// testHeaders checks that the stored headers are enough to verify a rejected delivery later and to
// identify its events again, and that none is a credential.
func testHeaders(t *testing.T, s Suite) {
	names := s.Provider.Headers()
	for _, name := range names {
		if http.CanonicalHeaderKey(name) != name {
			t.Errorf("header %q is not canonical", name)
		}
	}
	for _, sample := range s.Provider.Samples() {
		d := s.Deliver(t, s.Source, sample)
		v, err := s.Provider.Verify(s.Source, d)
		if err != nil {
			t.Fatal(err)
		}
		s.dropOtherHeaders(t, names, d)
		if again, err := s.Provider.Verify(s.Source, d); !s.isToken(v.Scheme) && (err != nil || again != v) {
			t.Errorf("%s: with the stored headers %q it is verified as %+v, %v", sample.Type, names, again, err)
		}
	}
}

// dropOtherHeaders reduces a delivery to the headers that are stored. It checks that none of them
// contains a secret.
func (s Suite) dropOtherHeaders(t *testing.T, names []string, d *provider.Delivery) {
	t.Helper()
	before := s.identified(t, d)
	stored := http.Header{}
	for _, name := range names {
		if values, ok := d.Header[name]; ok {
			stored[name] = values
		}
		if value := strings.Join(stored[name], ", "); strings.Contains(value, string(s.Source.Secrets[0].Value)) {
			t.Errorf("the stored header %s contains the secret", name)
		}
	}
	d.Header = stored
	if d.Query != "" && !slices.Contains(names, ":query") {
		d.Query = ""
	}
	if diff := cmp.Diff(before, s.identified(t, d)); diff != "" {
		t.Errorf("with the stored headers %q it is identified differently:\n%s", names, diff)
	}
}

// isToken reports whether a scheme is a shared token, which is not stored.
func (s Suite) isToken(scheme string) bool {
	return slices.ContainsFunc(s.schemes(), func(each *signature.Scheme) bool {
		return each.Name == scheme && each.Method == signature.Token
	})
}

func testCheck(t *testing.T, s Suite) {
	if err := s.Provider.Check(s.Source); err != nil {
		t.Errorf("check a usable source: %v", err)
	}
	if s.Provider.Check(s.withSecrets()) == nil ||
		s.Provider.Check(s.withSecrets(provider.Secret{Name: "empty"})) == nil {
		t.Error("a source without a secret is accepted")
	}
	for _, bad := range s.BadSecrets {
		if s.Provider.Check(s.withSecrets(provider.Secret{Name: "bad", Value: []byte(bad)})) == nil {
			t.Errorf("the secret %q is accepted", bad)
		}
	}
	other := *s.Source
	other.Key = "no such choice"
	if s.Provider.Check(&other) == nil {
		t.Error("an unknown key choice is accepted")
	}
	signsURL := slices.ContainsFunc(s.refs(anyScheme), func(r signature.Ref) bool {
		return r.Kind == signature.URL || r.Kind == signature.Path
	})
	other = *s.Source
	other.URL = ""
	if signsURL && s.Provider.Check(&other) == nil {
		t.Error("a source without its url is accepted, although the sender signs it")
	}
}
