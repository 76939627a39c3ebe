package main

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
)

// refuse keeps a delivery that was signed with a secret as one that was refused; it returns its number.
func (b *testBundle) refuse(t *testing.T, n int, secret string) (id int64) {
	t.Helper()
	p := stripe.Stripe{}
	sample, err := p.Vary(p.Samples()[0], n, time.Now(), true)
	if err != nil {
		t.Fatal(err)
	}
	d, err := p.Sign(&provider.Source{Name: "stripe", Secrets: []provider.Secret{{Name: "x", Value: []byte(secret)}}}, sample, time.Now().Add(-48*time.Hour))
	if err != nil {
		t.Fatal(err)
	}
	headers, err := json.Marshal(map[string]string{"Stripe-Signature": d.Header.Get("Stripe-Signature")})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.db.Pool.QueryRow(t.Context(), `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
  VALUES ($1, 'wrong_signature', 'none of 1 secrets', '127.0.0.1', now() - interval '48 h', $2, $3, length($3::bytea)) RETURNING id`,
		b.known.Number["stripe"], headers, d.Body).Scan(&id); err != nil {
		t.Fatal(err)
	}
	return id
}

// What was refused for a wrong secret is verified again and released, once; the rest stays and says why.
func TestRejectionsAreVerifiedAndReleased(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.write(t, &config.Instance{DatabaseURL: b.db.URL, Sources: map[string]config.InstanceSource{"stripe": {Provider: "stripe"}}})
	good, bad, more := b.refuse(t, 1, config.DemoStripeSecret), b.refuse(t, 2, "whsec_forged"), b.refuse(t, 3, config.DemoStripeSecret)
	b.run(t, "rejections", "verify").want(t, 0, "still refused: wrong_signature", "")
	b.run(t, "rejections", "verify", fmt.Sprint(good)).want(t, 0, `proven by secret "demo" (stripe-v1)`, "")
	b.run(t, "rejections", "verify", "99").want(t, 3, "", "rejection 99: not found")
	b.run(t, "rejections", "verify", "1", "--source", "stripe").want(t, 2, "", "not both")
	b.run(t, "rejections", "verify", "--source", "shop", "-o", "json").want(t, 0, "[]", "")
	b.run(t, "rejections", "release", fmt.Sprint(good)).want(t, 2, "", "say why they may enter with --why")
	r := b.run(t, "rejections", "release", fmt.Sprint(good), "--why", "rotated")
	if r.status != 2 {
		t.Errorf("%+v", r)
	}
	if r := b.run(t, "rejections", "release", fmt.Sprint(bad), "--why", "rotated", "--yes"); r.status != 1 {
		t.Errorf("%+v", r)
	}
	b.run(t, "events", "list").want(t, 0, "No events.", "")
	b.run(t, "rejections", "release", fmt.Sprint(good), "--why", "rotated", "--yes").want(t, 0, fmt.Sprintf("%d          stripe", good), "1 of 1 rejection proven now, with 1 event\n")
	b.run(t, "rejections", "release", "--source", "stripe", "--why", "rotated", "--yes", "-o", "json").want(t, 0, fmt.Sprintf(`"id":%d,`, more), "1 of 2 rejections proven now, with 1 event\n")
	b.run(t, "rejections", "list").want(t, 0, fmt.Sprintf("\n%d  ", bad), "")
	var n int
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events WHERE verification->>'released_because' = 'rotated' AND received_at < now() - interval '47 h'`).Scan(&n); err != nil || n != 2 {
		t.Errorf("%d events, %v", n, err)
	}
}

// What is taken away between being verified and being released is left out, unless nothing else was asked for.
func TestRejectionsThatGoMeanwhile(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.write(t, &config.Instance{DatabaseURL: b.db.URL, Sources: map[string]config.InstanceSource{"stripe": {Provider: "stripe"}}})
	gone, good := b.refuse(t, 1, config.DemoStripeSecret), b.refuse(t, 2, config.DemoStripeSecret)
	if _, err := b.db.Pool.Exec(t.Context(), fmt.Sprintf(`CREATE RULE gone AS ON DELETE TO rejections WHERE OLD.id = %d DO INSTEAD NOTHING`, gone)); err != nil { // finds none to delete
		t.Fatal(err)
	}
	if r := b.run(t, "rejections", "release", fmt.Sprint(gone), "--why", "rotated", "--yes"); r.status != 3 || !strings.Contains(r.errs, "redacted, released or dropped meanwhile") {
		t.Errorf("%+v", r)
	}
	b.run(t, "rejections", "release", fmt.Sprint(gone), fmt.Sprint(good), "--why", "rotated", "--yes").want(t, 0, fmt.Sprintf("%d          stripe", good), "2 of 2 rejections proven now")
	var n int
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events WHERE verification->>'rejection' = $1::text`, fmt.Sprint(good)).Scan(&n); err != nil || n != 1 {
		t.Errorf("%d events, %v", n, err)
	}
}
