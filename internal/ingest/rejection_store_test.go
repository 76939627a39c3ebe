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

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/testkit"
)

// rejectedDelivery is a delivery that must be rejected, with the reason.
type rejectedDelivery struct {
	source   string
	reason   provider.Reason
	delivery *provider.Delivery
}

func (b *testBundle) rejectedDeliveries(t *testing.T) []rejectedDelivery {
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
	modified := func(d *provider.Delivery) *provider.Delivery {
		d.Body = append(bytes.Clone(d.Body), ' ')
		return d
	}
	return []rejectedDelivery{
		{"stripe", provider.MissingSignature, with(b.sign(t, "stripe", stripe), "Stripe-Signature", "")},
		{"stripe", provider.MalformedSignature, with(b.sign(t, "stripe", stripe), "Stripe-Signature", "t=soon,v1=zz")},
		{"stripe", provider.WrongSignature, modified(b.sign(t, "stripe", stripe))},
		{"stripe", provider.StaleTimestamp, b.signAt(t, "stripe", stripe, now.Add(-10*time.Minute))},
		{"stripe", provider.FutureTimestamp, b.signAt(t, "stripe", stripe, now.Add(10*time.Minute))},
		{"shop", provider.MissingSignature, with(b.sign(t, "shop", order), "X-Shopify-Hmac-Sha256", "")},
		{"shop", provider.MalformedSignature, with(b.sign(t, "shop", order), "X-Shopify-Hmac-Sha256", "***")},
		{"shop", provider.WrongSignature, modified(b.sign(t, "shop", order))},
		{"shop", provider.ForbiddenAccount, with(b.sign(t, "shop", order), "X-Shopify-Shop-Domain",
			"other.myshopify.com")},
		{"shops", provider.MissingHeader, with(b.sign(t, "shops", order), "X-Shopify-Shop-Domain", "")},
	}
}

// Each reason gets the same 401; the stored row has the reason.
func TestRejectionStore_eachReason_isStored(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	for _, r := range b.rejectedDeliveries(t) {
		before := b.count(t, `SELECT coalesce(max(id), 0) FROM rejections`)
		a := b.post(t, r.source, r.delivery)
		a.wantProblem(t, 401, "unauthenticated")
		if bytes.Contains(a.body, []byte(r.reason)) {
			t.Errorf("the response contains the reason: %s", a.body)
		}
		var reason, detail, remote string
		var headers map[string]string
		var body []byte
		var raw json.RawMessage
		testkit.Eventually(t, 10*time.Second, func() error {
			return b.db.Pool.QueryRow(t.Context(), `SELECT reason, detail, remote, headers, body FROM rejections
				WHERE id > $1`, before).Scan(&reason, &detail, &remote, &raw, &body)
		})
		testkit.Must(t, json.Unmarshal(raw, &headers))
		if reason != string(r.reason) || detail == "" || remote != "127.0.0.1" || !bytes.Equal(body, r.delivery.Body) {
			t.Errorf("%s %s is stored as %s (%s) from %s with %d bytes", r.source, r.reason, reason, detail, remote,
				len(body))
		}
		for name, value := range headers {
			if r.delivery.Header.Get(name) != value && name != "User-Agent" {
				t.Errorf("header %s: %s", name, value)
			}
		}
		// Headers for the verification are stored too, so that the delivery can be verified again
		// after a secret is corrected.
		signature := map[string]string{"stripe": "Stripe-Signature", "shop": "X-Shopify-Hmac-Sha256",
			"shops": "X-Shopify-Hmac-Sha256"}[r.source]
		if headers[signature] != r.delivery.Header.Get(signature) {
			t.Errorf("%s %s: the stored signature is %q", r.source, r.reason, headers[signature])
		}
		for _, secret := range []string{stripeSecret, shopifySecret} {
			if strings.Contains(detail+string(raw), secret) {
				t.Errorf("the row contains the secret: %s %s", detail, raw)
			}
		}
		b.wantCounter(t, 1, "postern_rejections_total", "source="+r.source, "reason="+string(r.reason))
	}
	b.wantEvents(t, 0)
}

// A forged delivery must not use the key of a real one.
func TestHandler_forgedDelivery_reservesNoKey(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	d := b.invoice(t, 1)
	forged := &provider.Delivery{Header: d.Header.Clone(), Body: d.Body}
	forged.Header.Set("Stripe-Signature", fmt.Sprintf("t=%d,v1=%064x", time.Now().Unix(), 7))
	b.post(t, "stripe", forged).wantProblem(t, 401, "unauthenticated")
	if r := b.post(t, "stripe", d).receipt(t); r.Duplicate {
		t.Errorf("receipt %+v", r)
	}
}

