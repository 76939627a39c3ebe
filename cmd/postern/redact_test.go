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
	"github.com/postern-gateway/postern/internal/redaction"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/applied"
)

const address = "ada@example.org"

// redacts executes redactions until the test ends.
func (b *testBundle) redacts(t *testing.T) {
	t.Helper()
	p := b.applier(t, stripe.Stripe{})
	execute := (&redaction.Runner{Pool: p.Pool, Applier: p}).Execute
	applied.StartRunner(t, p.Pool, "p", 1, map[string]runs.Executor{redaction.Job: execute})
}

// shopify stores a delivery of the shop.
func (b *testBundle) shopify(t *testing.T, topic, body string) int64 {
	t.Helper()
	return b.store(t, "shop", body, provider.Event{Key: topic + body, Type: topic, Account: "x.myshopify.com"})
}

func TestRedact_previewAndRun(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.redacts(t)
	b.append(t, "stripe", "evt_1", `{"customer": {"email": "`+address+`"}}`)
	b.append(t, "stripe", "evt_2", `{"customer": {"email": "other@example.org"}}`)
	b.want(t, "redact --event evt_1", 2, "", "give a reason with --reason")
	b.run(t, "redact", "--source", "stripe", "--path", "customer.email", "--value", address, "--reason", "r").want(t, 2,
		"", "write it like $.customer.email")
	b.append(t, "stripe", "evt_cut", `{"customer": {"email": "x`)
	b.want(t, "redact --source stripe --path $.customer.email --value nobody@example.org --preview", 0,
		"1 event cannot be read as JSON or a form", "")
	b.want(t, "redact --event evt_none --reason r", 3, "", "evt_none")
	b.run(t, "redact", "--source", "stripe", "--path", "$.customer.email", "--value", address, "--preview", "-o",
		"json").want(t, 0, `"events": 1,`, "")
	b.want(t, "redact --event evt_1 --preview", 0, "Files of NATS keep messages that left a stream before", "")
	b.want(t, "redact --event evt_1 --reason r", 2, "1 event of 0 objects",
		"no terminal to ask for confirmation: add --yes, or --preview")
	r := execute(t.Context(), address+"\n", "--dir", b.dir, "redact", "--source", "stripe", "--path",
		"$.customer.email", "--value", "-", "--reason", "ticket 17", "--yes")
	r.want(t, 0, "1 redacted, 0 objects cleared, 1 could not be read, 3 searched", "")
	if strings.Contains(r.out+r.errs, address) {
		t.Errorf("the value is printed: %s", r.out)
	}
	b.want(t, "redact list", 0, "ticket 17", "")
	b.want(t, "events show evt_1", 0, "by run 1: body and headers are cleared", "")
	b.want(t, "events show evt_1 -o json", 0, `"redacted": true`, "")
	list := b.want(t, "events list", 0, "ignored, redacted", "")
	if n := strings.Count(list.out, "redacted"); n != 1 {
		t.Errorf("%d events of the list are marked:\n%s", n, list.out)
	}
	b.want(t, "events list -o json", 0, `"redacted":true`, "")
	b.want(t, "events show evt_1 --raw", 1, "", "was redacted at")
	b.want(t, "events show evt_2", 0, "other@example.org", "")
	b.want(t, "redact --event evt_1 --reason again --yes", 0, "1 of them are already redacted.", "")
	b.db.WantRows(t, 0, `runs r WHERE r::text LIKE '%' || $1 || '%'`, address)
}

// Shopify's compliance webhooks are listed until they are answered, with what to do.
func TestRedact_requestOfSender_isListedAndAnswered(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.redacts(t)
	b.want(t, "redact pending", 0, "No request is unanswered", "")
	b.shopify(t, "orders/create", `{"id": 7, "email": "`+address+`", "customer": {"id": 3}}`)
	b.shopify(t, "fulfillments/create", `{"id": 71, "order_id": 8}`)
	b.shopify(t, "orders/create", `{"id": 9, "email": "other@example.org"}`)
	redact := b.shopify(t, "customers/redact", `{"shop_domain": "x.myshopify.com", "customer": {"id": 3, "email": "`+
		address+`"}, "orders_to_redact": [8]}`)
	tell := b.shopify(t, "customers/data_request",
		`{"shop_domain": "x.myshopify.com", "customer": {"id": 4}, "orders_requested": [9]}`)
	foreign := b.shopify(t, "shop/redact", `{"shop_domain": "y.myshopify.com"}`)
	pending := b.run(t, "redact", "pending").out
	if strings.Count(pending, "\n") != 4 || !strings.Contains(pending, "the body is about the shop") {
		t.Errorf("pending\n%s", pending)
	}
	b.run(t, "redact", "--from-event", fmt.Sprint(foreign), "--reason", "r", "--yes").want(t, 2, "", "cannot be read")
	b.want(t, "redact --source shop --path $.customer.id --value 4 --preview", 0,
		"1 request of the sender without an answer would be cleared too", "")
	b.want(t, "redact --source shop --path $.customer.id --value 4 --reason r --yes", 0,
		"0 redacted, 0 objects cleared, 1 request not cleared, still to be answered", "")
	b.run(t, "redact", "--from-event", fmt.Sprint(tell), "--reason", "r", "--yes").want(t, 2,
		"customers/data_request of source shop", "then add --informed")
	b.run(t, "redact", "--from-event", fmt.Sprint(tell), "--reason", "informed by letter", "--informed",
		"--yes").want(t, 0, "1 redacted", "")
	b.run(t, "events", "show", fmt.Sprint(tell)).want(t, 0, "body and headers are cleared", "")
	b.run(t, "redact", "--from-event", fmt.Sprint(redact), "--reason", "ticket 21", "--yes").want(t, 0, "3 redacted",
		"")
	b.want(t, "redact pending -o json", 0, fmt.Sprintf(`"event":"%d"`, foreign), "")
	if pending := b.run(t, "redact", "pending").out; strings.Count(pending, "\n") != 2 {
		t.Errorf("pending\n%s", pending)
	}
	b.run(t, "redact", "--answers", fmt.Sprint(foreign), "--event", fmt.Sprint(foreign), "--reason", "not ours",
		"--yes").want(t, 0, "1 redacted", "")
	b.want(t, "redact pending", 0, "No request is unanswered", "")
	b.db.WantRows(t, 1, `events WHERE body IS NOT NULL`)
}

