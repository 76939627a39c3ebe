package console

import (
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/testkit"
)

// applied adds an event of customer cus_1 that occurred at a minute, with its outcome.
func (e *env) applied(t *testing.T, n, minute int, status string) int64 {
	t.Helper()
	key, occurred := fmt.Sprintf("evt_%d", n), time.Now().Add(time.Duration(minute-10)*time.Minute)
	body := fmt.Sprintf(`{"id": %q, "object": "event", "created": %d, "type": "customer.updated",
		"data": {"object": {"id": "cus_1", "object": "customer", "created": 1, "name": "N%d"}}}`, key,
		occurred.Unix(), n)
	number := e.add(t, thing{key: key, eventType: "customer.updated", objectType: "customer", objectID: "cus_1",
		body: body, occurred: occurred, state: fmt.Sprintf(`{"name": "N%d"}`, n), status: status, reason: "because"})
	e.db.Exec(t, `UPDATE outcomes SET at = at + $2 * interval '1 minute', version = jsonb_build_object('final', false,
		'at', $3::bigint, 'seen', 0, 'rank', 1) WHERE event_id = $1`, number, n, occurred.UnixMicro())
	return number
}

// The page of an object has its events, with what each changed. Two of them can be compared, and a
// time can be chosen.
func TestObject_history_isComparedByEventAndTime(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	b := e.browser()
	const object = Prefix + "objects/stripe/customer/cus_1"
	first := e.applied(t, 1, 5, "applied")
	p := b.get(t, object)
	if p.want(t, "one event", http.StatusOK, "first state"); strings.Contains(p.body, "<figure") {
		t.Errorf("one event has a picture: %s", p.text())
	}
	late := e.applied(t, 2, 1, "stale")
	last := e.applied(t, 3, 9, "applied")
	p = b.get(t, object)
	p.want(t, "three events", http.StatusOK, "Order of occurrence", "~1", "Compare two events", "State at a time")
	// The late event is the first above and the second below.
	if want := fmt.Sprintf(`<a href="%sevents/%d" class="mark quiet"><title>customer.updated, stale: occurred`, Prefix,
		late); !strings.Contains(p.body, want) || !strings.Contains(p.body, `<line x1="14" y1="30" x2="78" y2="82"/>`) {
		t.Errorf("without %s: %s", want, p.body)
	}
	at := func(from time.Duration) string {
		return url.QueryEscape(time.Now().Add(from).UTC().Format(time.RFC3339))
	}
	from, to := fmt.Sprint(first), fmt.Sprint(last)
	for path, texts := range map[string][]string{
		"/diff?from=" + from + "&to=" + to:                {`state.name"N1""N3"`, "the other direction"},
		"/diff?to=" + to:                                  {`state.name"N1""N3"`},
		"/diff?to=" + from:                                {"no event was applied before", "Nothing before"},
		"/diff?from=" + fmt.Sprint(late) + "&to=" + to:    {`"N2""N3"`, "stale"},
		"/at?time=" + at(150*time.Second):                 {"name N1"},
		"/at?time=" + at(5*time.Minute):                   {"name N3", "differences to the present object"},
		"/at?order=occurrence&time=" + at(-8*time.Minute): {"name N2", "arrived later", "as the mirror had it"},
		"/at?order=occurrence&time=" + at(-4*time.Minute): {"name N1", "as the provider had it"},
	} {
		b.get(t, object+path).want(t, path, http.StatusOK, texts...)
	}
	testkit.Equal(t, "an empty filter leads to", object+"/diff?from="+from,
		b.get(t, object+"/diff?filter=1&from="+from+"&to=").header.Get("Location"))
	for path, want := range map[string]string{
		"/diff?to=1":  "is not one of object customer cus_1",
		"/at":         "give time",
		"/at?time=3d": "no event was applied to it until",
		"/at?x=1":     "x",
	} {
		if p := b.get(t, object+path); p.status < 400 || p.status > 404 || !strings.Contains(p.text(), want) {
			t.Errorf("%s: %d %.2000s", path, p.status, p.text())
		}
	}
}

// A process without sources says why it shows no states, and still shows the events.
func TestObject_historyWithoutSources_saysWhy(t *testing.T) {
	t.Parallel()
	e := newEnv(t, func(o *Options) { o.Endpoints = nil })
	e.applied(t, 1, 5, "applied")
	e.applied(t, 2, 6, "applied")
	e.browser().wantPages(t, map[string][]string{"objects/stripe/customer/cus_1": {
		"States are not shown: this process has no configuration", "not configured", "Applied"}})
}

