package admin_test

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/stripe"
	"github.com/postern-gateway/postern/internal/testkit"
)

// testSecret is the secret of the source stripe.
const testSecret = "whsec_secret_of_the_tests"

func testSource(secret string) *provider.Source {
	return &provider.Source{Name: "stripe", Secrets: []provider.Secret{{Name: "second", Value: []byte(secret)}}}
}

// reprocessor verifies rejections with testSecret.
func (b *testBundle) reprocessor(t *testing.T) *operations.Reprocessor {
	return &operations.Reprocessor{Pool: b.role(t, "gateway"), Endpoints: func() []config.Endpoint {
		return []config.Endpoint{{Provider: stripe.Stripe{}, Source: testSource(testSecret)}}
	}}
}

// reject stores a rejected delivery that is signed with a secret. n distinguishes its event.
func (b *testBundle) reject(t *testing.T, n int, secret string) {
	t.Helper()
	p, at := stripe.Stripe{}, time.Now().Add(-48*time.Hour)
	sample, err := p.MakeVariant(p.Samples()[0], n, at, true)
	testkit.Must(t, err)
	d, err := p.Sign(testSource(secret), sample, at)
	testkit.Must(t, err)
	headers, err := json.Marshal(map[string]string{"Stripe-Signature": d.Header.Get("Stripe-Signature")})
	testkit.Must(t, err)
	b.db.Exec(t, `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
		VALUES ($1, 'wrong_signature', 'none of 1 secrets', '127.0.0.1', $2, $3, $4, length($4::bytea))`,
		b.known.Number["stripe"], at, headers, d.Body)
}

// Verified deliveries are stored once, also if two requests ask for it, and the others stay with a
// reason. A process that is no gateway says which process can do it.
func TestRejections_reprocess_storesVerifiedOnce(t *testing.T) {
	t.Parallel()
	b := setup(t)
	for n := range 3 {
		b.reject(t, n, testSecret)
	}
	b.reject(t, 3, "whsec_forged")
	b.reject(t, 4, testSecret)
	b.db.Exec(t, `UPDATE rejections SET bytes = bytes + 1 WHERE id = 5;
		INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
		VALUES ((SELECT number FROM sources WHERE name = 'shop'), 'missing_signature', '', '', now(), '{}', 'x', 1)`)
	summary := func(body map[string]any) string {
		var all []string
		for _, item := range body["items"].([]any) {
			i := item.(map[string]any)
			all = append(all, fmt.Sprint(i["id"], " ", i["secret"], " ", i["reason_now"], " ", len(i["events"].([]any)),
				" ", len(i["stored"].([]any))))
		}
		return fmt.Sprintf("%s; %v verified, %v events, %v, %v", strings.Join(all, ", "), body["verified"],
			body["events"], body["remaining"], body["next_cursor"])
	}
	const stay = "4 <nil> wrong_signature 0 0, 5 <nil> truncated 0 0, 6 <nil> not_configured 0 0"
	for _, c := range []struct{ path, body, want string }{
		{"verify", `{}`, "1 second <nil> 1 0, 2 second <nil> 1 0, 3 second <nil> 1 0, " + stay +
			"; 3 verified, 3 events, map[not_configured:1 truncated:1 wrong_signature:1], <nil>"},
		{"verify", `{"source": "shop", "since": "1h"}`, "6 <nil> not_configured 0 0; 0 verified, 0 events, " +
			"map[not_configured:1], <nil>"},
		{"verify", `{"ids": ""}`, "; 0 verified, 0 events, map[], <nil>"},
		{"reprocess", `{"ids": "2,4,77", "reason": "rotated"}`, "2 second <nil> 1 1, 4 <nil> wrong_signature 0 0; " +
			"1 verified, 1 events, map[wrong_signature:1], <nil>"},
		{"reprocess", `{"rejection_reason": "wrong_signature", "reason": "rotated"}`, "1 second <nil> 1 1, " +
			"3 second <nil> 1 1, 4 <nil> wrong_signature 0 0, 5 <nil> truncated 0 0; 2 verified, 2 events, " +
			"map[truncated:1 wrong_signature:1], <nil>"},
		{"reprocess", `{"reason": "rotated"}`, stay + "; 0 verified, 0 events, map[not_configured:1 truncated:1 " +
			"wrong_signature:1], <nil>"},
	} {
		status, body := b.post(t, "/rejections/"+c.path, c.body)
		if status != 200 {
			t.Fatalf("%s: %d %v", c.body, status, body)
		}
		testkit.Equal(t, c.path+" "+c.body, c.want, summary(body))
	}
	if n := b.db.QueryStrings(t, `SELECT verification->>'reprocessed_reason' || ' ' || (verification->>'reprocessed_by')
		FROM events`); len(n) != 3 || !strings.HasPrefix(n[0], "rotated admin API") {
		t.Errorf("%q", n)
	}
	many := strings.TrimSuffix(strings.Repeat("1,", 1000), ",")
	var tooMany strings.Builder
	for i := range 1000 {
		fmt.Fprint(&tooMany, " ", i+2)
	}
	b.wantResponses(t, [][2]string{
		{`POST /rejections/reprocess {"ids": "1"}`, "400 give a reason"},
		{`POST /rejections/reprocess {"ids": "1", "source": "stripe", "reason": "x"}`,
			"400 either ids of rejections or a filter"},
		{`POST /rejections/verify {"ids": "` + many + `,4"}`, "200"},
		{`POST /rejections/verify {"ids": "1` + tooMany.String() + `"}`, "400 ids are given, and 1000 are allowed"},
		{`POST /rejections/verify {"ids": "99"}`, "404 rejection 99"},
		{`POST /rejections/verify {"cursor": "x"}`, "400 next_cursor"},
		{`POST /rejections/verify {"rejection_reason": "wrong"}`, "400 use one of missing_signature"},
		{`POST /rejections/verify {"source": "none"}`, "400 known sources"},
		{`POST /rejections/verify {"reason": "wrong_signature"}`, "400 rejection_reason"},
		{`POST /rejections/reprocess {"reason": "x", "ids": "one"}`, "400 not an id"},
	})
	b.handler = admin.New(admin.Options{Pool: b.role(t, "operator"), Logger: testkit.Logger(t)})
	b.wantResponses(t, [][2]string{
		{"POST /rejections/verify {}", `421 {"type": "urn:postern:problem:other-process"}`},
		{"POST /rejections/verify {}", "421 postern serve"},
		{`POST /rejections/reprocess {"reason": "x"}`, `421 {"type": "urn:postern:problem:other-process"}`},
		{`POST /rejections/reprocess {"reason": "x"}`, "421 postern serve"},
	})
}

