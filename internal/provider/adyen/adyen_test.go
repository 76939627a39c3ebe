package adyen_test

import (
	"bytes"
	"net/http"
	"runtime"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/adyen"
	"github.com/postern-gateway/postern/internal/provider/providertest"
)

const (
	item   = "notificationItems.0.NotificationRequestItem."
	newKey = "44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056"
	vector = `{"live": "false", "notificationItems": [{"NotificationRequestItem": {
		"additionalData": {"hmacSignature": "coqCmt/IZ4E3CzPvMY8zTjQVL5hYJUiBRg8UU+iCWo0="},
		"amount": {"currency": "EUR", "value": 1130}, "pspReference": "7914073381342284", "eventCode": "AUTHORISATION",
		"eventDate": "2019-05-06T17:15:34.121+02:00", "merchantAccountCode": "TestMerchant",
		"merchantReference": "TestPayment-1407325143704", "success": "true"}}]}`
)

func suite() providertest.Suite {
	return providertest.Suite{
		Provider: adyen.New(),
		Source: providertest.Source("adyen", newKey,
			"009E9E92268087AAD241638D3325201AFA8AAE6E3DCD369B6D32E87129FFAB10"),
		InBody:         item + "additionalData.hmacSignature",
		BodyNotCovered: "Adyen signs only reference, amount, merchant, event code and success",
		Covered: []string{item + "pspReference", item + "merchantAccountCode", item + "merchantReference",
			item + "amount.value", item + "amount.currency", item + "eventCode", item + "success"},
		Types:          map[string][]string{"REFUND": {"REFUND", "REFUND", "CANCELLATION"}},
		ObjectPerEvent: true,
		BadSecrets:     []string{"no hexadecimal"},
		Reply:          &provider.Reply{ContentType: "text/plain", Body: []byte("[accepted]")},
		NoKey: providertest.SignAgain(adyen.New(), func(body []byte) []byte {
			return bytes.Replace(body, []byte(`"success"`), []byte(`"other"`), 1)
		}),
		// printf
		// '7914073381342284::TestMerchant:TestPayment-1407325143704:1130:EUR:AUTHORISATION:true' |
		// openssl dgst -sha256 -mac HMAC -macopt
		// hexkey:44782DEF547AAA06C910C43932B1EB0C71FC68D9D0C057550C48EC2ACF6BA056 -binary | base64
		Vectors: []providertest.Vector{{Secret: newKey, Body: vector}},
	}
}

func TestProvider_conforms(t *testing.T) {
	t.Parallel()
	providertest.Conform(t, suite())
}

// Every notification of a delivery must be signed: one forged notification rejects all.
func TestVerify_oneForgedNotification_rejectsDelivery(t *testing.T) {
	t.Parallel()
	s := suite()
	d := s.Deliver(t, s.Source, s.Provider.Samples()[2])
	if _, err := s.Provider.Verify(s.Source, d); err != nil {
		t.Fatal(err)
	}
	for _, change := range [][2]string{{`"value":9900`, `"value":9901`}, {`"value":250`, `"value":251`},
		{`"value":1400`, `"value":1401`}} {
		forged := *d
		forged.Body = bytes.Replace(d.Body, []byte(change[0]), []byte(change[1]), 1)
		if bytes.Equal(forged.Body, d.Body) {
			t.Fatalf("%s is not in %s", change[0], d.Body)
		}
		s.CheckRejected(t, s.Source, &forged, provider.WrongSignature)
	}
}

// hostile are unsigned bodies of nearly the maximum size.
func hostile() map[string]string {
	const size = 250 << 10
	signed := `{"NotificationRequestItem":{"additionalData":{` +
		`"hmacSignature":"coqCmt/IZ4E3CzPvMY8zTjQVL5hYJUiBRg8UU+iCWo0="},"pspReference":"`
	list := func(items string) string { return `{"notificationItems":[` + items + `]}` }
	fill := func(unit, last string) string { return strings.Repeat(unit, size/len(unit)) + last }
	return map[string]string{
		"numbers":      list(fill("1,", "1")),
		"empty items":  list(fill(`{"NotificationRequestItem":{}},`, `{}`)),
		"many members": list(`{"NotificationRequestItem":{` + fill(`"a":1,`, `"b":2`) + `}}`),
		"long text":    list(signed + strings.Repeat("a", size-len(signed)) + `"}}`),
		"many signed":  list(fill(signed+`"}},`, signed+`"}}`)),
		"deep":         list(strings.Repeat(`[`, 5000) + strings.Repeat(`]`, 5000)),
		"other":        `{"a":[` + fill("1,", "1") + `]}`,
	}
}

// Verifying an unsigned body uses at most a few times its size. The test is not parallel, because
// it counts the allocations of the whole process.
func TestVerify_hostileBody_usesLittleMemory(t *testing.T) {
	s := suite()
	p := adyen.New()
	for name, body := range hostile() {
		d := &provider.Delivery{Header: http.Header{}, Body: []byte(body)}
		var before, after runtime.MemStats
		const times = 3
		runtime.ReadMemStats(&before)
		for range times {
			if _, err := p.Verify(s.Source, d); err == nil {
				t.Errorf("%s: the delivery is accepted", name)
			}
		}
		runtime.ReadMemStats(&after)
		if cost := (after.TotalAlloc - before.TotalAlloc) / times; cost > 2_000_000 {
			t.Errorf("%s: to verify a body of %d bytes, %d bytes were allocated", name, len(body), cost)
		}
	}
}

// Verification stops after the first notification with a wrong signature, and no delivery has a
// thousand of them.
func TestVerify_firstWrongSignature_stops(t *testing.T) {
	t.Parallel()
	s := suite()
	d := s.Deliver(t, s.Source, s.Provider.Samples()[0])
	start, end := bytes.IndexByte(d.Body, '[')+1, bytes.LastIndexByte(d.Body, ']')
	one := bytes.TrimSpace(d.Body[start:end])
	with := func(n int, more string) *provider.Delivery {
		items := bytes.Repeat(append(bytes.Clone(one), ','), n)
		out := *d
		out.Body = []byte(`{"notificationItems":[` + string(items) + more + `]}`)
		return &out
	}
	if _, err := s.Provider.Verify(s.Source, with(2, string(one))); err != nil {
		t.Errorf("three signed notifications: %v", err)
	}
	s.CheckRejected(t, s.Source, with(2, `{}`), provider.MissingSignature)
	s.CheckRejected(t, s.Source, with(0, ``), provider.MissingSignature)
	s.CheckRejected(t, s.Source, with(2, `[1`), provider.MissingSignature)
	twice := with(0, string(one))
	twice.Body = append([]byte(`{"notificationItems":[{"NotificationRequestItem":{}}],`), twice.Body[1:]...)
	if _, err := s.Provider.Verify(s.Source, twice); err != nil { // both parsers use the last of duplicate members
		t.Errorf("two lists, the last signed: %v", err)
	}
}

func FuzzIdentify(f *testing.F) { providertest.Fuzz(f, suite()) }
