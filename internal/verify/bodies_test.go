package verify_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/testkit/applied"
	"github.com/postern-gateway/postern/internal/verify"
)

// Each way in which a body can be wrong is found and named. That the object then differs as well is for others to find.
func TestDamagedBodies(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		kind verify.Kind
		sql  string
	}{
		"body":        {verify.FingerprintDiffers, `UPDATE events SET body = set_byte(body, 3, get_byte(body, 3) # 1) WHERE id = $1`},
		"fingerprint": {verify.FingerprintDiffers, `WITH k AS (UPDATE event_keys SET fingerprint = '\x00112233445566778899aabbccddeeff' WHERE id = $1) UPDATE events SET fingerprint = '\x00112233445566778899aabbccddeeff' WHERE id = $1`},
		"no body":     {verify.BodyMissing, `UPDATE events SET body = NULL WHERE id = $1`},
		"redacted":    {verify.RedactionUndone, `INSERT INTO redacted (event, run, at) VALUES ($1, 1, now())`},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.damage(t, c.sql, b.ids[7])
			r := b.verify(t)
			if len(r.Findings) == 2 && r.Findings[1].Kind == verify.ObjectDiffers {
				r.Findings = r.Findings[:1]
			}
			if item := found(t, r, c.kind, 1); item.Event != b.ids[7] {
				t.Errorf("event %d: %+v", b.ids[7], item)
			}
		})
	}
}

// The body of a delivery of several events lies with the first of them, and may be too large to be read with others.
func TestDeliveriesOfSeveralEvents(t *testing.T) {
	t.Parallel()
	b := empty(t)
	e := at("obj_1", 1)
	e.Body = bytes.Replace(e.Body, []byte(`"object":{`), fmt.Appendf(nil, `"object":{"text":%q,`, strings.Repeat("some text ", 4000)), 1)
	d := events.Delivery{Source: b.log.Source, ReceivedAt: e.ReceivedAt, Origin: events.OriginWebhook, Headers: []byte(`{}`), Verification: []byte(`{}`), Body: e.Body}
	for _, key := range []string{"a", "b", "c"} {
		d.Events = append(d.Events, provider.Event{Key: key, Type: "thing", ObjectType: "thing", ObjectID: "obj_1", Fingerprint: provider.BodyFingerprint(e.Body)})
	}
	receipts, err := events.Append(t.Context(), b.db.Pool, []events.Delivery{d})
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range receipts[0] {
		applied.Apply(t, b.proc, events.LiveRun, []int64{r.ID})
	}
	if r := b.clean(t); r.Looked["bodies"] != 3 {
		t.Errorf("%+v", r.Looked)
	}
	b.damage(t, `UPDATE events SET body = set_byte(body, length(body) - 9, 7) WHERE body IS NOT NULL`)
	if r := b.verify(t); r.Findings[0].Kind != verify.FingerprintDiffers || r.Findings[0].Count != 3 {
		t.Errorf("%+v", r.Findings)
	}
	b.damage(t, `UPDATE events SET body = NULL WHERE body IS NOT NULL`)
	if r := b.verify(t); r.Findings[0].Kind != verify.BodyMissing || r.Findings[0].Count != 3 {
		t.Errorf("%+v", r.Findings)
	}
}

// signed stores a signed delivery of Stripe's; its source is told by how often it was called.
func (b *testBundle) signed(t *testing.T, number int32, src *provider.Source, n int) int64 {
	t.Helper()
	p := stripe.Stripe{}
	s, err := p.Vary(p.Samples()[0], n, time.Now(), true)
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.Sign(src, s, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	d.ReceivedAt = time.Now()
	v, err := p.Verify(src, d)
	if err != nil {
		t.Fatal(err)
	}
	named, err := p.Identify(src, d)
	if err != nil {
		t.Fatal(err)
	}
	proof, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	receipts, err := events.Append(t.Context(), b.db.Pool, []events.Delivery{{Source: number, ReceivedAt: d.ReceivedAt, Origin: events.OriginWebhook,
		Headers: events.AppendHeaders(nil, p.Headers(), d), Verification: proof, Body: d.Body, Events: named}})
	if err != nil {
		t.Fatal(err)
	}
	return receipts[0][0].ID
}

// Stored deliveries are proven again as of their receipt, however long that is ago, by the secret that proved them.
func TestSignatures(t *testing.T) {
	t.Parallel()
	b := empty(t)
	number := b.log.Add(t, "shop")
	src := &provider.Source{Name: "shop", Secrets: []provider.Secret{{Name: "main", Value: []byte("whsec_0123456789abcdef0123456789abcdef")}}}
	b.log.Sources["shop"] = processor.Source{Number: number, Config: src, Provider: stripe.Stripe{}}
	var ids []int64
	for i := range 5 {
		ids = append(ids, b.signed(t, number, src, i))
	}
	o := b.options(t)
	o.Signatures = true
	if r := run(t, o); len(r.Findings) != 0 || r.Looked["signatures"] != 5 || r.Looked["bodies"] != 5 {
		t.Errorf("%+v", r)
	}
	b.damage(t, `UPDATE events SET received_at = received_at - interval '1 day' WHERE id = $1`, ids[2])
	if item := found(t, run(t, o), verify.SignatureWrong, 1); item.Event != ids[2] || !strings.Contains(item.Detail, `secret "main"`) {
		t.Errorf("%+v", item)
	}
	if r := b.clean(t); r.Looked["signatures"] != 0 {
		t.Errorf("nobody asked: %+v", r.Looked)
	}
	src.Secrets[0].Value = bytes.ToUpper(src.Secrets[0].Value)
	src.Keys = nil
	found(t, run(t, o), verify.SignatureWrong, 5)
	src.Secrets[0].Name = "another"
	if r := run(t, o); len(r.Findings) != 0 || len(r.Notes) != 1 || !strings.HasPrefix(r.Notes[0], "5 deliveries of source shop were not verified again") {
		t.Errorf("%+v", r)
	}
}