// A flood of forged deliveries costs a bounded number of rows and bytes, and real deliveries are
// accepted meanwhile.
func TestRejectionStore_floodOfForgedDeliveries_isBounded(t *testing.T) {
	t.Parallel()
	const most, bytesMost, forgeries = 50, 40_000, 20_000
	b := setup(t, func(o *ingest.Options) {
		o.Settings.RejectionsMaxCount, o.Settings.RejectionsMaxBytes = most, bytesMost
	})
	handler := b.server.Handler() // without sockets, which are not measured
	forged := b.invoice(t, 1)
	forged.Body = append(bytes.Repeat([]byte(" "), 1000), forged.Body...)
	var group sync.WaitGroup
	for range 4 {
		group.Go(func() {
			for i := range forgeries / 4 {
				if status := serve(handler, "stripe", forged); status != http.StatusUnauthorized {
					t.Errorf("forged delivery %d: status %d", i, status)
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
	t.Logf("%d real deliveries during %d forged ones", during, forgeries)
	dropped := b.counter(t, "postern_rejections_dropped_total", "source=stripe")
	if dropped == 0 || b.counter(t, "postern_rejections_total") != forgeries || during == 0 {
		t.Errorf("%v dropped of %v, %d real ones meanwhile", dropped, b.counter(t, "postern_rejections_total"), during)
	}
	testkit.Eventually(t, 10*time.Second, func() error {
		rows, size := b.count(t, `SELECT count(*) FROM rejections`), b.count(t, `SELECT coalesce(sum(length(body)), 0)
			FROM rejections`)
		if rows == 0 || rows > most || size > bytesMost {
			return fmt.Errorf("%d rejections of %d bytes are stored", rows, size)
		}
		return nil
	})
	// The identity column shows how many rows were ever inserted.
	if written := b.count(t, `SELECT max(id) FROM rejections`); written > forgeries/2 {
		t.Errorf("%d of %d forged deliveries were inserted", written, forgeries)
	}
}

// actor is the operator who reprocesses.
var actor = adminauth.Actor{Name: "me", Via: adminauth.ViaCommand}

// onlyRejection waits for the only stored rejection and returns it.
func (b *testBundle) onlyRejection(t *testing.T) (r *ingest.RejectionDetail) {
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

// withSecret returns a source with an additional secret.
func (b *testBundle) withSecret(source string, value []byte) ingest.Endpoint {
	ep := sources()[source] // equal to b.endpoints, but shares nothing with the server
	ep.Number = b.endpoints[source].Number
	ep.Config.Secrets = append(ep.Config.Secrets, provider.Secret{Name: "new", Value: value})
	return ep
}

// verifiedLater posts an order that is rejected for its shop, and verifies it again with a source
// of that shop.
func (b *testBundle) verifiedLater(t *testing.T, n int) *ingest.Reverification {
	t.Helper()
	order := b.sign(t, "shop", b.sample(t, "shop", "orders/create", n))
	order.Header.Set("X-Shopify-Shop-Domain", "other.myshopify.com")
	b.post(t, "shop", order).wantProblem(t, 401, "unauthenticated")
	ep := b.withSecret("shop", []byte("another"))
	ep.Config.Account = "other.myshopify.com"
	c := ingest.Reverify(ep, b.onlyRejection(t))
	if !c.Verified {
		t.Fatalf("%+v", c)
	}
	return &c
}

// wantUnverified checks that a rejected delivery is still not verified, and that the result has a
// reason.
func wantUnverified(t *testing.T, ep ingest.Endpoint, r *ingest.RejectionDetail, reason string) ingest.Reverification {
	t.Helper()
	c := ingest.Reverify(ep, r)
	if c.Verified || !strings.Contains(c.Result, reason) {
		t.Errorf("%+v, want %q", c, reason)
	}
	return c
}

// A delivery signed with a secret that was configured later is verified as of its time of receipt,
// and reprocessed as it would have been stored.
func TestReprocess_newSecret_storesLikeHandler(t *testing.T) {
	t.Parallel()
	const secret = "whsec_given_later"
	b := setup(t, nil)
	d := b.sample(t, "stripe", "invoice.paid", 1)
	b.endpoints = map[string]ingest.Endpoint{"stripe": b.withSecret("stripe", []byte(secret))}
	other := *b.endpoints["stripe"].Config
	other.Secrets = other.Secrets[1:]
	signed, err := b.endpoints["stripe"].Provider.Sign(&other, d, time.Now())
	testkit.Must(t, err)
	b.post(t, "stripe", signed).wantProblem(t, 401, "unauthenticated")
	r := b.onlyRejection(t)
	unchanged := wantUnverified(t, sources()["stripe"], r, "still rejected: wrong_signature")
	gateway := b.db.Role(t, "gateway")
	if _, err := ingest.Reprocess(t.Context(), gateway, &unchanged, actor, "x"); !errors.Is(err, events.ErrInvalid) {
		t.Error(err)
	}
	late := *r
	late.ReceivedAt.Time = r.ReceivedAt.Add(time.Hour) // compared with the time of receipt, whenever it is verified
	wantUnverified(t, b.endpoints["stripe"], &late, "stale_timestamp")
	cut := *r
	cut.Truncated = true
	wantUnverified(t, b.endpoints["stripe"], &cut, "bytes of the body were stored")
	c := ingest.Reverify(b.endpoints["stripe"], r)
	if !c.Verified || c.Result != `verified by secret "new" (stripe-v1)` || len(c.Events) != 1 ||
		c.Events[0].EventType != "invoice.paid" {
		t.Fatalf("%+v", c)
	}
	receipts, err := ingest.Reprocess(t.Context(), gateway, &c, adminauth.Actor{Name: "ada@office",
		Via: adminauth.ViaCommand}, "the secret was new")
	if err != nil || len(receipts) != 1 || receipts[0].Duplicate {
		t.Fatal(receipts, err)
	}
	b.wantRows(t, 0, `rejections`)
	reprocessed := b.stored(t, receipts[0].ID)
	// The same delivery to a server that has the secret.
	reference := setup(t, func(o *ingest.Options) {
		o.Endpoints["stripe"].Config.Secrets[0].Value = []byte(secret)
		o.Now = func() time.Time { return r.ReceivedAt.Time }
	})
	receipt := reference.post(t, "stripe", signed).receipt(t)
	id, _ := events.ParseID(receipt.ID)
	testkit.Equal(t, "the ingest endpoint stores it differently", reference.stored(t, id), reprocessed)
	b.wantRows(t, 1, `events WHERE verification->>'secret' = 'new' AND verification->>'reprocessed_by' = 'ada@office'
		AND verification->>'reprocessed_reason' = 'the secret was new' AND verification->>'rejection' = $1
		AND verification->>'signed_at' > ''`, fmt.Sprint(r.ID))
}

// stored returns the row of an event, without the fields that differ between two databases.
func (b *testBundle) stored(t *testing.T, id int64) []string {
	t.Helper()
	return b.db.QueryStrings(t, `SELECT (to_jsonb(e) - 'id' - 'delivery_id' - 'verification' - 'source')::text
		FROM events e WHERE id = $1`, id)
}

// If the process ended between the append and the deletion, a second call finds the event and
// deletes the rejection.
func TestReprocess_repeatedAfterFailure_findsTheEvent(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	c := b.verifiedLater(t, 1)
	b.db.Exec(t, `
		CREATE FUNCTION never() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN RAISE EXCEPTION 'not now'; END $$;
		CREATE CONSTRAINT TRIGGER never AFTER DELETE ON rejections DEFERRABLE INITIALLY DEFERRED FOR EACH ROW
			EXECUTE FUNCTION never()`)
	gateway := b.db.Role(t, "gateway")
	if _, err := ingest.Reprocess(t.Context(), gateway, c, actor, "x"); err == nil ||
		!strings.Contains(err.Error(), "reprocess it again") {
		t.Fatal(err)
	}
	b.db.Exec(t, `DROP TRIGGER never ON rejections`)
	receipts, err := ingest.Reprocess(t.Context(), gateway, c, actor, "x")
	if err != nil || !receipts[0].Duplicate || receipts[0].Conflict {
		t.Errorf("%+v %v", receipts, err)
	}
	b.wantRows(t, 1, `events`)
	b.wantRows(t, 0, `rejections`)
	if _, err := ingest.Reprocess(t.Context(), gateway, c, actor, "x"); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("reprocessed a third time: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := ingest.Reprocess(ctx, gateway, c, actor, "x"); err == nil {
		t.Error("reprocessed without a database")
	}
}

// If a redaction has removed the body before Reprocess, nothing is appended. A redaction that
// starts during Reprocess waits until the event is in the log.
func TestReprocess_concurrentRedaction_storesNothing(t *testing.T) {
	t.Parallel()
	b := setup(t, nil)
	gateway := b.db.Role(t, "gateway")
	gone := b.verifiedLater(t, 1)
	b.db.Exec(t, `DELETE FROM rejections WHERE id = $1`, gone.ID)
	if receipts, err := ingest.Reprocess(t.Context(), gateway, gone, actor, "x"); !errors.Is(err, events.ErrNotFound) ||
		receipts != nil {
		t.Errorf("%v, %v", receipts, err)
	}
	b.wantRows(t, 0, `events`)
	c := b.verifiedLater(t, 2)
	release := b.lockLog(t)
	reprocessed := make(chan error, 1)
	go func() {
		_, err := ingest.Reprocess(t.Context(), gateway, c, actor, "x")
		reprocessed <- err
	}()
	b.waitBlocked(t, 1)
	redactionDone := make(chan error, 1)
	go func() {
		var stored int
		_, err := b.db.Pool.Exec(t.Context(), `DELETE FROM rejections WHERE id = $1`, c.ID)
		if err == nil {
			err = b.db.Pool.QueryRow(t.Context(), `SELECT count(*) FROM events`).Scan(&stored)
		}
		if err == nil && stored == 0 {
			err = errors.New("the rejection is deleted, and the log does not have it yet")
		}
		redactionDone <- err
	}()
	b.waitBlocked(t, 2)
	release()
	if err := errors.Join(<-reprocessed, <-redactionDone); err != nil {
		t.Error(err)
	}
}

// A delivery whose provider panics, or that is a handshake, is not verified. Result names the
// reason.
func TestReverify_panicOrHandshake_isNotVerified(t *testing.T) {
	t.Parallel()
	r := &ingest.RejectionDetail{Rejection: ingest.Rejection{Bytes: 2}, Headers: []byte(`{}`),
		Content: events.MakeContent([]byte(`{}`))}
	wantUnverified(t, sources()["panic"], r, "internal error")
	wantUnverified(t, sources()["stripe"], r, "still rejected: missing_signature")
	r.Content, r.Headers = events.MakeContent([]byte("ping")),
		[]byte(`{"Sim-Signature": "signed by the simulated provider"}`)
	wantUnverified(t, sources()["polite"], r, "a handshake and has no event")
	r.Headers = []byte(`[]`)
	wantUnverified(t, sources()["stripe"], r, "stored headers")
}

func TestListRejections_filters_coverAllPages(t *testing.T) {
	t.Parallel()
	db := testkit.Database(t)
	operator := db.Role(t, "operator")
	registered, err := events.RegisterSources(t.Context(), db.Pool, map[string]string{"a": "stripe", "b": "stripe"})
	testkit.Must(t, err)
	day := time.Date(2026, 3, 1, 0, 0, 0, 0, time.UTC)
	db.Exec(t, `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
		SELECT CASE g % 3 WHEN 0 THEN $1::int ELSE $2::int END, CASE g % 2 WHEN 0 THEN 'wrong_signature'
			ELSE 'stale_timestamp' END, 'd' || g, '', $3::timestamptz + g * interval '1 s',
		  '{}', 'body', CASE g WHEN 1 THEN 900 ELSE 4 END FROM generate_series(1, 12) g`, registered.Number["a"],
		registered.Number["b"], day)
	for name, tc := range map[string]struct {
		f    ingest.RejectionFilter
		want string
	}{
		"all":    {ingest.RejectionFilter{}, "d12 d11 d10 d9 d8 d7 d6 d5 d4 d3 d2 d1 "},
		"source": {ingest.RejectionFilter{Source: registered.Number["a"]}, "d12 d9 d6 d3 "},
		"reason": {ingest.RejectionFilter{Reason: "wrong_signature", Source: registered.Number["a"]}, "d12 d6 "},
		"times":  {ingest.RejectionFilter{Since: day.Add(3 * time.Second), Until: day.Add(5 * time.Second)}, "d4 d3 "},
	} {
		for _, limit := range []int{1, 5, 50} {
			got := ""
			for cursor, more := "", true; more; more = cursor != "" {
				page, err := ingest.ListRejections(t.Context(), operator, tc.f, cursor, limit)
				testkit.Must(t, err)
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
		if err != nil || r.Truncated != cut || r.Text != "body" || r.Detail != fmt.Sprint("d", id) ||
			r.Explanation == "" {
			t.Errorf("rejection %d: %+v, %v", id, r, err)
		}
	}
	if _, err := ingest.ShowRejection(t.Context(), operator, 99); !errors.Is(err, events.ErrNotFound) {
		t.Errorf("unknown: %v", err)
	}
}
