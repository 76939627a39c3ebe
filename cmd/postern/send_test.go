package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/all"
	"github.com/postern-gateway/postern/internal/signature"
	"github.com/postern-gateway/postern/internal/testkit"
)

type syncBuffer struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *syncBuffer) Write(p []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(p)
}

func (s *syncBuffer) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// gateway verifies with the demo secrets, like the real one, and records deliveries.
type gateway struct {
	*httptest.Server
	mu   sync.Mutex
	keys []string
	ids  map[string]bool
	// occurred are the provider's times of the events in the order of arrival.
	occurred []time.Time
}

func newGateway(t *testing.T) *gateway {
	t.Helper()
	g := &gateway{ids: map[string]bool{}}
	demo := &config.Config{Sources: config.DemoSources()}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		for _, e := range demo.Endpoints() {
			if r.URL.Path == "/webhooks/"+e.Source.Name {
				g.answer(t, w, e, &provider.Delivery{Query: r.URL.RawQuery, Header: r.Header, Body: body,
					ReceivedAt: time.Now()})
				return
			}
		}
		w.WriteHeader(http.StatusNotFound)
		fmt.Fprint(w, `{"title":"unknown source","detail":"No source of this name."}`)
	}))
	t.Cleanup(g.Close)
	return g
}

func (g *gateway) answer(t *testing.T, w http.ResponseWriter, e config.Endpoint, d *provider.Delivery) {
	if _, err := e.Provider.Verify(e.Source, d); err != nil {
		w.WriteHeader(http.StatusUnauthorized)
		fmt.Fprint(w, `{"title":"delivery not verified","detail":"See postern rejections list."}`)
		return
	}
	if handshaker, ok := e.Provider.(provider.Handshaker); ok && handshaker.Handshake(e.Source, d) != nil {
		w.Header().Set("Postern-Event", "")
		return
	}
	found, err := e.Provider.Identify(e.Source, d)
	if err != nil {
		t.Error(err)
		return
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	duplicate := g.ids[found[0].Key]
	g.ids[found[0].Key] = true
	g.keys = append(g.keys, found[0].ObjectID)
	g.occurred = append(g.occurred, found[0].OccurredAt)
	if a, ok := e.Provider.(provider.Acknowledger); ok && a.Acknowledge(e.Source, d) != nil {
		w.Header().Set("Postern-Event", "1")
		fmt.Fprint(w, "own words")
		return
	}
	if err := json.NewEncoder(w).Encode(map[string]any{"event_id": found[0].Key, "id": "1", "duplicate": duplicate,
		"received_at": "2026-01-01T00:00:00.000000Z"}); err != nil {
		t.Error(err)
	}
}

// sendSetup creates a dev instance's folder that names a gateway.
func sendSetup(t *testing.T) (*testBundle, *gateway) {
	t.Helper()
	g := newGateway(t)
	b := &testBundle{dir: t.TempDir()}
	demo := &config.Config{Sources: config.DemoSources()}
	b.write(t, &config.Instance{IngestURL: g.URL, Sources: demo.InstanceSources()})
	return b, g
}

func TestSend_everySample_isStored(t *testing.T) {
	t.Parallel()
	b, _ := sendSetup(t)
	for _, p := range all.All() {
		for _, sample := range p.Samples() {
			r := b.run(t, "send", p.Name(), sample.Type, "-o", "json")
			var receipts []sentReceipt
			if err := json.Unmarshal([]byte(r.out), &receipts); err != nil || r.status != 0 || len(receipts) != 1 {
				t.Fatalf("%s %s: %v: %s%s", p.Name(), sample.Type, err, r.out, r.errs)
			}
			got := receipts[0]
			printed := got.EventID != nil && !*got.Duplicate && !*got.Conflict && *got.ReceivedAt != "" && r.errs == ""
			hidden := got.ID != nil && got.EventID == nil && got.Duplicate == nil &&
				strings.Contains(r.errs, "only the ids are known")
			handshake := got.ID == nil && got.EventID == nil && strings.Contains(r.errs, "1 handshake answered")
			if !printed && !hidden && !handshake {
				t.Errorf("%s %s: %s%s", p.Name(), sample.Type, r.out, r.errs)
			}
		}
	}
}

// If the sender signs only a part of the body, that part is changed.
func TestSend_tampered_isRejectedWhereSigned(t *testing.T) {
	t.Parallel()
	b, _ := sendSetup(t)
	for _, p := range all.All() {
		if len(p.Samples()) == 0 {
			continue
		}
		signs := func(s *signature.Scheme) bool { return s.Method != signature.Token }
		if signed, ok := p.(provider.Signed); ok && !slices.ContainsFunc(signed.Schemes(), signs) {
			b.run(t, "send", p.Name(), p.Samples()[0].Type, "--tamper").want(t, 0, "EVENT ID",
				"accepted: "+p.Name()+" does not sign the changed part")
			continue
		}
		b.run(t, "send", p.Name(), p.Samples()[0].Type, "--tamper").want(t, 1, "",
			"rejected with 401 Unauthorized, as expected")
	}
}

// Values that the provider's own response format does not contain are not invented.
func TestSend_providersOwnResponse_printsIDs(t *testing.T) {
	t.Parallel()
	got, err := readReceipts(http.Header{"Postern-Event": {"1, 2"}}, []byte("thanks"))
	if err != nil || len(got) != 2 || *got[1].ID != "2" || got[0].EventID != nil || got[0].Duplicate != nil ||
		got[0].Conflict != nil || got[0].ReceivedAt != nil {
		t.Errorf("%+v, %v", got, err)
	}
	if b, err := json.Marshal(got[0]); err != nil ||
		string(b) != `{"event_id":null,"id":"1","duplicate":null,"conflict":null,"received_at":null}` {
		t.Errorf("%s, %v", b, err)
	}
	got, err = readReceipts(http.Header{}, []byte(`{"event_id":"evt_1","spooled":true}`))
	if err != nil || len(got) != 1 || !got[0].Spooled || *got[0].EventID != "evt_1" {
		t.Errorf("a spooled receipt: %v, %v", got, err)
	}
	if _, err := readReceipts(http.Header{}, []byte("thanks")); err == nil {
		t.Error("another server's response counts as a receipt")
	}
}

// A dev instance with a configuration and other addresses: the file has the secrets, the folder the
// address.
func TestSend_configAndDir_useBoth(t *testing.T) {
	t.Parallel()
	b, g := sendSetup(t)
	path := writeFile(t, "postern.yaml", "ingest: {listen: '127.0.0.1:1'}\nsources: {stripe: {provider: stripe, "+
		"secrets: [{name: n, value: "+config.DemoStripeSecret+"}]}}\n")
	b.write(t, &config.Instance{IngestURL: g.URL, Sources: map[string]config.InstanceSource{}})
	b.run(t, "send", "stripe", "invoice.paid", "--config", path).want(t, 0, "false", "")
	execute(t.Context(), "", "send", "stripe", "invoice.paid", "--config", path).want(t, 1, "",
		"is the gateway running at this address?")
	b.write(t, &config.Instance{DatabaseURL: "postgres://127.0.0.1:1/x"})
	b.run(t, "events", "list", "--config", path).want(t, 1, "", "is not running: start it with `postern dev --dir "+
		b.dir)
	b.write(t, &config.Instance{DatabaseURL: "postgres:///x?host=" + b.dir})
	b.run(t, "events", "list").want(t, 1, "", "postern: the dev instance in "+b.dir+" is not running: start it with")
}

func TestSend_countDuplicateShuffle(t *testing.T) {
	t.Parallel()
	b, g := sendSetup(t)
	r := b.run(t, "send", "stripe", "customer.updated", "--count", "3", "--duplicate", "2", "--shuffle", "-o", "json")
	var receipts []sentReceipt
	if err := json.Unmarshal([]byte(r.out), &receipts); err != nil || len(receipts) != 9 {
		t.Fatalf("%v: %s%s", err, r.out, r.errs)
	}
	duplicates := 0
	for _, one := range receipts {
		if *one.Duplicate {
			duplicates++
		}
	}
	if len(g.ids) != 3 || duplicates != 6 {
		t.Errorf("%d events, %d duplicates", len(g.ids), duplicates)
	}
	objects := map[string]bool{}
	b.want(t, "send stripe customer.updated --count 4 --new-objects", 0, "false", "")
	for _, id := range g.keys[9:] {
		objects[id] = true
	}
	if len(objects) != 4 {
		t.Errorf("new objects: %v", objects)
	}
}

// Each event is newer than the previous one, and none is in the future.
func TestSend_count_lastEventIsNow(t *testing.T) {
	t.Parallel()
	b, g := sendSetup(t)
	began := time.Now().Truncate(time.Second)
	b.want(t, "send stripe customer.updated --count 4", 0, "false", "")
	for i, at := range g.occurred {
		if i > 0 && at.Sub(g.occurred[i-1]) != time.Second {
			t.Errorf("event %d at %s, the one before at %s", i, at, g.occurred[i-1])
		}
	}
	if last := g.occurred[len(g.occurred)-1]; len(g.occurred) != 4 || last.Before(began) || last.After(time.Now()) {
		t.Errorf("times %v, begun at %s", g.occurred, began)
	}
}

// The receipts before a failure are promises, so they are printed.
func TestSend_gatewayEnds_printsReceiptsBefore(t *testing.T) {
	t.Parallel()
	b, g := sendSetup(t)
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		ends := len(g.keys) == 2
		g.mu.Unlock()
		if ends {
			panic(http.ErrAbortHandler) // closes the connection without a response
		}
		g.Config.Handler.ServeHTTP(w, r)
	}))
	t.Cleanup(server.Close)
	r := b.run(t, "send", "stripe", "customer.updated", "--count", "4", "--url", server.URL+"/webhooks/stripe")
	if r.want(t, 1, "evt_", "is the gateway running at this address?"); strings.Count(r.out, "evt_") != 2 {
		t.Errorf("want two receipts:\n%s", r.out)
	}
}

