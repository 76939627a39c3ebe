package signature_test

import (
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/signature"
)

// signedRow returns a row's delivery, signed and received at signedAt, and a function that verifies
// it.
func signedRow(t *testing.T, name string) (r signature.Request, verifies func(signature.Request) signature.Problem) {
	t.Helper()
	row := catalogue()[name]
	row.Name = name
	if row.body == "" {
		row.body = jsonBody
	}
	r = row.delivery(row.body)
	r.ReceivedAt = time.Unix(signedAt, 0)
	must(t, row.Sign([]byte(row.key()), &r, r.ReceivedAt))
	return r, func(r signature.Request) signature.Problem {
		t.Helper()
		_, err := verify(t, &row.Scheme, [][]byte{[]byte(row.key())}, r, 0)
		return problem(err)
	}
}

func with(r signature.Request, name string, values ...string) signature.Request {
	r.Header = r.Header.Clone()
	delete(r.Header, name)
	if len(values) > 0 {
		r.Header[name] = values
	}
	return r
}

// Valid and invalid headers.
func TestVerify_layouts(t *testing.T) {
	t.Parallel()
	replace := func(old, by string) func(string) string {
		return func(v string) string { return strings.Replace(v, old, by, 1) }
	}
	to := func(value string) func(string) string { return func(string) string { return value } }
	before := func(text string) func(string) string { return func(v string) string { return text + v } }
	after := func(text string) func(string) string { return func(v string) string { return v + text } }
	sum, zeros := strings.Repeat("ab", 32), strings.Repeat("00", 32)
	tests := []struct {
		row, header string
		change      func(value string) string
		want        signature.Problem
	}{
		{"GitHub", "X-Hub-Signature-256", replace("sha256=", ""), signature.Malformed},
		{"GitHub", "X-Hub-Signature-256", replace("sha256=", "sha1="), signature.Malformed},
		{"GitHub", "X-Hub-Signature-256", replace("sha256=", "SHA256="), signature.Malformed},
		{"GitHub", "X-Hub-Signature-256", strings.ToUpper, signature.Malformed}, // the prefix too
		{"WorkOS", "Workos-Signature", replace(",", ", "), 0},
		{"Stripe", "Stripe-Signature", replace(",", ", "), signature.Malformed},
		{"Cronofy", "Cronofy-Hmac-Sha256", func(v string) string { return "AAAA," + v + ",x" }, 0},
		{"Cronofy", "Cronofy-Hmac-Sha256", after(","), 0},
		{"CircleCI", "Circleci-Signature", replace("v1=", "v2="), signature.Malformed},
		{"CircleCI", "Circleci-Signature", before("v2=00,"), 0},
		{"Persona", "Persona-Signature", before("t=1700000000,v1=" + sum + " "), 0},
		{"Persona", "Persona-Signature", after(" t=1,v1=" + sum), 0},
		{"Persona", "Persona-Signature", after(" t=x,v1=" + sum), 0},
		{"Persona", "Persona-Signature", func(v string) string {
			return strings.Replace(v, "t=1700000000", "t=1", 1) + " t=1700000000,v1=" + sum
		}, signature.Wrong},
		{"Persona", "Persona-Signature", replace(",", " "), signature.Malformed},
		{"Persona", "Persona-Signature", before(strings.Repeat("t=1,v1=00 ", 7)), 0},
		{"Persona", "Persona-Signature", before(strings.Repeat("t=1,v1=00 ", 8)), signature.Malformed},
		{"Persona", "Persona-Signature", before(strings.Repeat("x ", 8)), signature.Malformed},
		{"Recurly", "Recurly-Signature", after("," + zeros), 0},
		{"Recurly", "Recurly-Signature", replace(",", ","+zeros+","), 0},
		{"Recurly", "Recurly-Signature", to("1700000000"), signature.Malformed},
		{"Recurly", "Recurly-Signature", func(v string) string { _, sum, _ := strings.Cut(v, ","); return sum },
			signature.Malformed},
		{"Recurly", "Recurly-Signature", func(v string) string {
			return "1700000000000" + strings.TrimPrefix(v, "1700000000")
		}, signature.Wrong},
		{"Standard Webhooks", "Webhook-Signature", func(v string) string {
			return "v1,AAAA v1a,BBBB " + v + " v2,CCCC"
		}, 0},
		{"Standard Webhooks", "Webhook-Signature", replace("v1,", "v1a,"), signature.Malformed},
		{"Standard Webhooks v1a", "Webhook-Signature", before("v1,AAAA " + strings.Repeat("v1a,AAAA ", 7)), 0},
		{"Standard Webhooks v1a", "Webhook-Signature", before(strings.Repeat("v1a,AAAA ", 8)), signature.Malformed},
		{"Sanity", "Sanity-Webhook-Signature", after("="), 0},
		{"Slack", "X-Slack-Request-Timestamp", to("1700000001"), signature.Wrong},
		{"Slack", "X-Slack-Request-Timestamp",
			func(string) string { return "\x00\x1b[31m" + strings.Repeat("x", 1000) }, signature.Malformed},
		{"Twitch", "Twitch-Eventsub-Message-Timestamp", to("2023-11-14 22:13:20"), signature.Malformed},
		{"HubSpot v2", "X-Hubspot-Signature-Version", to("v1"), signature.Missing},
		{"HubSpot v1", "X-Hubspot-Signature-Version", to("v2"), signature.Missing},
		{"GitLab token", "X-Gitlab-Token", after(" "), signature.Wrong},
		{"Basic", "Authorization", replace("Basic", "Bearer"), signature.Malformed},
		{"SendGrid", "X-Twilio-Email-Event-Webhook-Signature", to("AAAA"), signature.Wrong},
		{"Discord", "X-Signature-Ed25519", func(v string) string { return v[2:] }, signature.Malformed},
		{"Discord", "X-Signature-Ed25519", func(v string) string { return strings.Repeat("00", 64) }, signature.Wrong},
	}
	for i, test := range tests {
		r, verifies := signedRow(t, test.row)
		value := r.Header.Get(test.header)
		changed := test.change(value)
		if got := verifies(with(r, test.header, changed)); got != test.want {
			t.Errorf("%d: %s: %s: problem %d, want %d", i, test.row, changed, got, test.want)
		}
	}
}