func TestRedact_mentions_erasesPersonAndPrintsNoAddress(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.redacts(t)
	b.append(t, "stripe", "evt_1", `{"customer": "cus_1a", "email": "`+address+`"}`)
	b.append(t, "stripe", "evt_2", `{"customer": "cus_1ab"}`)
	b.append(t, "stripe", "evt_3", `{"customers": ["cus_1a", "cus_2b"]}`)
	b.shopify(t, "orders/create", `{"id": 7, "note": "for `+address+`"}`)

	b.want(t, "events list --mentions cus_1a", 0, "evt_3", "")
	if r := b.run(t, "events", "list", "--mentions", "cus_1a,"+strings.ToUpper(address)); strings.Count(r.out,
		"\n") != 4 || strings.Contains(r.out, "evt_2") {
		t.Errorf("events that mention her:\n%s", r.out)
	}
	b.want(t, "events list --mentions cus_1a --limit 1", 0, "evt_3", "postern: searched back to ")
	b.want(t, "events list --body customers[*]=CUS_2b", 0, "evt_3", "")
	if r := b.run(t, "events", "list", "--body", "customer=cus_1a", "--mentions", address); strings.Count(r.out,
		"\n") != 2 || !strings.Contains(r.out, "evt_1") {
		t.Errorf("events with a value at a path that mention her:\n%s", r.out)
	}
	b.run(t, "events", "list", "--body", "customer=cus_1ab", "--mentions", address).want(t, 0, "No events.", "")
	b.want(t, "events list --body customer", 2, "", "write a path and a value")
	b.want(t, "events list --body customers[x]=1", 2, "", "write it like $.customer.email")
	b.want(t, "events list --mentions ada", 2, "", "too short to be distinguished from other data")
	b.want(t, "redact --mentions 1999 --reason r", 2, "", "too short")
	b.want(t, "redact --mentions 1234567 --reason r", 2, "", "may also be an amount")
	b.want(t, "redact --mentions ' , ' --reason r", 2, "", "give 1 to 50 values")
	b.run(t, "redact", "--mentions", address, "--reason", "Ada <"+strings.ToUpper(address)+"> asked", "--yes").want(t,
		2, "", "name a ticket instead")
	b.want(t, "redact --mentions cus_1a --reason 'cus_1a asked'", 2, "1 event of 0 objects",
		"no terminal to ask for confirmation")
	b.run(t, "redact", "--source", "stripe", "--path", "$.email", "--value", address, "--reason", address,
		"--yes").want(t, 2, "", "name a ticket instead")
	b.want(t, "redact --mentions cus_1a --preview", 0,
		"Also names another person, and stays:\n  customer: 1 event, such as cus_1\n", "")
	const other = "bob@example.org"
	b.db.Exec(t, `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
		VALUES ($1, 'r', '', '', now(), '{}', '`+other+`', 1)`, b.known.Number["stripe"])
	b.run(t, "redact", "--mentions", other, "--preview").want(t, 0,
		"No events are selected.\nCleared too: 1 rejection.\nNot cleared: ", "")
	both := execute(t.Context(), "cus_1a\n"+address+"\n", "--dir", b.dir, "redact", "--mentions", "-", "--reason",
		"ticket 19", "--yes")
	both.want(t, 0,
		"2 redacted, 0 objects cleared, 1 event not cleared, because they name another person too, 4 searched", "")
	b.want(t, "runs show 1", 0, "mentions cus_1a,"+redaction.AuditName(address), "")
	b.want(t, "audit list", 0, "mentions=cus_1a%2Csha256", "")
	b.db.WantRows(t, 0, `runs r WHERE r::text ILIKE '%' || $1 || '%'`, address)
	b.db.WantRows(t, 0, `audit a WHERE a::text ILIKE '%' || $1 || '%'`, address)
	b.want(t, "redact --mentions cus_1a --include invoice.paid,unknown,thing --preview", 0, "", "")
	b.run(t, "redact", "--source", "stripe", "--object-type", "customer", "--object", "cus_1a", "--account", "",
		"--reason", "r", "--yes").want(t, 0, "Mentions the object, and stays:\n", "")
	b.want(t, "runs show 2", 0, "object cus_1a", "")
}