func TestSend_rejectedOrWrongUsage_explainsRemedy(t *testing.T) {
	t.Parallel()
	b, g := sendSetup(t)
	tampered := b.run(t, "send", "stripe", "invoice.paid", "--tamper")
	if tampered.want(t, 1, "", "rejected with 401 Unauthorized, as expected: the signature does not match the "+
		"body. A moment later `postern rejections list`"); tampered.out != "" {
		t.Errorf("a rejection is printed only on standard error: %q", tampered.out)
	}
	if r := b.run(t, "send", "stripe", "invoice.paid", "--tamper", "-o", "json"); r.out != "[]\n" {
		t.Errorf("no receipts as JSON: %q", r.out)
	}
	b.want(t, "send stripe invoice.paid --secret whsec_wrong", 1, "",
		"rejected with 401 Unauthorized: delivery not verified")
	b.want(t, "send stripe invoice.paid --source other --secret x", 1, "", "404 Not Found: unknown source")
	b.want(t, "send stripe invoice.paid --source other", 2, "", "source other is not configured; the sources are adyen")
	b.want(t, "send stripe invoice.paid --source shopify", 2, "", "source shopify is of provider shopify")
	b.want(t, "send paypal x", 2, "", "is not known: name one of ")
	b.want(t, "send stripe x.y", 2, "", "give a body with --data FILE")
	b.want(t, "send stripe invoice.paid --count 0", 2, "", "at least 1")
	b.want(t, "send stripe invoice.paid --url ftp://x", 2, "", "is not a valid URL")
	b.run(t, "--dir", t.TempDir(), "send", "stripe", "invoice.paid").want(t, 1, "", "postern dev")
	g.Close()
	b.want(t, "send stripe invoice.paid", 1, "", "is the gateway running at this address?")
}

