package ingest_test

import (
	"context"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
)

// respondingProvider is a provider with responses of its own.
type respondingProvider struct{ lineProvider }

func (respondingProvider) Name() string { return "polite" }

func (respondingProvider) Headers() []string { return []string{"X-Kept", ":query"} }

func (respondingProvider) Challenge(src *provider.Source, d *provider.Delivery) *provider.Reply {
	query, err := url.ParseQuery(d.Query)
	switch {
	case err != nil || !query.Has("challenge"):
		return nil
	case query.Get("challenge") == "panic":
		panic("a fault in a challenge")
	case query.Get("challenge") == "redirect":
		return &provider.Reply{Status: http.StatusFound, Header: http.Header{"Location": {"/elsewhere"}}}
	case query.Get("challenge") == "wrong":
		return &provider.Reply{Status: http.StatusForbidden}
	}
	return &provider.Reply{ContentType: "text/plain",
		Header: http.Header{"X-Method": {d.Method}, "X-Content-Type-Options": {"sniff"}},
		Body:   []byte(src.Name + " " + query.Get("challenge"))}
}

func (respondingProvider) Handshake(_ *provider.Source, d *provider.Delivery) *provider.Reply {
	switch string(d.Body) {
	case "ping":
		return &provider.Reply{Status: http.StatusAccepted, ContentType: "text/plain", Body: []byte("pong")}
	case "handshake panics":
		panic("a fault in a handshake")
	}
	return nil
}

// sharedReply is a response that the provider returns every time.
var sharedReply = &provider.Reply{Status: http.StatusNoContent, ContentType: "text/plain", Body: []byte("dropped")}

func (respondingProvider) Acknowledge(_ *provider.Source, d *provider.Delivery) *provider.Reply {
	switch string(d.Body) {
	case "quiet":
		return sharedReply
	case "acknowledging panics":
		panic("a fault in an acknowledgement")
	}
	return nil
}

func TestChallenge_eachMethod_getsProviderResponse(t *testing.T) {
	t.Parallel()
	b := setupIdle(t, nil, nil)
	for _, method := range []string{http.MethodGet, http.MethodHead} {
		a := b.request(t, method, "/webhooks/polite?challenge=a%20b", &provider.Delivery{})
		want := "polite a b"
		if method == http.MethodHead {
			want = ""
		}
		if a.status != 200 || string(a.body) != want || a.header.Get("Content-Type") != "text/plain" ||
			a.header.Get("X-Method") != method {
			t.Errorf("%s: %d %q %v", method, a.status, a.body, a.header)
		}
		if got := a.header.Values("X-Content-Type-Options"); len(got) != 1 || got[0] != "nosniff" {
			t.Errorf("X-Content-Type-Options %q", got)
		}
	}
	b.wantCounter(t, 2, "postern_deliveries_total", "source=polite", "result=challenge")
	if a := b.get(t, "/webhooks/polite?challenge=wrong"); a.status != 403 {
		t.Errorf("the provider's error response: %d", a.status)
	}
	b.get(t, "/webhooks/polite?challenge=panic").wantProblem(t, 500, "internal")
	// never a redirect
	b.get(t, "/webhooks/polite?challenge=redirect").wantProblem(t, 500, "internal")
	for _, path := range []string{"/webhooks/polite", "/webhooks/stripe?challenge=a"} {
		a := b.get(t, path)
		a.wantProblem(t, 405, "method")
		if allow := a.header.Get("Allow"); !strings.Contains(allow, "POST") ||
			strings.Contains(allow, "GET") != strings.Contains(path, "polite") {
			t.Errorf("%s: Allow %q", path, allow)
		}
	}
	b.get(t, "/webhooks/nobody?challenge=a").wantProblem(t, 404, "unknown-source")
	if a := b.request(t, http.MethodHead, "/webhooks/nobody", &provider.Delivery{}); a.status != 404 {
		t.Errorf("HEAD of an unknown source: %d", a.status)
	}
	b.wantCounter(t, 1, "postern_panics_total")
}

