package ingest_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/audit"
	"github.com/postern-gateway/postern/internal/events"
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
		b.wantCounter(t, 1, "postern_rejections_total", "source="+r.source, "reason="+string(r.reason))
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

// me is who releases.
var me = audit.Person{Name: "me", Via: audit.Command}

// rejection is the only one that is kept, and when.
func (b *testBundle) rejection(t *testing.T) (r *ingest.RejectedDetail) {
	t.Helper()
	testkit.Eventually(t, 30*time.Second, func() (err error) {
		var id int64
		if err := b.db.Pool.QueryRow(t.Context(), `SELECT id FROM rejections`).Scan(&id); err != nil {
			return err
		}
		r, err = ingest.ShowRejection(t.Context(), b.db.Pool, id)
		return err
	})
	return r
}

// withSecret is a source with a further secret.
func (b *testBundle) withSecret(source string, value []byte) ingest.Endpoint {
	ep := sources()[source] // as b.endpoints has it, but nothing shared with the server
	ep.Number = b.endpoints[source].Number
	ep.Config.Secrets = append(ep.Config.Secrets, provider.Secret{Name: "new", Value: value})
	return ep
}

// provenLater has an order of another shop refused, and checks it again with a source that is of that shop.
func (b *testBundle) provenLater(t *testing.T, n int) *ingest.Checked {
	t.Helper()
	order := b.sign(t, "shop", b.sample(t, "shop", "orders/create", n))
	order.Header.Set("X-Shopify-Shop-Domain", "other.myshopify.com")
	b.post(t, "shop", order).refused(t, 401, "unauthenticated")
	ep := b.withSecret("shop", []byte("another"))
	ep.Config.Account = "other.myshopify.com"
	c := ingest.Check(ep, b.rejection(t))
	if !c.Proven {
		t.Fatalf("%+v", c)
	}
	return &c
}

const storedSQL = `SELECT (to_jsonb(e) - 'id' - 'delivery_id' - 'verification' - 'source')::text FROM events e`

// A delivery that was signed with a secret which was given later is proven as of its time of receipt, and released into the log as it would have been taken.
func TestReleaseIsWhatTheDoorWouldHaveStored(t *testing.T) {
	t.Parallel()
	const secret = "whsec_given_later"
	b := setup(t, nil)
	d := b.sample(t, "stripe", "invoice.paid", 1)
	b.endpoints = map[string]ingest.Endpoint{"stripe": b.withSecret("stripe", []byte(secret))}
	other := *b.endpoints["stripe"].Config
	other.Secrets = other.Secrets[1:]
	signed, err := b.endpoints["stripe"].Provider.Sign(&other, d, time.Now())
	if err != nil {
		t.Fatal(err)
	}
	b.post(t, "stripe", signed).refused(t, 401, "unauthenticated")
	r := b.rejection(t)
	unchanged := ingest.Check(ingest.Endpoint{Provider: b.endpoints["stripe"].Provider, Config: sources()["stripe"].Config}, r)
	if unchanged.Proven || !strings.HasPrefix(unchanged.Now, "still refused: wrong_signature") {
		t.Errorf("%+v", unchanged)
	}
	gateway := b.db.Role(t, "gateway")
	if _, err := ingest.Release(t.Context(), gateway, &unchanged, me, "x"); !errors.Is(err, events.ErrInvalid) {
		t.Error(err)
	}
	late := *r
	late.ReceivedAt.Time = r.ReceivedAt.Add(time.Hour) // judged against the time of receipt, whenever that is looked at
	if c := ingest.Check(b.endpoints["stripe"], &late); c.Proven || !strings.Contains(c.Now, "stale_timestamp") {
		t.Errorf("%+v", c)
	}
	cut := *r
	cut.Cut = true
	if c := ingest.Check(b.endpoints["stripe"], &cut); c.Proven || !strings.Contains(c.Now, "bytes of the body were kept") {
		t.Errorf("%+v", c)
	}
	c := ingest.Check(b.endpoints["stripe"], r)
	if !c.Proven || c.Now != `proven by secret "new" (stripe-v1)` || len(c.Events) != 1 || c.Events[0].EventType != "invoice.paid" {
		t.Fatalf("%+v", c)
	}
	receipts, err := ingest.Release(t.Context(), gateway, &c, audit.Person{Name: "ada@office", Via: audit.Command}, "the secret was new")
	if err != nil || len(receipts) != 1 || receipts[0].Duplicate {
		t.Fatal(receipts, err)
	}
	b.wantRows(t, 0, `rejections`)
	released := b.stored(t, receipts[0].ID)
	// The same delivery, let in by the door of a server that has the secret.
	twin := setup(t, func(o *ingest.Options) {
		o.Endpoints["stripe"].Config.Secrets[0].Value = []byte(secret)
		o.Now = func() time.Time { return r.ReceivedAt.Time }
	})
	receipt := twin.post(t, "stripe", signed).receipt(t)
	id, _ := events.ParseID(receipt.ID)
	if diff := cmp.Diff(twin.stored(t, id), released); diff != "" {
		t.Errorf("the door stores otherwise: %s", diff)
	}
	var proof map[string]string
	var raw json.RawMessage
	if err := b.db.Pool.QueryRow(t.Context(), `SELECT verification FROM events`).Scan(&raw); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(raw, &proof); err != nil || proof["secret"] != "new" || proof["released_by"] != "ada@office" || proof["released_because"] != "the secret was new" ||
		proof["rejection"] != fmt.Sprint(r.ID) || proof["signed_at"] == "" {
		t.Errorf("%s %v", raw, err)
	}
}

