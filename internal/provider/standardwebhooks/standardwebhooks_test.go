package standardwebhooks_test

import (
	"flag"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/standardwebhooks"
)

var update = flag.Bool("update", false, "write the golden files")

func suite() providertest.Suite {
	return providertest.Suite{
		Provider: standardwebhooks.New(),
		Source: &provider.Source{Name: "standardwebhooks", Secrets: []provider.Secret{
			{Name: "new", Value: []byte("whsec_bmV3IHNlY3JldCBvZiBhIHRlc3Q=")}, {Name: "old", Value: []byte("whsec_b2xkIHNlY3JldCBvZiBhIHRlc3Q=")}}},
		Signature: "Webhook-Signature",
		Dated:     true,
		// The id is signed, so what lacks it is refused; one that can name nothing is as good as none.
		NoKey: func(t *testing.T, src *provider.Source, d *provider.Delivery) {
			t.Helper()
			d.Header.Set("Webhook-Id", strings.Repeat("x", provider.MaxName+1))
			seal(t, src, d, "standardwebhooks-v1")
		},
		BadSecrets: []string{"whsec_not base64!", "whpk_AAAA", "v1,whsec_*"},
	}
}

// seal signs a delivery anew by the scheme of a name.
func seal(t *testing.T, src *provider.Source, d *provider.Delivery, scheme string) {
	t.Helper()
	for _, s := range standardwebhooks.New().Schemes() {
		if s.Name != scheme {
			continue
		}
		if err := provider.Seal(src, d, s, d.ReceivedAt); err != nil {
			t.Fatal(err)
		}
		return
	}
	t.Fatalf("there is no scheme %s", scheme)
}

func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, suite())
}

// The same under Svix's headers.
func TestConformanceUnderSvixHeaders(t *testing.T) {
	t.Parallel()
	s := suite()
	spec := standardwebhooks.New().Spec()
	spec.Schemes = spec.Schemes[1:2]
	spec.Events.Key = declared.Templates("{header:Svix-Id}", "{header:Webhook-Id}")
	s.Provider, s.Signature = declared.New(spec), "Svix-Signature"
	s.NoKey = func(t *testing.T, src *provider.Source, d *provider.Delivery) {
		t.Helper()
		d.Header.Set("Svix-Id", strings.Repeat("x", provider.MaxName+1))
		seal(t, src, d, "svix-v1")
	}
	providertest.Run(t, s)
}

// The same by a key pair.
func TestConformanceByKeyPair(t *testing.T) {
	t.Parallel()
	s := suite()
	spec := standardwebhooks.New().Spec()
	spec.Schemes = spec.Schemes[2:3]
	s.Provider = declared.New(spec)
	s.Source = &provider.Source{Name: "standardwebhooks", Secrets: []provider.Secret{
		{Name: "new", Value: []byte("new_for_postern_dev")}, {Name: "old", Value: []byte("old_for_postern_dev")}}}
	s.NoKey = func(t *testing.T, src *provider.Source, d *provider.Delivery) {
		t.Helper()
		d.Header.Set("Webhook-Id", strings.Repeat("x", provider.MaxName+1))
		seal(t, src, d, "standardwebhooks-v1a")
	}
	providertest.Run(t, s)
}

func TestSamplesAreReadAsBefore(t *testing.T) {
	t.Parallel()
	providertest.Golden(t, suite(), "testdata/samples.golden", *update)
}

// With the objects that a source of Clerk's or of a similar sender would name.
func TestSamplesInAnyOrderWithObjectsNamed(t *testing.T) {
	t.Parallel()
	s := suite()
	spec := standardwebhooks.New().Spec()
	spec.Objects = []declared.Object{
		{Events: []string{"user.*"}, Type: declared.Templates("user"), ID: declared.Templates("{json:data.id}"), State: "data", Deletes: []string{"user.deleted"}},
		{Events: []string{"invoice.*"}, Type: declared.Templates("invoice"), ID: declared.Templates("{json:data.id}"), State: "data"},
	}
	s.Provider = declared.New(spec)
	providertest.AnyOrder(t, s)
	providertest.Golden(t, s, "testdata/objects.golden", *update)
}

// Senders write times as texts or as numbers; a varied delivery keeps the way of its own.
func TestTimesAsNumbers(t *testing.T) {
	t.Parallel()
	p := standardwebhooks.New()
	at := time.Date(2026, time.July, 4, 12, 30, 15, 0, time.UTC)
	for body, want := range map[string]string{
		`{"timestamp":1654012591514,"data":{"updated_at":1654012591835}}`: `{"data":{"updated_at":1783168215000},"timestamp":1783168215000}`,
		`{"timestamp":1654012591}`:                                        `{"timestamp":1783168215}`,
		`{"timestamp":"2022-05-31T15:56:31Z"}`:                            `{"timestamp":"2026-07-04T12:30:15.000Z"}`,
	} {
		varied, err := p.Vary(provider.Sample{Body: []byte(body)}, 1, at, false)
		if err != nil || string(varied.Body) != want {
			t.Errorf("vary %s: %s, %v", body, varied.Body, err)
		}
		events, err := p.Identify(&provider.Source{}, &provider.Delivery{Header: http.Header{}, Body: varied.Body})
		if err != nil || !events[0].OccurredAt.Equal(at) {
			t.Errorf("identify %s: %+v, %v", varied.Body, events, err)
		}
	}
}

func FuzzIdentify(f *testing.F) {
	for _, s := range standardwebhooks.New().Samples() {
		f.Add(s.Body, "msg_1", "")
	}
	f.Add([]byte(`{"type":"a","timestamp":1.5e12}`), "\x00", "msg_2")
	f.Fuzz(func(t *testing.T, body []byte, id, svix string) {
		d := &provider.Delivery{Header: http.Header{"Webhook-Id": {id}, "Svix-Id": {svix}}, Body: body}
		providertest.Sound(t, standardwebhooks.New(), &provider.Source{}, d)
	})
}