func TestSend_ownBodyToURL_isUnchanged(t *testing.T) {
	t.Parallel()
	_, g := sendSetup(t)
	secret := writeFile(t, "secret", config.DemoStripeSecret+"\n")
	body := `{"id":"evt_mine","object":"event","type":"x.y","created":1,"data":{"object":{"id":"a","object":"b"}}}`
	args := []string{"--dir", t.TempDir(), "send", "stripe", "x.y", "--data", "-", "--secret-file", secret}
	execute(t.Context(), body, append(args, "--url", g.URL+"/webhooks/stripe")...).want(t, 0, "evt_mine", "")
	execute(t.Context(), body, append(args, "--url", g.URL)...).want(t, 0, "true", "")
	r := execute(t.Context(), body, append(args, "--url", g.URL, "--count", "3", "-o", "json")...)
	r.want(t, 0, "", "")
	if strings.Contains(r.out, "evt_mine") || strings.Count(r.out, "event_id") != 3 {
		t.Errorf("several of one body need ids of their own: %s", r.out)
	}
}

// A source that describes its own signature is used as described.
func TestSend_describedProvider_usesConfiguration(t *testing.T) {
	t.Parallel()
	path, g := declared(t, `sources:
  acme:
    provider: hmac
    secrets: [{name: n, value: acme secret}]
    scheme:
      header: X-Acme
      separator: ","
      assign: "="
      item: v1
      message: "{timestamp}.{body}"
      timestamp: {from: item:t}
    events: {key: "{json:uid}", type: "{json:kind}"}
`)
	args := []string{"--config", path, "send", "hmac", "order.created", "--data", "-", "--url", g.URL}
	execute(t.Context(), "", "--config", path, "send", "hmac", "order.created").want(t, 2, "",
		"give a body of that sender with --data FILE")
	execute(t.Context(), `{"uid":"u-1","kind":"order.created"}`, args...).want(t, 0, "u-1", "")
	execute(t.Context(), `{"uid":"u-1","kind":"order.created"}`, append(args, "--count", "2")...).want(t, 0, "false",
		"")
	if len(g.ids) != 3 {
		t.Errorf("events %v, want three", g.ids)
	}
}