// A process with the configuration of the source explains the verification; others leave it out.
func TestRejection_configuredSource_isExplained(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.reject(t, 1, testSecret)
	b.reject(t, 2, "whsec_forged")
	b.reject(t, 3, testSecret)
	b.db.Exec(t, `UPDATE rejections SET bytes = bytes + 1 WHERE id = 3`)
	if status, body := b.get(t, "/rejections/1"); status != 200 || body["verification"] != nil {
		t.Errorf("without sources: %d %v", status, body)
	}
	b.handler = admin.New(admin.Options{Pool: b.role(t, "operator"), Logger: testkit.Logger(t),
		Endpoints: b.reprocessor(t).Endpoints})
	for id, texts := range map[string][]string{
		"1": {"verified:true", "{timestamp}.{body} is signed", "SHA-256 ", "secret second matches a signature",
			"before receipt; 5m0s are allowed", "event_id:evt_"},
		"2": {"verified:false", "{timestamp}.{body} is signed", "secret second does not match", "wrong_signature"},
		"3": {"verification:<nil>"},
	} {
		status, body := b.get(t, "/rejections/"+id)
		got := fmt.Sprint("verification:", body["verification"])
		for _, text := range texts {
			if status != 200 || !strings.Contains(got, text) {
				t.Errorf("%s: %d %s, want %q", id, status, got, text)
			}
		}
		if strings.Contains(fmt.Sprint(body), testSecret) {
			t.Errorf("%s contains the secret", id)
		}
	}
}

// A request works on 1,000 deliveries, and the next one continues.
func TestRejections_many_continueWithCursor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.db.Exec(t, `INSERT INTO rejections (source, reason, detail, remote, received_at, headers, body, bytes)
		SELECT $1, 'wrong_signature', '', '', now(), '{}', 'x', 1 FROM generate_series(1, 1001)`,
		b.known.Number["stripe"])
	b.reject(t, 1, testSecret)
	body := b.wantResponses(t, [][2]string{{`POST /rejections/reprocess {"source": "stripe", "reason": "x"}`,
		`200 {"verified": 0, "next_cursor": "…"}`}})
	if n := len(body["items"].([]any)); n != 1000 {
		t.Errorf("%d items", n)
	}
	next := fmt.Sprintf(`{"source": "stripe", "reason": "x", "cursor": %q}`, body["next_cursor"])
	b.wantResponses(t, [][2]string{{"POST /rejections/reprocess " + next,
		`200 {"items": [{}, {}], "verified": 1, "next_cursor": null}`}})
}