// If signed data outside the body is missing or repeated, the signature is malformed, and the error
// names the data.
func TestVerify_missingSignedData_isMalformed(t *testing.T) {
	t.Parallel()
	for name, header := range map[string]string{"Standard Webhooks": "Webhook-Id",
		"Twitch": "Twitch-Eventsub-Message-Id", "Klaviyo": "Klaviyo-Timestamp",
		"Slack": "X-Slack-Request-Timestamp", "Discord": "X-Signature-Timestamp"} {
		row := catalogue()[name]
		r, verifies := signedRow(t, name)
		value := r.Header.Get(header)
		for what, spoiled := range map[string]signature.Request{"none": with(r, header), "empty": with(r, header, ""),
			"two": with(r, header, value, value)} {
			if got := verifies(spoiled); got != signature.Malformed {
				t.Errorf("%s: %s: problem %d", name, what, got)
			}
			if _, err := row.Verify([][]byte{[]byte(row.key())}, spoiled, 0); err == nil ||
				!strings.Contains(err.Error(), header) {
				t.Errorf("%s: %s: %v does not name the header", name, what, err)
			}
		}
	}
}

// DocuSign numbers its headers, one for each key. A deleted key leaves a gap.
func TestVerify_numberedHeaders(t *testing.T) {
	t.Parallel()
	r, verifies := signedRow(t, "DocuSign")
	const first = "X-Docusign-Signature-1"
	right := r.Header.Get(first)
	wrong := strings.Repeat("A", len(right)-1) + "="
	moved := func(name string) signature.Request { return with(with(r, first), name, right) }
	all := with(r, first)
	for n := range 99 {
		all.Header[strings.TrimSuffix(first, "1")+
			string([]rune{rune('0' + (n+1)/10), rune('0' + (n+1)%10)})] = []string{wrong}
	}
	wantResults(t, verifies, map[string]result{
		"first":              {r, 0},
		"second of two":      {with(with(r, first, wrong), "X-Docusign-Signature-2", right), 0},
		"after a gap":        {moved("X-Docusign-Signature-7"), 0},
		"last":               {moved("X-Docusign-Signature-100"), 0},
		"beyond the last":    {moved("X-Docusign-Signature-101"), signature.Missing},
		"zero":               {moved("X-Docusign-Signature-0"), signature.Missing},
		"leading zero":       {moved("X-Docusign-Signature-01"), signature.Missing},
		"no number":          {moved("X-Docusign-Signature-X"), signature.Missing},
		"none":               {with(r, first), signature.Missing},
		"twice one number":   {with(r, first, right, right), signature.Malformed},
		"unreadable and one": {with(r, "X-Docusign-Signature-2", "!"), 0},
		"only unreadable":    {with(r, first, "!"), signature.Malformed},
		"many wrong":         {all, signature.Wrong}, // 01 to 09 are not numbers; the others are
	})
}