// declared is a gateway with the single source of a configuration.
func declared(t *testing.T, file string) (path string, g *gateway) {
	t.Helper()
	path = writeFile(t, "acme.yaml", file)
	c, err := config.LoadDev(path)
	testkit.Must(t, err)
	e := c.Endpoints()[0]
	g = &gateway{ids: map[string]bool{}}
	g.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		g.answer(t, w, e, &provider.Delivery{Header: r.Header, Body: body, ReceivedAt: time.Now()})
	}))
	t.Cleanup(g.Close)
	return path, g
}

func TestProviders_listAndShow(t *testing.T) {
	t.Parallel()
	b := &testBundle{dir: t.TempDir()}
	b.want(t, "providers list", 0, "stripe", "")
	b.want(t, "provider list -o json", 0, `"name":"slack"`, "")
	for _, p := range all.All() {
		b.run(t, "providers", "show", p.Name()).want(t, 0, "provider: "+p.Name(), "")
		b.run(t, "providers", "show", p.Name(), "-o", "json").want(t, 0, `"setup": "`, "")
	}
	b.want(t, "providers show nobody", 2, "", "name one of")
}

func TestProvidersList_configuration_marksSourcesThatStoreTheirToken(t *testing.T) {
	t.Parallel()
	b := &testBundle{dir: t.TempDir()}
	file := filepath.Join(b.dir, "postern.yaml")
	write := func(consent string) {
		t.Helper()
		text := `sources:
  shop: {provider: hmac, secrets: [{name: n, env: NOT_SET_HERE}], scheme: {header: X-S}}
  legacy:
    provider: hmac
    secrets: [{name: n, env: NOT_SET_HERE}]
    scheme: {in: json:auth.token, method: token, body_unsigned: true}
` + consent
		testkit.Must(t, os.WriteFile(file, []byte(text), 0o600))
	}
	write("    store_token: true\n")
	b.run(t, "providers", "list", "--config", file).want(t, 0, "legacy (stores the token), shop\n", "")
	b.run(t, "providers", "list", "--config", file, "-o", "json").want(t, 0,
		`"sources":[{"name":"legacy","store_token":true},{"name":"shop","store_token":false}]`, "")
	if r := b.run(t, "providers", "list"); strings.Contains(r.out, "SOURCES") ||
		strings.Contains(r.out, "stores the token") {
		t.Errorf("without a configuration: %s", r.out)
	}
	write("")
	b.run(t, "providers", "list", "--config", file).want(t, 1, "",
		"postern.yaml:6: sources.legacy.scheme.in: json:auth.token is a token in the body")
}

// capture writes a signed delivery to a file and returns the flags for the rest of it.
func capture(t *testing.T, e config.Endpoint, at time.Time) []string {
	t.Helper()
	d, err := e.Provider.Sign(e.Source, e.Provider.Samples()[0], at)
	testkit.Must(t, err)
	args := []string{"provider", "test", writeFile(t, "body", string(d.Body)), "--query", d.Query}
	for name, values := range d.Header {
		args = append(args, "--header", name+": "+values[0])
	}
	return args
}