func (b *testBundle) stored(t *testing.T, id int64) (row string) {
	t.Helper()
	if err := b.db.Pool.QueryRow(t.Context(), storedSQL+` WHERE id = $1`, id).Scan(&row); err != nil {
		t.Fatal(err)
	}
	return row
}

// Ended between the append and the forgetting, a release that is repeated finds the event and forgets the rejection.
func TestReleaseIsRepeated(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	c := b.provenLater(t, 1)
	b.db.Exec(t, `CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$;
CREATE CONSTRAINT TRIGGER never AFTER DELETE ON rejections DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION never()`)
	gateway := b.db.Role(t, "gateway")
	if _, err := ingest.Release(t.Context(), gateway, c, me, "x"); err == nil || !strings.Contains(err.Error(), "release it again") {
		t.Fatal(err)
	}
	b.db.Exec(t, `DROP TRIGGER never ON rejections`)
	receipts, err := ingest.Release(t.Context(), gateway, c, me, "x")
	if err != nil || !receipts[0].Duplicate || receipts[0].Conflict {
		t.Errorf("%+v %v", receipts, err)
	}
	if n, left := b.count(t, `SELECT count(*) FROM events`), b.count(t, `SELECT count(*) FROM rejections`); n != 1 || left != 0 {
		t.Errorf("%d events, %d rejections", n, left)
	}
	if _, err := ingest.Release(t.Context(), gateway, c, me, "x"); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("released a third time: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ingest.Release(ctx, gateway, c, me, "x"); err == nil {
		t.Error("released without a database")
	}
}

