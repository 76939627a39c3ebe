package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
)

// sources is the configuration of the site. Its secrets are used nowhere else.
const sources = `ingest: {max_body_bytes: 262144, drain_delay: 1s}
rejections: {max_count: 50}
stream: {max_messages: 200000, max_bytes: 512MiB}
processor:
  republisher: {every: 500ms, min_age: 2s, lease: 3s}
  changes: {publish_after: 2s}
sources:
  acme:
    provider: hmac
    secrets: [{name: main, value: secret-of-acme-in-the-chaos-run}]
    scheme: {header: X-Acme-Signature, prefix: "sha256="}
    events: {key: "{json:id}", type: "{json:type}", occurred: {from: json:at}}
    objects:
      - type: widget
        id: "{json:widget.id}"
        state: widget
        version: {from: json:widget.version, unit: integer}
        deletes: [widget.deleted]
        final: true
  github:
    provider: github
    secrets: [{name: main, value: secret-of-github-in-the-chaos-run}]
  shop:
    provider: shopify
    account: ` + shop + `
    secrets: [{name: main, value: secret_of_shopify_in_the_chaos_run}]
  stripe:
    provider: stripe
    tolerance: 1h
    secrets: [{name: main, value: whsec_of_the_chaos_run}]
`

const shop = "chaos.myshopify.com"

// lifecycles are the event types of one object in the order in which they happen.
var lifecycles = map[string][][]string{
	"acme": {{"widget.created", "widget.updated", "widget.updated", "widget.updated", "widget.deleted"}},
	"github": {
		{"issues.opened", "issues.edited", "issues.closed", "issues.deleted"},
		{"pull_request.opened", "pull_request.synchronize", "pull_request.closed"},
	},
	"shop": {
		{"orders/create", "orders/updated", "orders/paid", "orders/cancelled", "orders/delete"},
		{"products/create", "products/update", "products/update", "products/delete"},
		{"customers/create", "customers/update", "customers/update"},
		{"inventory_levels/update", "inventory_levels/update"},
	},
	"stripe": {
		{"customer.created", "customer.updated", "customer.updated", "customer.deleted"},
		{"customer.subscription.created", "customer.subscription.updated", "customer.subscription.updated",
			"customer.subscription.deleted"},
		{"invoice.created", "invoice.finalized", "invoice.payment_failed", "invoice.paid"},
		{"charge.succeeded", "charge.refunded"},
	},
}

// verdict is the required result of a delivery.
type verdict int

const (
	accepted verdict = iota
	forged
	tooLarge
)

// sent is one delivery.
type sent struct {
	source   string
	delivery *provider.Delivery
	want     verdict
	// key is the key of its event. digest is that of the body.
	key    string
	digest digest
}

// digest is a prefix of a body's SHA-256.
type digest [12]byte

func digestOf(body []byte) (d digest) {
	sum := sha256.Sum256(body)
	copy(d[:], sum[:])
	return d
}

// MarshalText returns the form that the journal has.
func (d digest) MarshalText() ([]byte, error) { return hex.AppendEncode(nil, d[:]), nil }

// UnmarshalText reads what MarshalText has written.
func (d *digest) UnmarshalText(text []byte) error {
	if len(text) != hex.EncodedLen(len(d)) {
		return fmt.Errorf("a digest of %d characters", len(text))
	}
	_, err := hex.Decode(d[:], text)
	return err
}

// endpoints returns the configured sources by name.
func endpoints(file string) (map[string]config.Endpoint, error) {
	cfg, err := config.LoadDev(file)
	if err != nil {
		return nil, err
	}
	out := map[string]config.Endpoint{}
	for _, e := range cfg.Endpoints() {
		out[e.Source.Name] = e
	}
	return out, nil
}

// traffic makes deliveries in waves: the lifecycles of new objects of all sources, in random order.
// A quarter of them is duplicated or late. Some deliveries are tampered with, conflict with an
// earlier one, contain no JSON, name another shop, or are too large.
type traffic struct {
	endpoints map[string]config.Endpoint
	rand      *rand.Rand
	out       chan sent
	// objects is the number of objects so far. late has the deliveries of later waves.
	objects int
	late    map[int][]sent
	// samples are the providers' samples by source and type. They are cached, because making them
	// takes the most time.
	samples map[[2]string]provider.Sample
}

func newTraffic(endpoints map[string]config.Endpoint, seed uint64) *traffic {
	t := &traffic{endpoints: endpoints, rand: rand.New(rand.NewPCG(seed, 1)), out: make(chan sent, 64),
		late:    map[int][]sent{},
		samples: map[[2]string]provider.Sample{}}
	for name, endpoint := range endpoints {
		for _, s := range endpoint.Provider.Samples() {
			t.samples[[2]string{name, s.Type}] = s
		}
	}
	return t
}

// objectsPerWave is how many objects of each kind a wave has. mostLate is how many waves a delivery
// may be late.
const objectsPerWave, mostLate = 6, 20

