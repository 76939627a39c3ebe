package api_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/api"
	"github.com/postern-gateway/postern/internal/provider/declared"
)

const (
	structured   = "application/cloudevents+json"
	batch        = "application/cloudevents-batch+json"
	minimalEvent = `"specversion":"1.0","id":"1","source":"/s","type":"t"`
)

// request returns a request with these headers, "name: value" each.
func request(body string, headers ...string) *provider.Delivery {
	d := &provider.Delivery{Header: http.Header{}, Body: []byte(body), ReceivedAt: time.Unix(1783168215, 0)}
	for _, h := range headers {
		name, value, _ := strings.Cut(h, ": ")
		d.Header.Add(name, value)
	}
	return d
}

// binary returns a minimal event in the binary mode, with further headers.
func binary(body string, headers ...string) *provider.Delivery {
	return request(body, append([]string{"ce-specversion: 1.0", "ce-id: 1", "ce-source: /s", "ce-type: t"},
		headers...)...)
}

// acceptAndIdentify returns what is stored of a delivery, and its events. For a rejected delivery
// it returns the error.
func acceptAndIdentify(t *testing.T, d *provider.Delivery) (provider.AcceptedDelivery, []provider.Event,
	*provider.InvalidDelivery) {
	t.Helper()
	before := request(string(d.Body))
	before.Header = d.Header.Clone()
	a, err := api.New().Accept(source(), d)
	if diff := cmp.Diff(before, d); diff != "" {
		t.Fatalf("the delivery was changed (-before +after):\n%s", diff)
	}
	if err != nil {
		var why *provider.InvalidDelivery
		if !errors.As(err, &why) || why.Detail == "" {
			t.Fatalf("accept: %v", err)
		}
		return a, nil, why
	}
	events, err := api.New().Identify(source(), a.Delivery)
	if err != nil {
		t.Fatal(err)
	}
	return a, events, nil
}

