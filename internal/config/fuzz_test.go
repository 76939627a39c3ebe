package config_test

import (
	"cmp"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/settings"
)

// FuzzParse: no input panics, and each accepted configuration fulfils what other packages rely on.
func FuzzParse(f *testing.F) {
	for _, seed := range []string{
		"", "null", "a", "- a", "database: {url: x}", config.Template(), strings.ReplaceAll(issueExample, "%FILE%",
			"/nowhere"),
		"database: &a {url: x}\nsources: *a\n", "database: {url: \"${A}\"}\nsources: {a: null}",
		"sources: {\"a.b\": {provider: stripe}}",
		"ingest: {deadline: 1h, max_body_bytes: \"1 KiB\"}", "a: &a [*a]", "? [x]\n: y", "<<: {database: {url: x}}",
		"!!binary x", "\xff",
		declaredSource("hmac", `scheme: {header: [X-S, X-T-#], separator: ",", assign: "=", item: v1, `+
			`message: "{timestamp}.[{query:q}]{body}", timestamp: {from: item:t}}
events: {body: [form, json], split: a.*.b, item: c, key: "{root:a.*.n}-{index}{content}", `+
			`type: ["{json:t}[.{header:X-A|lower}]"], omit: [n]}
objects: [{events: "x.*", ignored: no}, {type: "{type}", id: "{json:id}", state: ., `+
			`version: {from: json:v, unit: integer}, deletes: x, final: true}]`),
		declaredSource("hmac", `schemes: [{in: json:sig, method: token, body_unsigned: true}, `+
			`{header: X-S, method: hash, message: "{secret}{body}", when: {from: json:a, is: b}}]
handshake: {challenge: {echo: query:c, as: x, token: {from: header:X, value: v}}, `+
			`signed: {when: {from: json:t, is: g}, echo: json:c}}
reply: {status: 204}`),
		declaredSource("hmac", `scheme: {header: X-S}
api: {base_url: "https://h/b", key: {value: k}, header: "X-K: {key_base64}", headers: {A: "{version}"}, version: 1, control: "/{account}/me?a=b", missing: {statuses: [404, 422], path: e.c, equals: x},
  expired: {statuses: [400], path: e}, objects: {t: {get: "/t/{id}?x={{}}", item: data.0, id: a.b, `+
			`version: {path: v, unit: ms, may_not_advance: true}, deleted: {path: d}, ignored_paths: [w],
  list: {path: /l, query: {a: "{cursor}", s: "{since}..{until}", n: "{limit}"}, items: i, item: j, `+
			`partial: true, time: s, limit: 2, lag: 1s, next: {last: a.b, more: m}}}}}`),
	} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		c, err := config.Parse([]byte(text), environment("A=b", "STRIPE_WEBHOOK_SECRET=whsec_x"))
		if err != nil {
			if err.Error() == "" {
				t.Fatal("an error without words")
			}
			return
		}
		if c.Database.URL == "" || c.Ingest.Queue < 1 || c.Ingest.MaxBodyBytes < 1024 || c.Log.Level == "" {
			t.Fatalf("accepted: %v", c)
		}
		for _, e := range c.Endpoints() {
			if len(e.Source.Secrets) == 0 || len(e.Source.Secrets[0].Value) == 0 || e.MaxBodyBytes < 1024 {
				t.Fatalf("accepted source: %v", e.Source)
			}
			if e.Reader != nil && e.API != nil {
				for _, call := range callsOf(e) {
					if !strings.HasPrefix(call.Path, "/") || strings.Contains(call.Path, "\n") {
						t.Fatalf("accepted a call of %q", call.Path)
					}
				}
			}
			for _, body := range []string{
				`{"a":[{"n":1,"b":[{"c":{"id":"i","t":"x","v":1}},{}]}],"id":"i","type":"x","sig":"v"}`,
				"a=1&type=x", ""} {
				d := &provider.Delivery{Header: http.Header{"X-S": {"t=1,v1=ab"}, "X-Signature": {"ab"}},
					Query: "q=1&c=2", Body: []byte(body)}
				_, _ = e.Provider.Verify(e.Source, d)
				providertest.CheckSound(t, e.Provider, e.Source, d)
			}
		}
	})
}

// callsOf returns the calls of a described API for the accounts and types of the source.
func callsOf(e config.Endpoint) []provider.Call {
	account := e.Source.Account
	e.Reader.Authorize(e.API, http.Header{})
	calls := []provider.Call{e.Reader.CredentialCheck(e.API, cmp.Or(account, "a"))}
	lister, ok := e.Reader.(provider.ObjectLister)
	if !ok {
		return calls
	}
	for name := range lister.Lists(e.Source, e.API, account) {
		calls = append(calls, lister.ListObjects(e.Source, e.API, account, name, time.Unix(5, 0), time.Unix(6, 0), ""))
		if call, ok := e.Reader.Fetch(e.Source, e.API, account, name, "../x"); ok {
			calls = append(calls, call)
		}
		_, _, _ = lister.ObjectPage(e.Source, e.API, account, name, "", http.Header{},
			[]byte(`{"i":[{"j":{"a":{"b":1},"v":2}}],"m":true}`))
		_, _ = e.Reader.Snapshot(e.Source, &provider.Snapshot{ObjectType: name, ObjectID: "1",
			Body: []byte(`{"data":[{"a":{"b":1},"v":2}]}`)})
	}
	return calls
}

// FuzzBytes: a parsed number of bytes is written in a form that parses to the same number.
func FuzzBytes(f *testing.F) {
	for _, seed := range []string{"0", "512", "64KiB", "4 MiB", "2GiB", "-1", "9223372036854775807",
		"9223372036854775807GiB", "KiB"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, text string) {
		var b, again settings.Bytes
		if b.UnmarshalText([]byte(text)) != nil {
			return
		}
		if err := again.UnmarshalText([]byte(b.String())); err != nil || b < 0 || again != b {
			t.Fatalf("%q: %d, written %q, read again %d, %v", text, b, b.String(), again, err)
		}
	})
}