// run sends waves until ctx ends, and then the late deliveries.
func (t *traffic) run(ctx context.Context) error {
	defer close(t.out)
	for wave := 1; ctx.Err() == nil; wave++ {
		all, err := t.wave(wave)
		if err != nil {
			return err
		}
		for _, s := range all {
			t.out <- s
		}
	}
	for _, late := range t.late {
		for _, s := range late {
			t.out <- s
		}
	}
	return nil
}

func (t *traffic) wave(number int) ([]sent, error) {
	all := t.late[number]
	delete(t.late, number)
	for _, source := range []string{"acme", "github", "shop", "stripe"} {
		for range objectsPerWave {
			for _, life := range lifecycles[source] {
				t.objects++
				some, err := t.lifecycle(source, life, t.objects)
				if err != nil {
					return nil, fmt.Errorf("make deliveries of %s: %w", source, err)
				}
				all = append(all, some...)
			}
		}
	}
	now := all[:0:0]
	for _, s := range all {
		switch t.rand.IntN(12) {
		case 0: // late
			t.later(number, s)
		case 1: // twice, at once or late
			now = append(now, s)
			t.later(number, s)
		case 2:
			now = append(now, s, s)
		default:
			now = append(now, s)
		}
	}
	t.rand.Shuffle(len(now), func(i, j int) { now[i], now[j] = now[j], now[i] })
	return now, nil
}

func (t *traffic) later(wave int, s sent) {
	due := wave + 1 + t.rand.IntN(mostLate)
	t.late[due] = append(t.late[due], s)
}

// lifecycle returns the deliveries of object n. Some changes happen in the same second, so that the
// provider's clock cannot order them.
func (t *traffic) lifecycle(source string, life []string, n int) (all []sent, err error) {
	at := time.Now().Add(-10 * time.Minute).Truncate(time.Second)
	for step, eventType := range life {
		at = at.Add(time.Duration(t.rand.IntN(3)) * time.Second)
		sample, err := t.sample(source, eventType, n, step, at.Add(time.Duration(step)*time.Millisecond))
		if err != nil {
			return nil, err
		}
		some, err := t.deliveries(source, sample, n, step)
		if err != nil {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

// sample returns the event of a step.
func (t *traffic) sample(source, eventType string, n, step int, at time.Time) (provider.Sample, error) {
	if source == "acme" {
		body, err := json.Marshal(map[string]any{"id": fmt.Sprintf("evt_%d_%d", n, step), "type": eventType,
			"at": at.Format(time.RFC3339Nano),
			"widget": map[string]any{"id": fmt.Sprintf("w_%d", n), "version": step + 1, "colour": t.rand.IntN(1000),
				"notes": strings.Repeat("long ", t.rand.IntN(400))}})
		return provider.Sample{Type: eventType, Body: body}, err
	}
	s, ok := t.samples[[2]string{source, eventType}]
	if !ok {
		return provider.Sample{}, fmt.Errorf("no sample %s", eventType)
	}
	return t.endpoints[source].Provider.MakeVariant(s, n, at, true)
}

// deliveries returns the deliveries of a step: usually the event, sometimes another delivery
// instead of it or in addition.
func (t *traffic) deliveries(source string, s provider.Sample, n, step int) ([]sent, error) {
	right, err := t.sign(source, s)
	if err != nil {
		return nil, err
	}
	switch t.rand.IntN(40) {
	case 0:
		return []sent{t.tampered(right)}, nil
	case 1:
		other := s
		other.Body = slices.Concat(bytes.TrimSuffix(bytes.TrimSpace(s.Body), []byte("}")), []byte(`,"another":1}`))
		conflict, err := t.sign(source, other)
		return []sent{right, conflict}, err
	case 2:
		garbled, err := t.sign(source, provider.Sample{Type: s.Type, ID: s.ID,
			Body: fmt.Appendf(nil, `{"id": "garbled %d %d`, n, step)})
		return []sent{garbled}, err
	case 3:
		large, err := t.sign(source, provider.Sample{Type: s.Type, ID: s.ID,
			Body: slices.Concat(s.Body, bytes.Repeat([]byte(" "), 300<<10))})
		large.want = tooLarge
		return []sent{right, large}, err
	case 4:
		if source == "shop" {
			right.delivery.Header.Set("X-Shopify-Shop-Domain", "another.myshopify.com")
			right.want = forged
		}
	}
	return []sent{right}, nil
}

// tampered changes the body after it was signed.
func (t *traffic) tampered(s sent) sent {
	s.delivery.Body = append(bytes.Clone(s.delivery.Body), ' ')
	s.digest, s.want = digestOf(s.delivery.Body), forged
	return s
}

func (t *traffic) sign(source string, sample provider.Sample) (sent, error) {
	endpoint := t.endpoints[source]
	d, err := endpoint.Provider.Sign(endpoint.Source, sample, time.Now())
	if err != nil {
		return sent{}, err
	}
	evs, err := endpoint.Provider.Identify(endpoint.Source, &provider.Delivery{Header: d.Header, Body: d.Body,
		ReceivedAt: time.Now()})
	if err != nil {
		return sent{}, err
	}
	if len(evs) != 1 {
		return sent{}, fmt.Errorf("a delivery of %d events", len(evs))
	}
	return sent{source: source, delivery: d, key: evs[0].Key, digest: digestOf(d.Body)}, nil
}