// A handshake gets its provider's response and is not stored; a forged one does not.
func TestHandshake_signed_isNotStored(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	ping := func(body string) *provider.Delivery { return b.line(t, "many", body) }
	a := b.post(t, "polite", ping("ping"))
	if a.status != 202 || string(a.body) != "pong" || a.header.Get("Postern-Event") != "" {
		t.Errorf("%d %q %v", a.status, a.body, a.header)
	}
	forged := ping("ping")
	forged.Header.Del("Sim-Signature")
	b.post(t, "polite", forged).wantProblem(t, 401, "unauthenticated")
	b.post(t, "polite", ping("handshake panics")).wantProblem(t, 500, "internal")
	b.wantCounter(t, 1, "postern_deliveries_total", "source=polite", "result=handshake")
	b.wantRows(t, 0, `events`)
}

// The provider's response is sent after the commit, instead of the receipt. Every response has the
// header with the event's id.
func TestAcknowledgement_ofProvider_replacesReceipt(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	post := func(body string) response {
		return b.post(t, "polite", b.line(t, "many", body))
	}
	stored := func(key string) (id string) {
		if err := b.db.Pool.QueryRow(context.Background(), `SELECT id::text FROM events WHERE event_id = $1`,
			key).Scan(&id); err != nil {
			t.Errorf("event %s: %v", key, err)
		}
		return id
	}
	a := post("quiet")
	if a.status != 204 || len(a.body) != 0 || a.header.Get("Content-Type") != "" ||
		a.header.Get("Postern-Event") != stored("quiet") {
		t.Errorf("%d %q %v", a.status, a.body, a.header)
	}
	if sharedReply.Header != nil {
		t.Errorf("the provider's shared response was changed: %v", sharedReply.Header)
	}
	a = post("ordinary")
	if r := a.receipt(t); a.header.Get("Postern-Event") != r.ID || a.header.Get("X-Content-Type-Options") != "nosniff" {
		t.Errorf("receipt %+v, headers %v", r, a.header)
	}
	post("acknowledging panics").wantProblem(t, 500, "internal")
	if again := post("acknowledging panics"); again.status != 500 || stored("acknowledging panics") == "" {
		t.Errorf("again: %d", again.status) // it was stored before; the sender's retry is a duplicate
	}
	var many strings.Builder
	for n := range 15 {
		fmt.Fprintf(&many, "line %d\n", n)
	}
	if ids := strings.Split(post(many.String()).header.Get("Postern-Event"), ","); len(ids) != 10 ||
		ids[0] != stored("line 0") || ids[9] != stored("line 9") {
		t.Errorf("%v names of 15 events", ids)
	}
}

// The raw query is stored if the provider says that it is signed: with the event, and with a
// rejection.
func TestHandler_signedQuery_isStored(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for source, want := range map[string]string{"polite": "a=1&b=%00%ff&a=2", "many": ""} {
		for _, signed := range []bool{true, false} {
			d := b.line(t, "many", "to "+source)
			if !signed {
				d.Header.Del("Sim-Signature")
			}
			a := b.request(t, http.MethodPost, "/webhooks/"+source+"?a=1&b=%00%ff&a=2", d)
			if a.status != map[bool]int{true: 200, false: 401}[signed] {
				t.Fatalf("status %d", a.status)
			}
			table := map[bool]string{true: "events", false: "rejections"}[signed]
			b.waitRows(t, 1, table+` WHERE source = $1 AND coalesce(headers->>':query', '') = $2`,
				b.endpoints[source].Number, want)
		}
	}
	b.post(t, "polite", b.line(t, "many", "no query")).receipt(t)
	b.wantRows(t, 1, `events WHERE event_id = 'no query' AND NOT headers ? ':query'`)
}
