package browser_test

import (
	"bytes"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit/stripefake"
)

const guardedConfig = `
admin: {require_tokens: true}
approvals: {separate: true}
console: {name: production}
sources:
  stripe: {provider: stripe, secrets: [{name: demo, value: ` + stripeSecret + `}]}
destinations:
  mail: {url: %q, allow: [127.0.0.1]}
effects:
  receipt:
    source: stripe
    type: invoice
    when: new.status == "paid" && changed("status")
    key: "receipt:{{ new.id }}"
    approval: required
    steps:
      - name: send
        to: mail
        path: "/messages"
        json: {to: "{{ new.customer_email }}", invoice: "{{ new.id }}"}
        capture: {message: id}
`

// brokenID names no value of the events, and rightID their object.
const (
	brokenID = "{json:order.number}"
	rightID  = "{json:order.id}"
)

const instanceConfig = `
ingest: {spool: {unsafe_dir: true}}
sources:
  stripe: {provider: stripe, secrets: [{name: demo, value: ` + stripeSecret + `}]}
  shopify: {provider: shopify, account: demo.myshopify.com, secrets: [{name: demo, value: shop_for_postern_dev}]}
  rotated:
    provider: stripe
    secrets:
      - {name: first, value: ` + firstSecret + `}
  acme:
    provider: hmac
    secrets: [{name: demo, value: ` + acmeSecret + `}]
    scheme: {header: X-Signature, prefix: "sha256="}
    events: {key: "{json:id}", type: "{json:type}"}
    objects:
      - {events: ["order.*"], type: order, id: "` + brokenID + `", state: order, version: {from: "json:order.at"}}
  billing:
    provider: stripe
    secrets: [{name: fake, value: ` + stripefake.Secret + `}]
    api: {base_url: %q, key: {value: ` + stripefake.Key + `}, version: ` + stripefake.Version + `, rate: 100}
`

// forever owns what runs as long as the process.
type forever struct{}

func (forever) Helper()        {}
func (forever) Cleanup(func()) {}

// billing is a fake account at Stripe, whose clock begins an hour ago: a list of objects may be a
// minute old, so a scan leaves alone what changed since.
var billing = sync.OnceValue(func() *stripefake.Fake {
	return stripefake.New(forever{}, stripefake.Options{Start: time.Now().Add(-time.Hour), Running: true})
})

// deliverWebhooks delivers the webhooks of the fake account that are due.
func deliverWebhooks(t *testing.T, f *stripefake.Fake) {
	t.Helper()
	f.Deliver(func(d *provider.Delivery) bool {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, instance.Ingest+"/webhooks/billing",
			bytes.NewReader(d.Body))
		must(t, err)
		req.Header = d.Header
		res, err := http.DefaultClient.Do(req)
		must(t, err)
		must(t, res.Body.Close())
		if res.StatusCode/100 != 2 {
			t.Fatalf("a webhook of the fake account gets %s", res.Status)
		}
		return true
	})
}

// newServer starts a server that runs as long as the process.
func newServer(h http.Handler) string { return httptest.NewServer(h).URL }

// link leads connections to a server until it is cut.
type link struct {
	net.Listener
	network, target string

	mu    sync.Mutex
	isCut bool
	conns []net.Conn
}

func newLink(network, target string) (*link, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	made := &link{Listener: l, network: network, target: target}
	go made.serve()
	return made, nil
}

func (l *link) serve() {
	for {
		client, err := l.Accept()
		if err != nil {
			return
		}
		l.mu.Lock()
		if server := l.dial(); server == nil {
			_ = client.Close()
		} else {
			go func() { _, _ = io.Copy(server, client); _ = server.Close() }()
			go func() { _, _ = io.Copy(client, server); _ = client.Close() }()
			l.conns = append(l.conns, client, server)
		}
		l.mu.Unlock()
	}
}

// dial connects to the server; nil if it does not respond, or while the link is cut: connections
// without a client would use up those of the server.
func (l *link) dial() net.Conn {
	if l.isCut {
		return nil
	}
	server, err := net.Dial(l.network, l.target)
	if err != nil {
		return nil
	}
	return server
}

// cut ends all connections, and new ones, until it is called with false.
func (l *link) cut(is bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.isCut = is; is {
		for _, c := range l.conns {
			_ = c.Close()
		}
		l.conns = nil
	}
}
