package config_test

import (
	"net/http"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
)

const directSource = "database: {url: postgres://postern@localhost/postern}\nsources:\n  shop:\n    provider: api\n    secrets: [{name: n, value: a_token_of_a_test}]\n"

func direct(t *testing.T, settings string, env map[string]string) config.Endpoint {
	t.Helper()
	c, err := config.Parse([]byte(directSource+settings), func(name string) string { return env[name] })
	if err != nil {
		t.Fatal(err)
	}
	return c.Endpoints()[0]
}

// Whoever reads our answers gets the final one, unless the source says otherwise; others' deliveries may be kept in the spool.
func TestFinalReceipts(t *testing.T) {
	t.Parallel()
	const variable = "POSTERN_SOURCES_SHOP_FINAL_RECEIPT"
	for name, c := range map[string]struct {
		settings string
		env      map[string]string
		want     bool
	}{
		"nothing":  {"", nil, true},
		"true":     {"    final_receipt: true\n", nil, true},
		"false":    {"    final_receipt: false\n", nil, false},
		"variable": {"", map[string]string{variable: "false"}, false},
		"over it":  {"    final_receipt: false\n", map[string]string{variable: "true"}, true},
	} {
		if got := direct(t, c.settings, c.env).FinalReceipt; got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	for _, e := range (&config.Config{Sources: config.DemoSources()}).Endpoints() {
		if _, direct := e.Provider.(provider.Direct); e.FinalReceipt != direct {
			t.Errorf("%s: %t", e.Provider.Name(), e.FinalReceipt)
		}
	}
	_, err := config.Parse([]byte(directSource+"    final_receipt: maybe\n"), func(string) string { return "" })
	if err == nil || !strings.Contains(err.Error(), "final_receipt") {
		t.Errorf("maybe: %v", err)
	}
}

// A source says what its events are about, and, of JSON under a key, where type and time stand; a CloudEvent keeps its own.
func TestDirectSource(t *testing.T) {
	t.Parallel()
	e := direct(t, `    events: {type: '{json:kind}', occurred: {from: json:at, unit: ms}, headers: [X-Tenant]}
    objects:
      - {events: ["order.*"], type: order, state: data}
      - {type: thing, id: '{json:data.number}', state: .}
`, nil)
	if e.Own {
		t.Error("the samples are said not to fit")
	}
	for name, c := range map[string]struct{ body, want string }{
		"CloudEvent":  {`{"specversion":"1.0","id":"1","source":"/s","type":"order.paid","subject":"7","data":{}}`, "/s 1 order.paid order 7"},
		"JSON":        {`{"kind":"sent","at":1783168215250,"data":{"number":5}}`, "k sent thing 5"},
		"JSON, other": {`{"type":"sent","data":{"number":5}}`, "k sent thing 5"},
	} {
		d := &provider.Delivery{Header: http.Header{}, Body: []byte(c.body)}
		if name != "CloudEvent" {
			d.Header.Set("Idempotency-Key", "k")
		}
		got, err := e.Provider.Identify(e.Source, d)
		if err != nil || len(got) != 1 || got[0].Key+" "+got[0].Type+" "+got[0].ObjectType+" "+got[0].ObjectID != c.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if kept := strings.Join(e.Provider.Headers(), " "); !strings.Contains(kept, "X-Tenant") || strings.Contains(kept, "Authorization") {
		t.Errorf("kept headers %s", kept)
	}
}

func TestDirectSourcesThatCannotWork(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]string{
		"    events: {key: '{json:id}'}\n":                  "sources.shop.events.key",
		"    events: {split: data}\n":                       "sources.shop.events.split",
		"    events: {every_delivery: true}\n":              "sources.shop.events.every_delivery",
		"    events: {type: '{header:Authorization}'}\n":    "sources.shop.events",
		"    scheme: {header: X-Signature}\n":               "sources.shop.scheme",
		"    objects: [{type: order, state: a, id: x y}]\n": "",
		"    objects: [{id: '{json:subject}'}]\n":           "sources.shop.objects.0.type",
		"    key: other\n":                                  "sources.shop",
	} {
		_, err := config.Parse([]byte(directSource+settings), func(string) string { return "" })
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %s", settings, err, want)
		}
	}
}