// An old captured delivery is valid, and the command shows what would be stored. Compared with the
// current time it is stale if the time is signed, and with another secret it is rejected. Neither
// the secret nor a correct signature is printed.
func TestProviderTest_everyProvider_explainsDelivery(t *testing.T) {
	t.Parallel()
	b := &testBundle{dir: t.TempDir()}
	at := time.Date(2026, time.January, 2, 3, 4, 5, 0, time.UTC)
	for _, e := range (&config.Config{Sources: config.DemoSources()}).Endpoints() {
		if len(e.Provider.Samples()) == 0 {
			continue
		}
		args := capture(t, e, at)
		right := b.run(t, append(args, "--source", e.Source.Name)...)
		right.want(t, 0, "event id", "")
		v, err := e.Provider.Verify(e.Source, read(t, args, at))
		testkit.Must(t, err)
		if v.SignedAt.IsZero() {
			continue
		}
		b.run(t, append(args, "--source", e.Source.Name, "--at", "now")...).want(t, 1, "stale_timestamp",
			"reject this delivery")
		b.run(t, append(args, "--source", e.Source.Name, "--at", at.Format(time.RFC3339))...).want(t, 0, "event id", "")
		wrong := b.run(t, append(args, "--source", e.Source.Name, "--secret",
			strings.Replace(string(e.Source.Secrets[0].Value), "demo", "another", 1))...)
		wrong.want(t, 1, "wrong_signature", "reject this delivery")
		for _, r := range []string{right.out, wrong.out} {
			if strings.Contains(r, string(e.Source.Secrets[0].Value)) {
				t.Errorf("%s: the secret is printed:\n%s", e.Source.Name, r)
			}
		}
	}
}

func read(t *testing.T, args []string, at time.Time) *provider.Delivery {
	t.Helper()
	body, err := os.ReadFile(args[2])
	testkit.Must(t, err)
	d := &provider.Delivery{Query: args[4], Header: http.Header{}, Body: body, ReceivedAt: at}
	for i := 6; i < len(args); i += 2 {
		name, value, _ := strings.Cut(args[i], ": ")
		d.Header.Set(name, value)
	}
	return d
}

func TestProviderTest_wrongUsage_explainsRemedy(t *testing.T) {
	t.Parallel()
	b := &testBundle{dir: t.TempDir()}
	file := writeFile(t, "body", "{}")
	for wants, args := range map[string][]string{
		"no sender given":        {"--secret", "s"},
		"not both":               {"--provider", "stripe", "--source", "stripe"},
		"no secret":              {"--provider", "stripe"},
		"there is no source":     {"--source", "nobody"},
		`write "Name: value"`:    {"--provider", "stripe", "--secret", "whsec_s", "--header", "nonsense"},
		"use a time like":        {"--provider", "stripe", "--secret", "whsec_s", "--at", "yesterday"},
		"the sender signs the a": {"--provider", "square", "--secret", "s"},
	} {
		b.run(t, append([]string{"provider", "test", file}, args...)...).want(t, 2, "", wants)
	}
	b.run(t, "provider", "test", file, "--provider", "stripe", "--secret", "whsec_s").want(t, 1, "missing_signature",
		"reject this delivery")
}

// A delivery of your own service is read like by the gateway, including the event's fields in
// headers and the reason of a rejection.
func TestProviderTest_directSource_explainsDelivery(t *testing.T) {
	t.Parallel()
	b := &testBundle{dir: t.TempDir()}
	file := writeFile(t, "body", `{"version": 4}`)
	args := []string{"provider", "test", file, "--provider", "api", "--secret", "a_token", "--header",
		"Authorization: Bearer a_token", "--header", "Content-Type: application/json"}
	b.run(t, args...).want(t, 1, "rejected with 400, and nothing is stored: the header Idempotency-Key is missing",
		"a gateway would reject this delivery: it cannot be stored")
	headers := []string{"--header", "ce-specversion: 1.0", "--header", "ce-id: 1", "--header", "ce-source: /s",
		"--header", "ce-type: com.example.order.updated", "--header", "ce-subject: o%201"}
	b.run(t, append(args, headers...)...).want(t, 0, "order o 1", "")
}