// result is a request, with the expected result of its verification.
type result struct {
	r    signature.Request
	want signature.Problem
}

func wantResults(t *testing.T, verifies func(signature.Request) signature.Problem, results map[string]result) {
	t.Helper()
	for name, test := range results {
		if got := verifies(test.r); got != test.want {
			t.Errorf("%s: problem %d, want %d", name, got, test.want)
		}
	}
}

// Box signs with two keys, each in its own header; either is sufficient.
func TestVerify_repeatedHeader_isMalformed(t *testing.T) {
	t.Parallel()
	r, verifies := signedRow(t, "Box")
	const primary, secondary = "Box-Signature-Primary", "Box-Signature-Secondary"
	right := r.Header.Get(primary)
	wrong := strings.Repeat("A", len(right)-1) + "="
	wantResults(t, verifies, map[string]result{
		"secondary":      {with(with(r, primary), secondary, right), 0},
		"one of two":     {with(with(r, primary, wrong), secondary, right), 0},
		"other of two":   {with(r, secondary, wrong), 0},
		"both wrong":     {with(with(r, primary, wrong), secondary, wrong), signature.Wrong},
		"neither":        {with(r, primary), signature.Missing},
		"one is doubled": {with(r, secondary, wrong, wrong), signature.Malformed},
	})
}

// Mercado Pago omits absent values from its manifest. A signature without a part is not valid with
// that part.
func TestVerify_optionalGroup_absent(t *testing.T) {
	t.Parallel()
	row := catalogue()["Mercado Pago"]
	row.Name = "Mercado Pago"
	requests := map[string]signature.Request{}
	for name, url := range map[string]string{"with": "https://a.example/?data.id=AB-7",
		"without": "https://a.example/?x=1", "lower": "https://a.example/?data.id=ab-7"} {
		for _, id := range []string{"", "r-1"} {
			r := signature.Request{URL: url, Header: http.Header{}, Body: []byte("{}"),
				ReceivedAt: time.Unix(signedAt, 0)}
			if id != "" {
				r.Header.Set("X-Request-Id", id)
			}
			must(t, row.Sign([]byte("key"), &r, r.ReceivedAt))
			requests[name+id] = r
		}
	}
	for signed, r := range requests {
		for sent, other := range requests {
			got, _ := row.Verify([][]byte{[]byte("key")}, with(other, "X-Signature", r.Header.Get("X-Signature")), 0)
			same := strings.Replace(signed, "lower", "with", 1) == strings.Replace(sent, "lower", "with", 1)
			if got.SignedAt.IsZero() == same {
				t.Errorf("signed %s, sent %s: accepted %t", signed, sent, !same)
			}
		}
	}
}

