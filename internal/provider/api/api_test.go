package api_test

import (
	"flag"
	"net/http"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/api"
	"github.com/postern-gateway/postern/internal/provider/providertest"
)

var update = flag.Bool("update", false, "write the golden files")

func source() *provider.Source {
	return &provider.Source{Name: "api", Secrets: []provider.Secret{{Name: "new", Value: []byte("api_test_new")}, {Name: "old", Value: []byte("api_test_old")}}}
}

func suite() providertest.Suite {
	return providertest.Suite{
		Provider:       api.New(),
		Source:         source(),
		Signature:      "Authorization",
		BodyNotCovered: "The token covers no byte of the body",
		Readable:       []string{"an array"},
		NoKey: func(t *testing.T, src *provider.Source, d *provider.Delivery) {
			t.Helper()
			body, err := provider.Edit(d.Body, "", func(root map[string]any) { delete(root, "id") })
			if err != nil {
				t.Fatal(err)
			}
			d.Body = body
		},
	}
}

func TestConformance(t *testing.T) {
	t.Parallel()
	providertest.Run(t, suite())
}

func TestSamplesAreReadAsBefore(t *testing.T) {
	t.Parallel()
	providertest.Golden(t, suite(), "testdata/samples.golden", *update)
}

func TestSamplesInAnyOrder(t *testing.T) {
	t.Parallel()
	providertest.AnyOrder(t, suite())
}

// The word before the token may be written in any case, and nothing else may stand in its place.
func TestAuthorization(t *testing.T) {
	t.Parallel()
	for value, want := range map[string]provider.Reason{
		"Bearer api_test_new":              "",
		"bearer api_test_old":              "",
		"BEARER api_test_new":              "",
		"Bearer api_test_NEW":              provider.WrongSignature,
		"Bearer  api_test_new":             provider.WrongSignature,
		"Bearer api_test_new ":             provider.WrongSignature,
		"Bearer ":                          provider.WrongSignature,
		"Bearer":                           provider.MalformedSignature,
		"api_test_new":                     provider.MalformedSignature,
		"Basic YXBpX3Rlc3RfbmV3":           provider.MalformedSignature,
		"Token api_test_new":               provider.MalformedSignature,
		"":                                 provider.MissingSignature,
		"Bearer api_test_new, api_test_x":  provider.WrongSignature,
		"Bearer api_test_newapi_test_new":  provider.WrongSignature,
		"Bearer api_test_new\x00":          provider.WrongSignature,
		"Bearer \"api_test_new\"":          provider.WrongSignature,
		"Bearer YXBpX3Rlc3RfbmV3":          provider.WrongSignature,
		"Bearer api_test_new api_test_new": provider.WrongSignature,
	} {
		d := &provider.Delivery{Header: http.Header{"Authorization": {value}}, Body: []byte("{}"), ReceivedAt: time.Unix(1783168215, 0)}
		if want == "" {
			if _, err := api.New().Verify(source(), d); err != nil {
				t.Errorf("%q: %v", value, err)
			}
			if d.Header.Get("Authorization") != value {
				t.Errorf("%q: the delivery was changed", value)
			}
			continue
		}
		suite().Refused(t, source(), d, want)
	}
	for _, name := range api.New().Headers() {
		if name == "Authorization" {
			t.Error("the token is kept")
		}
	}
}