// insertRejection stores a rejected delivery that is signed with a secret, and returns its number.
func (b *testBundle) insertRejection(t *testing.T, n int, secret string) (id int64) {
	t.Helper()
	p := stripe.Stripe{}
	sample, err := p.MakeVariant(p.Samples()[0], n, time.Now(), true)
	testkit.Must(t, err)
	d, err := p.Sign(&provider.Source{Name: "stripe", Secrets: []provider.Secret{{Name: "x", Value: []byte(secret)}}},
		sample, time.Now().Add(-48*time.Hour))
	testkit.Must(t, err)
	headers, err := json.Marshal(map[string]string{"Stripe-Signature": d.Header.Get("Stripe-Signature")})
	testkit.Must(t, err)
	testkit.Must(t, b.db.Pool.QueryRow(t.Context(), `INSERT INTO rejections (source, reason, detail, remote,
		received_at, headers, body, bytes)
  VALUES ($1, 'wrong_signature', 'none of 1 secrets', '127.0.0.1', now() - interval '48 h', $2, $3, length($3::bytea))
  	RETURNING id`,
		b.known.Number["stripe"], headers, d.Body).Scan(&id))
	return id
}

// Deliveries that were rejected for a wrong secret are verified again and stored once; the others
// stay with a reason.
func TestRejections_verifyAndReprocess_storeValidDeliveries(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.writeStripe(t)
	good, bad, more := b.insertRejection(t, 1, config.DemoStripeSecret), b.insertRejection(t, 2, "whsec_forged"),
		b.insertRejection(t, 3, config.DemoStripeSecret)
	b.want(t, "rejections verify", 0, "still rejected: wrong_signature", "")
	b.run(t, "rejections", "verify", fmt.Sprint(good)).want(t, 0, `verified by secret "demo" (stripe-v1)`, "")
	b.want(t, "rejections verify 99", 3, "", "rejection 99: not found")
	b.want(t, "rejections verify 1 --source stripe", 2, "", "either ids of rejections or flags")
	b.want(t, "rejections verify --source shop -o json", 0, "[]", "")
	b.run(t, "rejections", "reprocess", fmt.Sprint(good)).want(t, 2, "", "give a reason with --reason")
	r := b.run(t, "rejections", "reprocess", fmt.Sprint(good), "--reason", "rotated")
	if r.status != 2 {
		t.Errorf("%+v", r)
	}
	if r := b.run(t, "rejections", "reprocess", fmt.Sprint(bad), "--reason", "rotated", "--yes"); r.status != 1 {
		t.Errorf("%+v", r)
	}
	b.want(t, "events list", 0, "No events.", "")
	b.run(t, "rejections", "reprocess", fmt.Sprint(good), "--reason", "rotated", "--yes").want(t, 0,
		fmt.Sprintf("%d          stripe", good), "1 of 1 rejection valid now, with 1 event\n")
	b.want(t, "rejections reprocess --source stripe --reason rotated --yes -o json", 0, fmt.Sprintf(`"id":%d,`, more),
		"1 of 2 rejections valid now, with 1 event\n")
	b.want(t, "rejections list", 0, fmt.Sprintf("\n%d  ", bad), "")
	b.db.WantRows(t, 2, `events WHERE verification->>'reprocessed_reason' = 'rotated'
		AND received_at < now() - interval '47 h'`)
}

// A rejection that is deleted between verification and storing is skipped, unless it was the only
// one requested.
func TestRejections_deletedMeanwhile_areSkipped(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.writeStripe(t)
	gone, good := b.insertRejection(t, 1, config.DemoStripeSecret), b.insertRejection(t, 2, config.DemoStripeSecret)
	if _, err := b.db.Pool.Exec(t.Context(), fmt.Sprintf(`CREATE RULE gone AS ON DELETE TO rejections
		WHERE OLD.id = %d DO INSTEAD NOTHING`, gone)); err != nil { // finds none to delete
		t.Fatal(err)
	}
	if r := b.run(t, "rejections", "reprocess", fmt.Sprint(gone), "--reason", "rotated", "--yes"); r.status != 3 ||
		!strings.Contains(r.errs, "redacted, reprocessed or deleted meanwhile") {
		t.Errorf("%+v", r)
	}
	b.run(t, "rejections", "reprocess", fmt.Sprint(gone), fmt.Sprint(good), "--reason", "rotated", "--yes").want(t, 0,
		fmt.Sprintf("%d          stripe", good), "2 of 2 rejections valid now")
	b.db.WantRows(t, 1, `events WHERE verification->>'rejection' = $1::text`, fmt.Sprint(good))
}
