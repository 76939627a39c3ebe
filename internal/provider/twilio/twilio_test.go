package twilio_test

import (
	"errors"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/provider/twilio"
)

func suite() providertest.Suite {
	return providertest.Suite{
		Provider: twilio.New(),
		Source: &provider.Source{Name: "twilio", URL: "https://hooks.example/webhooks/twilio",
			Secrets: []provider.Secret{
				{Name: "new", Value: []byte("0123456789abcdef0123456789abcdef")},
				{Name: "old", Value: []byte("fedcba9876543210fedcba9876543210")}}},
		Signature: "X-Twilio-Signature",
		NoKey: providertest.SignAgain(twilio.New(), func(body []byte) []byte {
			form, err := url.ParseQuery(string(body))
			if err != nil {
				return body
			}
			form.Del("MessageSid")
			return []byte(form.Encode())
		}),
		Types: map[string][]string{"com.twilio.messaging.message.sent": {
			"com.twilio.messaging.message.sent", "com.twilio.messaging.message.delivered",
			"com.twilio.messaging.message.failed"}},
		ContentKeys:    []string{"call.*"},
		ObjectPerEvent: true,
		Readable:       []string{"an array"},
		Reply: &provider.Reply{ContentType: "text/xml; charset=utf-8",
			Body: []byte(`<?xml version="1.0" encoding="UTF-8"?><Response></Response>`)},
	}
}

func TestProvider_conforms(t *testing.T) {
	t.Parallel()
	providertest.Conform(t, suite())
}

// Event Streams are signed differently: the same suite, beginning with a list of events.
func TestProvider_eventStreams_conform(t *testing.T) {
	t.Parallel()
	s := suite()
	s.Provider = withSamples{twilio.New(), twilio.New().Samples()[7:]}
	s.NoKey = providertest.SignAgain(twilio.New(), providertest.Body(
		`[{"type":"com.twilio.messaging.message.sent","time":"2026-06-01T09:07:00.000Z"}]`))
	providertest.Run(t, s)
}

// withSamples returns the provider with other samples.
type withSamples struct {
	*declared.Provider
	samples []provider.Sample
}

func (p withSamples) Samples() []provider.Sample { return p.samples }

func FuzzIdentify(f *testing.F) { providertest.Fuzz(f, suite()) }

// The test examples of Twilio's own SDKs; the one with a port was made with Python's hmac.
const (
	call     = "CallSid=CA1234567890ABCDE&Caller=%2B14158675309&Digits=1234&From=%2B14158675309&To=%2B18005551212"
	callSign = "RSOYDt4T1cUTdK1PDd93/VVr8B8="
	portSign = "kvajT1Ptam85bY51eRf/AJRuM3w="
	repeated = "Sid=CA123&SidAccount=AC123&Digits=5678&Digits=1234&Digits=1234"
	twice    = "IK+Dwps556ElfBT0I3Rgjkr1wJU="
	body     = `{"property": "value", "boolean": true}`
	bodySign = "a9nBmqA0ju/hNViExpshrM61xv4="
	bodyHash = "&bodySHA256=0a1ff7634d9ab3b95db5c9a2dfe9416e41502b283a80c7cf19632632f96e6620"
)

func TestVerify_vectorsOfSDKs_areAccepted(t *testing.T) {
	t.Parallel()
	const address, query = "https://mycompany.com/myapp.php", "foo=1&bar=2"
	tests := map[string]struct {
		url, query, body, signature string
		want                        provider.Reason
	}{
		"form": {address, query, call, callSign, ""},
		"form, fields in any order": {address, query,
			"To=%2B18005551212&Digits=1234&From=%2B14158675309&Caller=%2B14158675309&CallSid=CA1234567890ABCDE",
			callSign, ""},
		"configured address has the port": {"https://mycompany.com:443/myapp.php", query, call, callSign, ""},
		"signed address has the port":     {address, query, call, portSign, ""},
		"both have the port":              {"https://mycompany.com:443/myapp.php", query, call, portSign, ""},
		"another port": {"https://mycompany.com:444/myapp.php", query, call, portSign,
			provider.WrongSignature},
		"behind a proxy": {"http://10.0.0.7:8080/myapp.php", query, call, callSign, provider.WrongSignature},
		"repeated field": {address, query, repeated, twice, ""},
		"another value": {address, query, strings.Replace(call, "1234&", "1235&", 1), callSign,
			provider.WrongSignature},
		"a field more":  {address, query, call + "&A=b", callSign, provider.WrongSignature},
		"another query": {address, "foo=2&bar=1", call, callSign, provider.WrongSignature},
		"no query":      {address, "", call, callSign, provider.WrongSignature},
		"body":          {address, query + bodyHash, body, bodySign, ""},
		"another body": {address, query + bodyHash, strings.Replace(body, "true", "null", 1), bodySign,
			provider.WrongSignature},
		"another digest": {address, query + strings.Replace(bodyHash, "0a1f", "0a1e", 1), body, bodySign,
			provider.WrongSignature},
		"no digest":              {address, query, body, bodySign, provider.WrongSignature},
		"two digests":            {address, query + bodyHash + bodyHash, body, bodySign, provider.WrongSignature},
		"nothing for body":       {address, query + bodyHash, "", bodySign, provider.WrongSignature},
		"an empty form for body": {address, query + bodyHash, "&", bodySign, provider.WrongSignature},
		"form for body":          {address, query + bodyHash, call, bodySign, provider.WrongSignature},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			src := &provider.Source{URL: test.url, Secrets: []provider.Secret{{Name: "vector", Value: []byte("12345")}}}
			d := &provider.Delivery{Query: test.query, Body: []byte(test.body), ReceivedAt: time.Unix(1700000000, 0),
				Header: http.Header{"X-Twilio-Signature": {test.signature}}}
			_, err := twilio.New().Verify(src, d)
			var rejection *provider.Rejection
			if test.want == "" && err != nil || test.want != "" &&
				(!errors.As(err, &rejection) || rejection.Reason != test.want) {
				t.Errorf("verify: %v, want %q", err, test.want)
			}
		})
	}
}