// Several schemes may share a header: each is present if the header has an item of its own.
func TestHasSignature(t *testing.T) {
	t.Parallel()
	rows := catalogue()
	tests := []struct {
		row, header, value string
		want               bool
	}{
		{"Standard Webhooks", "Webhook-Signature", "v1,AAAA", true},
		{"Standard Webhooks", "Webhook-Signature", "v1a,AAAA", false},
		{"Standard Webhooks v1a", "Webhook-Signature", "v1,AAAA v1a,AAAA", true},
		{"Standard Webhooks v1a", "Webhook-Signature", "v1,AAAA", false},
		{"GitHub", "X-Hub-Signature-256", "sha1=00", false},
		{"GitHub", "X-Hub-Signature-256", "sha256=no hexadecimal", true},
		{"GitHub", "X-Hub-Signature-256", "", false},
		{"GitHub", "X-Hub-Signature-256", "sha256=" + strings.Repeat("0", 9000), true}, // Verify reports the error
		{"Basic", "Authorization", "Bearer x", false},
		{"Basic", "Authorization", "Basic x", true},
		{"HubSpot v1", "X-Hubspot-Signature", "00", false},   // no version
		{"Twilio JSON", "X-Twilio-Signature", "AAAA", false}, // no digest in the URL
		{"Twilio", "X-Twilio-Signature", "AAAA", true},
		{"Persona", "Persona-Signature", "x t=1,v1=00", true},
	}
	for _, test := range tests {
		row := rows[test.row]
		r := signature.Request{URL: publicURL, Header: http.Header{test.header: {test.value}}}
		if got := row.HasSignature(r); got != test.want {
			t.Errorf("%s: %.40q: %t", test.row, test.value, got)
		}
	}
}

// Braintree names the signer of each signature. Its newer libraries sign the payload with a newline
// after it.
func TestVerify_itemKeysNameSigner(t *testing.T) {
	t.Parallel()
	r, verifies := signedRow(t, "Braintree")
	row := catalogue()["Braintree"]
	newline := row.Scheme
	newline.Message, newline.Or = newline.Or[0], nil
	other := signature.Request{Body: []byte(row.body), ReceivedAt: r.ReceivedAt}
	must(t, newline.Sign([]byte(row.key()), &other, r.ReceivedAt))
	r.Body = []byte(strings.Replace(string(r.Body), "bt_signature=", "bt_signature=somebody%7C"+
		strings.Repeat("00", 20)+"%26me", 1))
	wantResults(t, verifies, map[string]result{"with a newline": {other, 0}, "second of two": {r, 0}})
}

// A signature of a URL with the body's digest verifies no other body, not even an empty form.
func TestVerify_bodyDigestInURL_isChecked(t *testing.T) {
	t.Parallel()
	r, verifies := signedRow(t, "Twilio JSON")
	form := catalogue()["Twilio"]
	r.Body = nil
	if got := verifies(r); got != signature.Wrong {
		t.Errorf("as JSON: problem %d", got)
	}
	if _, err := form.Verify([][]byte{[]byte(form.key())}, r, 0); problem(err) != signature.Missing ||
		form.HasSignature(r) {
		t.Errorf("as a form: %v", err)
	}
}

// A request of an unauthenticated client cannot make an error long, or bring a control character
// into a log.
func TestVerify_errors_areShort(t *testing.T) {
	t.Parallel()
	each(t, func(t *testing.T, row row) {
		if row.Signature.In[0].Kind != signature.Header {
			return
		}
		long := strings.Repeat("\x1b]\u202e\n=,;\"'|", 500)
		r := row.delivery(row.body)
		for _, header := range []string{row.Signature.In[0].Name, "X-Slack-Request-Timestamp", "Webhook-Timestamp",
			"Webhook-Id"} {
			r.Header.Set(strings.Replace(header, "#", "1", 1), row.Signature.Prefix+row.Signature.Item+
				row.Signature.KeySeparator+long)
		}
		if _, err := verify(t, &row.Scheme, [][]byte{[]byte(row.key())}, r, 0); err == nil || len(err.Error()) > 400 {
			t.Errorf("%d bytes: %v", len(err.Error()), err)
		}
	})
}