// reject stores a rejected delivery of the source stripe that is signed with a secret.
func (e *env) reject(t *testing.T, n int, secret string) {
	t.Helper()
	p, at := stripe.Stripe{}, time.Now().Add(-time.Hour)
	sample, err := p.MakeVariant(p.Samples()[0], n, at, true)
	testkit.Must(t, err)
	d, err := p.Sign(&provider.Source{Name: "stripe", Secrets: []provider.Secret{{Name: "first",
		Value: []byte(secret)}}}, sample, at)
	testkit.Must(t, err)
	e.db.Exec(t, `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
		VALUES ($1, 'wrong_signature', 'none of 1 secrets', '203.0.113.7', $2,
			jsonb_build_object('Stripe-Signature', $3::text), $4, length($4::bytea))`,
		e.source, at, d.Header.Get("Stripe-Signature"), d.Body)
}

// Rejections are grouped with their probable cause. A form stores exactly the deliveries that its
// page shows as valid.
func TestRejections_verifyAgain_reprocessesTheValidOnes(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	b := e.browser()
	for n := range 3 {
		e.reject(t, n, secretCanary)
	}
	e.reject(t, 3, "whsec_forged")
	b.wantPages(t, map[string][]string{
		"rejections": {"By source and reason", "203.0.113.7 (4)", "every delivery of stripe is rejected",
			"verify again"},
		"rejections/1":            {"The delivery is valid now"},
		"rejections/4":            {"not valid with the current secrets either"},
		"rejections/verify?ids=4": {"No delivery is valid now."},
	})
	for _, path := range []string{"rejections/1", "rejections/4", "rejections/verify?ids=4"} {
		if p := b.get(t, Prefix+path); strings.Contains(p.body, secretCanary) {
			t.Errorf("%s shows the secret: %s", path, p.text())
		}
	}
	p := b.get(t, Prefix+"rejections/verify?source=stripe&rejection_reason=wrong_signature")
	p.want(t, "verify again", http.StatusOK,
		"Valid now: 3 of 4 deliveries, with 3 events. Still rejected: 1 wrong signature.")
	e.reject(t, 5, secretCanary) // after the page was read
	b.submit(t, p, "Reprocess 3 deliveries").want(t, "without a reason", http.StatusBadRequest, "give a reason")
	reprocess := func(ids, label string) *response {
		t.Helper()
		to := b.submit(t, b.get(t, Prefix+"rejections/verify?ids="+ids), label, "p.reason", "rotated")
		to.want(t, label, http.StatusSeeOther)
		return to
	}
	testkit.Equal(t, "address after three", Prefix+"audit?action=rejections+reprocess",
		reprocess("1,2,3,4", "Reprocess 3 deliveries").header.Get("Location"))
	testkit.Equal(t, "rejections left", []string{"4", "5"},
		e.db.QueryStrings(t, `SELECT id::text FROM rejections ORDER BY id`))
	address := reprocess("5", "Reprocess 1 delivery").header.Get("Location")
	if p := b.get(t, address); len(p.all("tr")) != 2 {
		t.Errorf("%s leads to %s", address, p.text())
	}
	b.get(t, Prefix+"rejections/verify?ids=5").want(t, "stored", http.StatusNotFound)
}

// Failures are grouped by reason, and each group leads to its retry.
func TestFailures_groups_leadToTheRetry(t *testing.T) {
	t.Parallel()
	e := newEnv(t)
	b := e.browser()
	b.wantPages(t, map[string][]string{"failures": {"No event has failed or is dead."}})
	for i := range 3 {
		e.add(t, thing{key: fmt.Sprint("evt_", i), eventType: "invoice.paid", objectType: "invoice", objectID: "in_1",
			body: "{}", status: "dead", reason: fmt.Sprintf("the customer cus_%d00%d does not exist", i, i)})
	}
	e.add(t, thing{key: "evt_9", body: "{}", status: "failed", reason: "PostgreSQL is unavailable"})
	p := b.get(t, Prefix+"failures?type=invoice.*")
	if p.want(t, "failures", http.StatusOK, "the customer cus_… does not exist"); strings.Contains(p.text(),
		"unavailable") {
		t.Errorf("another type is listed: %s", p.text())
	}
	want := Prefix + "runs/new/retry?failure_pattern=the+customer+cus_%E2%80%A6+does+not+exist&status=dead" +
		"&type=invoice.%2A"
	if links := strings.Join(p.links(), "\n"); !strings.Contains(links, want) {
		t.Errorf("without %s: %s", want, links)
	}
	b.get(t, want).want(t, "retry", http.StatusOK, "3")
}
