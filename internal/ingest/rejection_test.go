package ingest_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

// refusal is a delivery that must not be believed, and why.
type refusal struct {
	source   string
	reason   provider.Reason
	delivery *provider.Delivery
}

func (b *testBundle) refusals(t *testing.T) []refusal {
	stripe := b.sample(t, "stripe", "invoice.paid", 1)
	order := b.sample(t, "shop", "orders/create", 1)
	now := time.Now()
	with := func(d *provider.Delivery, name, value string) *provider.Delivery {
		d.Header.Del(name)
		if value != "" {
			d.Header.Set(name, value)
		}
		return d
	}
	tampered := func(d *provider.Delivery) *provider.Delivery {
		d.Body = append(bytes.Clone(d.Body), ' ')
		return d
	}
	return []refusal{
		{"stripe", provider.MissingSignature, with(b.sign(t, "stripe", stripe), "Stripe-Signature", "")},
		{"stripe", provider.MalformedSignature, with(b.sign(t, "stripe", stripe), "Stripe-Signature", "t=soon,v1=zz")},
		{"stripe", provider.WrongSignature, tampered(b.sign(t, "stripe", stripe))},
		{"stripe", provider.StaleTimestamp, b.signAt(t, "stripe", stripe, now.Add(-10*time.Minute))},
		{"stripe", provider.FutureTimestamp, b.signAt(t, "stripe", stripe, now.Add(10*time.Minute))},
		{"shop", provider.MissingSignature, with(b.sign(t, "shop", order), "X-Shopify-Hmac-Sha256", "")},
		{"shop", provider.MalformedSignature, with(b.sign(t, "shop", order), "X-Shopify-Hmac-Sha256", "***")},
		{"shop", provider.WrongSignature, tampered(b.sign(t, "shop", order))},
		{"shop", provider.ForbiddenAccount, with(b.sign(t, "shop", order), "X-Shopify-Shop-Domain", "other.myshopify.com")},
		{"shops", provider.MissingHeader, with(b.sign(t, "shops", order), "X-Shopify-Shop-Domain", "")},
	}
}

// Each reason is answered 401 alike, and the row tells the operator which it was.
func TestRefusedDeliveriesAreKeptWithTheirReason(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for _, r := range b.refusals(t) {
		before := b.count(t, `SELECT coalesce(max(id), 0) FROM rejections`)
		a := b.post(t, r.source, r.delivery)
		a.refused(t, 401, "unauthenticated")
		if bytes.Contains(a.body, []byte(r.reason)) {
			t.Errorf("the sender is told why: %s", a.body)
		}
		var reason, detail, remote string
		var headers map[string]string
		var body []byte
		var raw json.RawMessage
		testkit.Eventually(t, 10*time.Second, func() error {
			return b.db.Pool.QueryRow(t.Context(), `SELECT reason, detail, remote, headers, body FROM rejections WHERE id > $1`, before).Scan(&reason, &detail, &remote, &raw, &body)
		})
		if err := json.Unmarshal(raw, &headers); err != nil {
			t.Fatal(err)
		}
		if reason != string(r.reason) || detail == "" || remote != "127.0.0.1" || !bytes.Equal(body, r.delivery.Body) {
			t.Errorf("%s %s is kept as %s (%s) from %s with %d bytes", r.source, r.reason, reason, detail, remote, len(body))
		}
		for name, value := range headers {
			if r.delivery.Header.Get(name) != value && name != "User-Agent" {
				t.Errorf("header %s: %s", name, value)
			}
		}
		// What verifies is kept too, so that it can be verified again once a secret is mended.
		signature := map[string]string{"stripe": "Stripe-Signature", "shop": "X-Shopify-Hmac-Sha256", "shops": "X-Shopify-Hmac-Sha256"}[r.source]
		if headers[signature] != r.delivery.Header.Get(signature) {
			t.Errorf("%s %s: the signature is kept as %q", r.source, r.reason, headers[signature])
		}
		for _, secret := range []string{stripeSecret, shopifySecret} {
			if strings.Contains(detail+string(raw), secret) {
				t.Errorf("the row says the secret: %s %s", detail, raw)
			}
		}
		if n := b.counter(t, "postern_rejections_total", "source="+r.source, "reason="+string(r.reason)); n != 1 {
			t.Errorf("%s %s counted %v times", r.source, r.reason, n)
		}
	}
	if n := b.count(t, `SELECT count(*) FROM events`) + b.count(t, `SELECT count(*) FROM event_keys`); n != 0 {
		t.Errorf("%d events or keys of deliveries that nobody proved", n)
	}
}

// A forged delivery must not take the key of a real one.
func TestForgedDeliveryTakesNoKey(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	d := b.invoice(t, 1)
	forged := &provider.Delivery{Header: d.Header.Clone(), Body: d.Body}
	forged.Header.Set("Stripe-Signature", fmt.Sprintf("t=%d,v1=%064x", time.Now().Unix(), 7))
	b.post(t, "stripe", forged).refused(t, 401, "unauthenticated")
	if r := b.post(t, "stripe", d).receipt(t); r.Duplicate {
		t.Errorf("receipt %+v", r)
	}
}

// A flood of forgeries costs a bounded number of rows and bytes, and real deliveries in between are taken.
func TestFloodOfForgeries(t *testing.T) {
	t.Parallel()
	const most, bytesMost, forgeries = 50, 40_000, 20_000
	b := setup(t, func(o *ingest.Options) {
		o.Settings.RejectionsMaxCount, o.Settings.RejectionsMaxBytes = most, bytesMost
	})
	handler := b.server.Handler() // without sockets, which are not what is measured
	forged := b.invoice(t, 1)
	forged.Body = append(bytes.Repeat([]byte(" "), 1000), forged.Body...)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for i := range forgeries / 4 {
				if status := serve(handler, "stripe", forged); status != http.StatusUnauthorized {
					t.Errorf("forgery %d: status %d", i, status)
					return
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { group.Wait(); close(done) }()
	during := 0
	for flooding := true; flooding; {
		select {
		case <-done:
			flooding = false
		default:
			during++
		}
		b.post(t, "stripe", b.invoice(t, 1+during)).receipt(t)
	}
	t.Logf("%d real deliveries during %d forgeries", during, forgeries)
	dropped := b.counter(t, "postern_rejections_dropped_total", "source=stripe")
	if dropped == 0 || b.counter(t, "postern_rejections_total") != forgeries || during == 0 {
		t.Errorf("%v dropped of %v, %d real ones meanwhile", dropped, b.counter(t, "postern_rejections_total"), during)
	}
	testkit.Eventually(t, 10*time.Second, func() error {
		rows, size := b.count(t, `SELECT count(*) FROM rejections`), b.count(t, `SELECT coalesce(sum(length(body)), 0) FROM rejections`)
		if rows == 0 || rows > most || size > bytesMost {
			return fmt.Errorf("%d rejections of %d bytes are kept", rows, size)
		}
		return nil
	})
	// The table's identity tells how many rows were ever written.
	if written := b.count(t, `SELECT max(id) FROM rejections`); written > forgeries/2 {
		t.Errorf("%d of %d forgeries were written", written, forgeries)
	}
}