// Without a signed time a captured delivery can be sent again at any time, with any token. It is
// the same event.
func TestIdentify_replay_isSameEvent(t *testing.T) {
	t.Parallel()
	s := suite()
	for _, sample := range s.Provider.Samples() {
		d := s.Deliver(t, s.Source, sample)
		once, err := s.Provider.Identify(s.Source, d)
		if err != nil {
			t.Fatal(err)
		}
		d.Header.Set("I-Twilio-Idempotency-Token", "another")
		d.ReceivedAt = d.ReceivedAt.AddDate(1, 0, 0)
		if _, err := s.Provider.Verify(s.Source, d); err != nil {
			t.Fatal(err)
		}
		again, err := s.Provider.Identify(s.Source, d)
		if diff := cmp.Diff(once, again); err != nil || diff != "" {
			t.Errorf("%s: %v, %s", sample.Type, err, diff)
		}
	}
}

func TestIdentify_forms_haveTypes(t *testing.T) {
	t.Parallel()
	tests := map[string][2]string{
		"recording":     {"RecordingSid=RE1&RecordingStatus=completed&CallSid=CA1", "recording.completed"},
		"task router":   {"EventType=task.created&TaskSid=WT1", "task.created"},
		"conference":    {"StatusCallbackEvent=participant-join&ConferenceSid=CF1&CallSid=CA1", "participant-join"},
		"a message":     {"MessageSid=SM1&SmsStatus=received", "message.received"},
		"both statuses": {"MessageSid=SM1&SmsStatus=sent&MessageStatus=delivered", "message.delivered"},
		"a call":        {"CallSid=CA1&CallStatus=in-progress&Digits=1", "call.in-progress"},
		"a call's state": {"CallSid=CA1&CallStatus=completed&CallbackSource=call-progress-events&SequenceNumber=3",
			"call-progress-events.completed"},
		"none":     {"Foo=bar", "unknown"},
		"repeated": {"MessageSid=SM1&MessageStatus=sent&MessageStatus=delivered", "unknown"},
	}
	for name, test := range tests {
		events, err := twilio.New().Identify(&provider.Source{}, &provider.Delivery{Header: http.Header{},
			Body: []byte(test[0])})
		if err != nil || len(events) != 1 || events[0].Type != test[1] {
			t.Errorf("%s: %+v, %v, want type %s", name, events, err, test[1])
		}
	}
}

func TestCheck_addressWithQuery_isRejected(t *testing.T) {
	t.Parallel()
	src := *suite().Source
	for _, tail := range []string{"?a=b", "?", "#x"} {
		src.URL = suite().Source.URL + tail
		if err := twilio.New().Check(&src); err == nil || !strings.Contains(err.Error(), "url:") {
			t.Errorf("%s: %v", src.URL, err)
		}
	}
}

// A form cannot get the key of a stream's event, however its text is split into fields. A form with
// a repeated field names no object.
func TestIdentify_form_cannotBeStreamEvent(t *testing.T) {
	t.Parallel()
	const call = "CallSid=CA1&CallStatus=ringing&CallbackSource=call-progress-events&SequenceNumber=1"
	for body, want := range map[string]struct{ key, object string }{
		`[{"id":"EV1","specversion":"1.0","type":"t","data":{}}]`: {"EV1", ""},
		"id=EV1&specversion=1.0&type=t":                           {"", ""},
		"*.id=EV1&0.id=EV1&type=t":                                {"", ""},
		call:                                                      {"CA1:ringing:1", "CA1"},
		call + "&Digits=1&Digits=2":                               {"CA1:ringing:1", ""},
	} {
		events, err := twilio.New().Identify(&provider.Source{}, &provider.Delivery{Header: http.Header{},
			Body: []byte(body)})
		if err != nil || len(events) != 1 {
			t.Fatalf("%s: %d events, %v", body, len(events), err)
		}
		e := events[0]
		if e.ContentKey != (want.key == "") || want.key != "" && e.Key != want.key || e.ObjectID != want.object {
			t.Errorf("%s: key %s, object %q, want %+v", body, e.Key, e.ObjectID, want)
		}
	}
}
