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

// identified are the events of a delivery.
func (s Suite) identified(t *testing.T, d *provider.Delivery) []provider.Event {
	t.Helper()
	events, err := s.Provider.Identify(s.Source, d)
	if err != nil || len(events) == 0 {
		t.Fatalf("identify: %d events, %v", len(events), err)
	}
	return events
}

// missingKey: a delivery that names no event has a content key, the same for the same content and for no other.
func missingKey(t *testing.T, s Suite) {
	d := s.first(t)
	if s.NoKey == nil {
		if first := s.identified(t, d)[0]; !first.ContentKey {
			t.Errorf("the suite has no NoKey, and event %+v has a key", first)
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
	d.Body = grown(t, d.Body)
	if b := s.identified(t, d)[0]; b.Key == a.Key {
		t.Errorf("two bodies have one content key %s", b.Key)
	}
}

// sameEvent: a delivery sent again, signed anew by another secret, is the same event; signed later too, but for its time where
// the sender tells that beside the body.
func sameEvent(t *testing.T, s Suite) {
	for _, sample := range s.Provider.Samples() {
		once := s.identified(t, s.Deliver(t, s.Source, sample))
		for _, later := range []time.Duration{0, time.Minute} {
			d, err := s.Provider.Sign(s.with(s.Source.Secrets[1]), sample, now.Add(later))
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

// headers: those that are kept are enough to prove a rejected delivery later and to name its events again; none is a credential.
func headers(t *testing.T, s Suite) {
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
		s.keptOnly(t, names, d)
		if again, err := s.Provider.Verify(s.Source, d); !s.token(v.Scheme) && (err != nil || again != v) {
			t.Errorf("%s: with the kept headers %q it is proven as %+v, %v", sample.Type, names, again, err)
		}
	}
}

// keptOnly leaves a delivery the headers that are kept, and sees that none of them tells a secret.
func (s Suite) keptOnly(t *testing.T, names []string, d *provider.Delivery) {
	t.Helper()
	before := s.identified(t, d)
	kept := http.Header{}
	for _, name := range names {
		if values, ok := d.Header[name]; ok {
			kept[name] = values
		}
		if value := strings.Join(kept[name], ", "); strings.Contains(value, string(s.Source.Secrets[0].Value)) {
			t.Errorf("the kept header %s tells the secret", name)
		}
	}
	d.Header = kept
	if d.Query != "" && !slices.Contains(names, ":query") {
		d.Query = ""
	}
	if diff := cmp.Diff(before, s.identified(t, d)); diff != "" {
		t.Errorf("with the kept headers %q it is named otherwise:\n%s", names, diff)
	}
}

// token tells whether a scheme is a shared token, which is not kept.
func (s Suite) token(scheme string) bool {
	return slices.ContainsFunc(s.schemes(), func(each *signature.Scheme) bool { return each.Name == scheme && each.Method == signature.Token })
}

func check(t *testing.T, s Suite) {
	if err := s.Provider.Check(s.Source); err != nil {
		t.Errorf("check a usable source: %v", err)
	}
	if s.Provider.Check(s.with()) == nil || s.Provider.Check(s.with(provider.Secret{Name: "empty"})) == nil {
		t.Error("a source without a secret passes")
	}
	for _, bad := range s.BadSecrets {
		if s.Provider.Check(s.with(provider.Secret{Name: "bad", Value: []byte(bad)})) == nil {
			t.Errorf("the secret %q passes", bad)
		}
	}
	other := *s.Source
	other.Key = "no such choice"
	if s.Provider.Check(&other) == nil {
		t.Error("an unknown key choice passes")
	}
	signsURL := slices.ContainsFunc(s.refs(anyScheme), func(r signature.Ref) bool { return r.Kind == signature.URL || r.Kind == signature.Path })
	other = *s.Source
	other.URL = ""
	if signsURL && s.Provider.Check(&other) == nil {
		t.Error("a source without its url passes, and the sender signs it")
	}
}