func TestAccept_modes_giveEvents(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		d    *provider.Delivery
		body string
		list bool
		want []string
	}{
		"structured": {request(`{`+minimalEvent+`,"data":{"a":1}}`, "Content-Type: "+structured), "", false,
			[]string{"/s 1 t"}},
		"with a charset": {request(`{`+minimalEvent+`}`, "Content-Type: "+structured+"; charset=UTF-8"), "", false,
			[]string{"/s 1 t"}},
		"other case": {request(`{`+minimalEvent+`}`, "Content-Type: Application/CloudEvents+JSON"), "", false,
			[]string{"/s 1 t"}},
		"null is absent": {request(`{`+minimalEvent+`,"subject":null,"time":null,"ext":null,"data":null}`,
			"Content-Type: "+structured), "", false, []string{"/s 1 t"}},
		"extensions": {request(`{`+minimalEvent+`,"a":"x","b":-5,"c":true,"data_base64":"AAE="}`, "Content-Type: "+
			structured), "", false, []string{"/s 1 t"}},
		"data of any kind": {request(`{`+minimalEvent+`,"data":"just a text"}`, "Content-Type: "+structured), "", false,
			[]string{"/s 1 t"}},
		"with a key header": {request(`{`+minimalEvent+`}`, "Content-Type: "+structured, `Idempotency-Key: "k"`), "",
			false, []string{"/s 1 t"}},
		"batch": {request(`[{`+minimalEvent+
			`},{"specversion":"1.0","id":"2","source":"https://x.example/y?z#u","type":"t2"}]`, "Content-Type: "+batch),
			"", true, []string{"/s 1 t", "https://x.example/y?z#u 2 t2"}},
		"batch of one": {request(`[{`+minimalEvent+`}]`, "Content-Type: "+batch), "", true, []string{"/s 1 t"}},
		"binary": {binary(`{"a": 1}`, "Content-Type: application/json"),
			`{"id":"1","source":"/s","specversion":"1.0","type":"t",` +
				`"datacontenttype":"application/json","data":{"a": 1}}`,
			false, []string{"/s 1 t"}},
		"binary, other JSON": {binary(` [1.0]`+"\n", "Content-Type: application/vnd.x+json; charset=utf-8"),
			`{"id":"1","source":"/s","specversion":"1.0","type":"t",` +
				`"datacontenttype":"application/vnd.x+json; charset=utf-8","data": [1.0]` + "\n}",
			false, []string{"/s 1 t"}},
		"binary, not JSON": {binary("<x/>", "Content-Type: application/xml"),
			`{"id":"1","source":"/s","specversion":"1.0","type":"t",` +
				`"datacontenttype":"application/xml","data_base64":"PHgvPg=="}`,
			false, []string{"/s 1 t"}},
		"binary, no data": {binary("", "Content-Type: application/json"),
			`{"id":"1","source":"/s","specversion":"1.0","type":"t","datacontenttype":"application/json"}`, false,
			[]string{"/s 1 t"}},
		"binary, no content type": {binary("x"),
			`{"id":"1","source":"/s","specversion":"1.0","type":"t","data_base64":"eA=="}`, false, []string{"/s 1 t"}},
		"binary, extensions": {binary("", "ce-ext: a", "ce-ext2: 5", `Idempotency-Key: "k"`),
			`{"ext":"a","ext2":"5","id":"1","source":"/s","specversion":"1.0","type":"t"}`, false, []string{"/s 1 t"}},
		"binary, encoded": {binary("", "ce-subject: Euro%20%E2%82%AC%20%f0%9f%98%80%25"),
			`{"id":"1","source":"/s","specversion":"1.0","subject":"Euro € 😀%","type":"t"}`, false, []string{"/s 1 t"}},
		"binary, quoted": {binary("", `ce-subject: "a \"b\" %41\\"`),
			`{"id":"1","source":"/s","specversion":"1.0","subject":"a \"b\" A\\","type":"t"}`, false,
			[]string{"/s 1 t"}},
		"binary, decoded once": {binary("", "ce-subject: %2541"),
			`{"id":"1","source":"/s","specversion":"1.0","subject":"%41","type":"t"}`, false, []string{"/s 1 t"}},
		"JSON": {request(`{"type":"t","time":"2026-07-04T12:30:15Z"}`, "Content-Type: application/json",
			`Idempotency-Key: "order 1"`), "", false, []string{"order 1 t"}},
		"JSON, bare key": {request(`{}`, "Content-Type: application/json", `Idempotency-Key: 8e03978e-40d5`), "",
			false, []string{"8e03978e-40d5 unknown"}},
		"JSON, type is a number": {request(`{"type":7}`, `Idempotency-Key: k`), "", false, []string{"k 7"}},
		"JSON with the members of a CloudEvent": {request(`{`+minimalEvent+`}`, "Content-Type: application/json",
			`Idempotency-Key: k`), "", false, []string{"k t"}},
		"JSON, longest key": {request(`{}`, `Idempotency-Key: `+strings.Repeat("k", 255)), "", false,
			[]string{strings.Repeat("k", 255) + " unknown"}},
		"JSON with a source": {request(`{"source":"/s","id":"1","type":"t"}`, `Idempotency-Key: k`), "", false,
			[]string{"k t"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			a, events, why := acceptAndIdentify(t, c.d)
			if why != nil {
				t.Fatalf("rejected: %d %s", why.Status, why.Detail)
			}
			if want := c.body; want != "" && string(a.Delivery.Body) != want || want == "" &&
				string(a.Delivery.Body) != string(c.d.Body) {
				t.Errorf("stored body %s", a.Delivery.Body)
			}
			var got []string
			for _, e := range events {
				if e.ContentKey {
					t.Errorf("event %+v has no key", e)
				}
				got = append(got, e.Key+" "+e.Type)
			}
			if diff := cmp.Diff(c.want, got); diff != "" || (a.Bodies != nil) != c.list {
				t.Errorf("list %t, events (-want +got):\n%s", a.Bodies != nil, diff)
			}
			if c.list {
				checkSingleEvents(t, a, events)
				return
			}
			if strings.HasPrefix(name, "JSON") { // the key is stored without quotes
				return
			}
			again, _, why := acceptAndIdentify(t, a.Delivery)
			if why != nil || cmp.Diff(a, again) != "" {
				t.Errorf("the stored delivery is accepted differently: %+v, %+v", again, why)
			}
		})
	}
}