// A redaction that comes between the check and the release has taken the body away: the log gets nothing of it. One that comes while it is released waits until the log has it.
func TestReleaseBesideARedaction(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	gateway := b.db.Role(t, "gateway")
	gone := b.provenLater(t, 1)
	b.db.Exec(t, `DELETE FROM rejections WHERE id = $1`, gone.ID)
	if receipts, err := ingest.Release(t.Context(), gateway, gone, me, "x"); !errors.Is(err, events.ErrNotFound) || receipts != nil {
		t.Errorf("%v, %v", receipts, err)
	}
	b.wantRows(t, 0, `events`)
	c := b.provenLater(t, 2)
	release := b.hold(t)
	released := make(chan error, 1)
	go func() {
		_, err := ingest.Release(t.Context(), gateway, c, me, "x")
		released <- err
	}()
	b.blocked(t, 1)
	looked := make(chan error, 1)
	go func() {
		var stored int
		_, err := b.db.Pool.Exec(t.Context(), `DELETE FROM rejections WHERE id = $1`, c.ID)
		if err == nil {
			err = b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events`).Scan(&stored)
		}
		if err == nil && stored == 0 {
			err = errors.New("the rejection is gone, and the log has nothing of it yet")
		}
		looked <- err
	}()
	b.blocked(t, 2)
	release()
	if err := errors.Join(<-released, <-looked); err != nil {
		t.Error(err)
	}
}

// A provider that faults, and a greeting, are told and not released.
func TestCheckTellsWhatCannotBeReleased(t *testing.T) {
	t.Parallel()
	r := &ingest.RejectedDetail{Rejected: ingest.Rejected{Bytes: 2}, Headers: []byte(`{}`), Content: events.MakeContent([]byte(`{}`))}
	for source, says := range map[string]string{"panic": "a fault of ours", "stripe": "still refused: missing_signature"} {
		ep := sources()[source]
		if c := ingest.Check(ep, r); c.Proven || !strings.Contains(c.Now, says) {
			t.Errorf("%s: %+v", source, c)
		}
	}
	r.Content, r.Headers = events.MakeContent([]byte("ping")), []byte(`{"Sim-Signature": "signed by the simulated provider"}`)
	if c := ingest.Check(sources()["polite"], r); c.Proven || !strings.Contains(c.Now, "a greeting and no event") {
		t.Errorf("%+v", c)
	}
	r.Headers = []byte(`[]`)
	if c := ingest.Check(sources()["stripe"], r); c.Proven || !strings.Contains(c.Now, "kept headers") {
		t.Errorf("%+v", c)
	}
}

func TestListRejectionsFiltersAndPages(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	operator := db.Role(t, "operator")
	known, err := events.RegisterSources(t.Context(), db.Pool, map[string]string{"a": "stripe", "b": "stripe"})
	if err != nil {
		t.Fatal(err)
	}
	day := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	db.Exec(t, `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
		SELECT CASE g % 3 WHEN 0 THEN $1::int ELSE $2::int END, CASE g % 2 WHEN 0 THEN 'wrong_signature' ELSE 'stale_timestamp' END, 'd' || g, '', $3::timestamptz + g * interval '1 s',
		  '{}', 'body', CASE g WHEN 1 THEN 900 ELSE 4 END FROM generate_series(1, 12) g`, known.Number["a"], known.Number["b"], day)
	for name, tc := range map[string]struct {
		f    ingest.RejectionFilter
		want string
	}{
		"all":    {ingest.RejectionFilter{}, "d12 d11 d10 d9 d8 d7 d6 d5 d4 d3 d2 d1 "},
		"source": {ingest.RejectionFilter{Source: known.Number["a"]}, "d12 d9 d6 d3 "},
		"reason": {ingest.RejectionFilter{Reason: "wrong_signature", Source: known.Number["a"]}, "d12 d6 "},
		"times":  {ingest.RejectionFilter{Since: day.Add(3 * time.Second), Until: day.Add(5 * time.Second)}, "d4 d3 "},
	} {
		for _, limit := range []int{1, 5, 50} {
			got := ""
			for cursor, more := "", true; more; more = cursor != "" {
				page, err := ingest.ListRejections(t.Context(), operator, tc.f, cursor, limit)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range page.Items {
					got += r.Detail + " "
				}
				cursor = page.Next
			}
			if got != tc.want {
				t.Errorf("%s by %d: %q, want %q", name, limit, got, tc.want)
			}
		}
	}
	for id, cut := range map[int64]bool{1: true, 2: false} {
		r, err := ingest.ShowRejection(t.Context(), operator, id)
		if err != nil || r.Cut != cut || r.Text != "body" || r.Detail != fmt.Sprint("d", id) || r.Explanation == "" {
			t.Errorf("rejection %d: %+v, %v", id, r, err)
		}
	}
	if _, err := ingest.ShowRejection(t.Context(), operator, 99); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
}