// checkSingleEvents checks that each event of a batch is the same event in its stored delivery.
func checkSingleEvents(t *testing.T, a provider.AcceptedDelivery, events []provider.Event) {
	t.Helper()
	if len(a.Bodies) != len(events) {
		t.Fatalf("%d bodies of %d events", len(a.Bodies), len(events))
	}
	for i, body := range a.Bodies {
		one := *a.Delivery
		one.Body = body
		stored, identified, why := acceptAndIdentify(t, &one)
		if why != nil || stored.Bodies != nil || cmp.Diff(events[i:i+1], identified) != "" {
			t.Errorf("stored event %d: %+v, %+v, want %+v", i, why, identified, events[i])
		}
	}
}

func TestAccept_malformedDeliveries_areRejected(t *testing.T) {
	t.Parallel()
	event := func(member string) *provider.Delivery {
		return request(`{`+minimalEvent+`,`+member+`}`, "Content-Type: "+structured)
	}
	for name, c := range map[string]struct {
		d      *provider.Delivery
		status int
		detail string
	}{
		"no key":                  {request(`{}`, "Content-Type: application/json"), 400, "Idempotency-Key is missing"},
		"no key, no content type": {request(`{}`), 400, "Idempotency-Key is missing"},
		"empty key":               {request(`{}`, `Idempotency-Key: ""`), 400, "255"},
		"long key":                {request(`{}`, `Idempotency-Key: `+strings.Repeat("k", 256)), 400, "255"},
		"two keys":                {request(`{}`, "Idempotency-Key: a", "Idempotency-Key: a"), 400, "2 times"},
		"a key with a space":      {request(`{}`, "Idempotency-Key: a b"), 400, "quotes"},
		"not JSON":                {request(`{`, "Idempotency-Key: a"), 400, "not JSON"},
		"nothing":                 {request(``, "Idempotency-Key: a"), 400, "not JSON"},
		"a list":                  {request(`[{}]`, "Idempotency-Key: a"), 400, "send an object"},
		"a form": {request(`a=1`, "Idempotency-Key: a",
			"Content-Type: application/x-www-form-urlencoded"), 415, "application/json"},
		"Latin-1": {request(`{}`, "Idempotency-Key: a",
			"Content-Type: application/json; charset=iso-8859-1"), 415, "UTF-8"},
		"no media type": {request(`{}`, "Idempotency-Key: a", "Content-Type: json"), 400, "is not a media type"},
		"two media types": {request(`{}`, "Idempotency-Key: a", "Content-Type: application/json",
			"Content-Type: application/json"), 400, "2 times"},
		"another format": {request(`{}`, "Content-Type: application/cloudevents+avro"), 415,
			"application/cloudevents+json"},
		"another batch": {request(`{}`, "Content-Type: application/cloudevents-batch+avro"), 415,
			"application/cloudevents-batch+json"},
		"no format": {request(`{}`, "Content-Type: application/cloudevents"), 415,
			"application/cloudevents+json"},
		"no object":     {request(`[]`, "Content-Type: "+structured), 400, "object"},
		"no array":      {request(`{`+minimalEvent+`}`, "Content-Type: "+batch), 400, "array"},
		"no JSON in it": {request(`{"a"`, "Content-Type: "+structured), 400, "not JSON"},
		"no version": {request(`{"id":"1","source":"/s","type":"t"}`, "Content-Type: "+structured), 400,
			"specversion is missing"},
		"old version": {request(`{"specversion":"0.3","id":"1","source":"/s","type":"t"}`, "Content-Type: "+
			structured), 400, "1.0"},
		"a number for version": {request(`{"specversion":1.0,"id":"1","source":"/s","type":"t"}`, "Content-Type: "+
			structured), 400, "specversion"},
		"id of null": {request(`{"specversion":"1.0","id":null,"source":"/s","type":"t"}`, "Content-Type: "+
			structured), 400, "id is missing"},
		"empty id": {request(`{"specversion":"1.0","id":"","source":"/s","type":"t"}`, "Content-Type: "+
			structured), 400, "not empty"},
		"id of a number": {request(`{"specversion":"1.0","id":1,"source":"/s","type":"t"}`, "Content-Type: "+
			structured), 400, `"id"`},
		"source with a space": {request(`{"specversion":"1.0","id":"1","source":"/s t","type":"t"}`, "Content-Type: "+
			structured), 400, "URI"},
		"no source": {request(`{"specversion":"1.0","id":"1","source":"://","type":"t"}`, "Content-Type: "+
			structured), 400, "URI"},
		"long name": {request(`{"specversion":"1.0","id":"`+strings.Repeat("i", 253)+
			`","source":"/s","type":"t"}`, "Content-Type: "+structured), 400, "254 bytes"},
		"long type": {request(`{"specversion":"1.0","id":"1","source":"/s","type":"`+
			strings.Repeat("t", 256)+`"}`, "Content-Type: "+structured), 400, `"type"`},
		"empty subject":      {event(`"subject":""`), 400, `"subject"`},
		"time of a number":   {event(`"time":1783168215`), 400, `"time"`},
		"no time":            {event(`"time":"yesterday"`), 400, "RFC 3339"},
		"time without zone":  {event(`"time":"2026-07-04T12:30:15"`), 400, "RFC 3339"},
		"no content type":    {event(`"datacontenttype":"json"`), 400, "media type"},
		"control characters": {event(`"subject":"a\u0007"`), 400, "control"},
		"a name in capitals": {event(`"myExt":"a"`), 400, "lower-case"},
		"an object":          {event(`"ext":{}`), 400, "a whole number"},
		"a fraction":         {event(`"ext":1.5`), 400, "a whole number"},
		"two kinds of data":  {event(`"data":1,"data_base64":"AA=="`), 400, "both"},
		"no base64":          {event(`"data_base64":"?"`), 400, "base64"},
		"base64 of null":     {event(`"data_base64":null`), 400, "base64"},
		"one of a batch": {request(`[{`+minimalEvent+`},{`+minimalEvent+`,"time":1}]`, "Content-Type: "+batch), 400,
			"event 1 of the batch"},
		"a number in a batch": {request(`[3]`, "Content-Type: "+batch), 400, "event 0 of the batch"},
		"too large a batch": {request(`[`+strings.Repeat(`1,`, declared.MaxEvents)+`1]`, "Content-Type: "+batch),
			413, "maximum is 1000"},
		"binary without id": {request("", "ce-specversion: 1.0", "ce-source: /s", "ce-type: t"), 400,
			"id is missing"},
		"binary, only a type":   {request("{}", "ce-type: t", "Idempotency-Key: a"), 400, "missing"},
		"binary, twice":         {binary("", "ce-ext: a", "ce-ext: b"), 400, "2 times"},
		"binary, type of data":  {binary("", "ce-datacontenttype: text/plain"), 400, "Content-Type"},
		"binary, data":          {binary("", "ce-data: x"), 400, "ce-data"},
		"binary, a name":        {binary("", "ce-my-ext: x"), 400, "ce-my-ext"},
		"binary, overlong":      {binary("", "ce-subject: %C0%A0"), 400, "UTF-8"},
		"binary, half":          {binary("", "ce-subject: 100%"), 400, "%25"},
		"binary, no hex":        {binary("", "ce-subject: %zz"), 400, "%25"},
		"binary, open quote":    {binary("", `ce-subject: "a`), 400, "%22"},
		"binary, after a quote": {binary("", `ce-subject: "a"b`), 400, "%22"},
		"binary, open escape":   {binary("", `ce-subject: "a\`), 400, "%22"},
		"binary, control":       {binary("", "ce-subject: a%0Ab"), 400, "control"},
		"binary, no JSON":       {binary("{", "Content-Type: application/json"), 400, "not JSON"},
		"binary, two documents": {binary(`{},"specversion":"1.0"`, "Content-Type: application/json"), 400, "not JSON"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, events, why := acceptAndIdentify(t, c.d)
			if why == nil {
				t.Fatalf("accepted as %+v", events)
			}
			if why.Status != c.status || !strings.Contains(why.Detail, c.detail) {
				t.Errorf("%d %s, want %d and %q", why.Status, why.Detail, c.status, c.detail)
			}
		})
	}
}

func TestHandshake_emptyBatch_isAnswered(t *testing.T) {
	t.Parallel()
	for body, want := range map[string]bool{"[]": true, " [\n] ": true, "[{}]": false, "": false, "{}": false} {
		reply := api.New().Handshake(source(), request(body, "Content-Type: "+batch))
		if (reply != nil) != want {
			t.Errorf("%q: %+v", body, reply)
		}
	}
	if api.New().Handshake(source(), request("[]", "Content-Type: "+structured)) != nil {
		t.Error("a body that is no batch gets a response")
	}
}

// encodeHeader encodes a header's value for the HTTP binding.
func encodeHeader(text string) string {
	var out strings.Builder
	for _, b := range []byte(text) {
		if b <= ' ' || b == '"' || b == '%' || b > '~' {
			fmt.Fprintf(&out, "%%%02X", b)
		} else {
			out.WriteByte(b)
		}
	}
	return out.String()
}

// An event is the same event in each mode: its key, type, time, object and fingerprint are equal.
func TestIdentify_modes_giveSameEvent(t *testing.T) {
	t.Parallel()
	text := rapid.StringMatching(`[a-zA-Z0-9 %"\\/€😀;,=-]{0,20}[a-z€]`)
	rapid.Check(t, func(t *rapid.T) {
		data := rapid.SampledFrom([]string{`{"version":1,"x":"y"}`, `null`, `"text"`, `[1,2.50]`, ` {"a":"é"}`}).Draw(t,
			"data")
		event := map[string]any{"specversion": "1.0", "id": text.Draw(t, "id"), "source": "/s/" +
			rapid.StringMatching(`[a-z%2/#?]{0,1}[a-z/]{0,9}`).Filter(func(s string) bool {
				return !strings.Contains(s, "%")
			}).Draw(t, "source"),
			"type": "com.example.order." + text.Draw(t, "type"), "datacontenttype": "application/json",
			"data": json.RawMessage(data)}
		for _, name := range []string{"subject", "ext1", "traceparent"} {
			if rapid.Bool().Draw(t, "has "+name) {
				event[name] = text.Draw(t, name)
			}
		}
		if rapid.Bool().Draw(t, "has time") {
			event["time"] = "2026-07-04T12:30:15.25Z"
		}
		one, err := json.Marshal(event)
		if err != nil {
			t.Fatal(err)
		}
		inHeaders := request(data)
		for name, value := range event {
			if text, ok := value.(string); ok && name != "datacontenttype" {
				inHeaders.Header.Set("ce-"+name, encodeHeader(text))
			}
		}
		inHeaders.Header.Set("Content-Type", "application/json")
		var first []provider.Event
		for _, d := range []*provider.Delivery{request(string(one), "Content-Type: "+structured),
			request("["+string(one)+"]", "Content-Type: "+batch), inHeaders} {
			a, err := api.New().Accept(source(), d)
			if err != nil {
				t.Fatal(err)
			}
			events, err := api.New().Identify(source(), a.Delivery)
			if err != nil {
				t.Fatal(err)
			}
			if first == nil {
				first = events
			}
			if diff := cmp.Diff(first, events); diff != "" || events[0].Key != fmt.Sprint(event["source"], " ",
				event["id"]) {
				t.Fatalf("%v %s is another event (-want +got):\n%s", d.Header, d.Body, diff)
			}
		}
	})
}
