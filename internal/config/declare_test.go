package config_test

import (
	"crypto/ed25519"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/hex"
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/signature"
)

// declaredSource is a configuration with source a, whose settings begin on line 6.
func declaredSource(who, settings string) string {
	return "database: {url: postgres://x}\nsources:\n  a:\n    provider: " + who + "\n    secrets: [{name: n, value: " +
		"736563726574}]\n    " + strings.ReplaceAll(strings.TrimSpace(settings), "\n", "\n    ") + "\n"
}

// checkDeclared is checkRows for the settings of a declared source, which stand for % in a text.
func checkDeclared(t *testing.T, who, settings string, rows map[string][]string) {
	t.Helper()
	checkRows(t, func(row string) string {
		return declaredSource(who, strings.Replace(settings, "%", row, 1))
	}, rows)
}

// Settings that cannot work, or are less secure than they look, are reported with their line.
func TestDeclaredSource_wrongSettings_areReported(t *testing.T) {
	t.Parallel()
	checkDeclared(t, "hmac", "scheme: {header: X-S, %}", map[string][]string{
		"unknown method":   {"method: md5", `scheme.method: "md5" is not a known value: write one of hmac`},
		"unknown encoding": {"encoding: base32", "write one of hex, base64, base64url, plain"},
		"plain signature":  {"encoding: plain", "scheme.encoding: plain is for tokens only: write"},
		"unknown key form": {"key: {form: rot13}",
			`scheme.key.form: "rot13" is not a known value: write one of text, base64, hex`},
		"key of a key pair":    {"method: ed25519, key: {form: hex}", "scheme.key: only hmac derives a key from"},
		"plain_fallback alone": {"key: {plain_fallback: true}", "scheme.key.plain_fallback: has an effect only"},
		"secret of another form": {"key: {form: hex, strip: [7]}",
			"line 3: sources.a: secrets: n cannot be used: it is not hexadecimal"},
		"secret that is no key":   {"method: ed25519", "secrets: n cannot be used: it is not an Ed25519 public key"},
		"items without separator": {"assign: '='", "scheme.separator: is not set"},
		"item without assign":     {"separator: ',', item: v1", "scheme.assign: is not set"},
		"skip of keys": {"separator: ',', assign: '=', item: v1, skip: 1",
			"scheme.skip: counts items without keys, from 0"},
		"one group separator": {"separator: ',', group: ','", "scheme.group"},
		"unknown reference":   {"message: '{bdy}'", `scheme.message: "bdy" is not a`},
		"template not closed": {"message: '{body'", `scheme.message: "{body": a { is not closed`},
		"event in a message":  {"message: '{body}{root:x}'", "{root:x} is not allowed here"},
		"no time": {"message: '{timestamp}.{body}'",
			"scheme.timestamp: is not set, and message contains {timestamp}"},
		"time not signed":      {"timestamp: {from: header:X-T}", "scheme.timestamp.from: this time is not signed"},
		"time in the query":    {"timestamp: {from: query:t}", "scheme.timestamp.from: this time is not signed"},
		"time without a place": {"timestamp: {unit: ms}", `scheme.timestamp.from: "" is not a`},
		"item of a lone signature": {"message: '{timestamp}{body}', timestamp: {from: item:t}",
			"scheme.timestamp.from: item:t is another item"},
		"item in the message": {"message: '{item:n}{body}'",
			"scheme.separator: is not set, and message contains {item:...}: write"},
		"unknown unit": {"message: '{timestamp}{body}', timestamp: {from: header:X-T, unit: us}",
			`scheme.timestamp.unit: "us" is not a known value: write one of s, ms`},
		"body not signed": {"message: '{header:X-T}'",
			"scheme.body_unsigned: is not set: this scheme authenticates the sender but not the body"},
		"body signed": {"body_unsigned: true", "scheme.body_unsigned: the message covers the body"},
		"digest not signed": {"message: '{header:X-T}', body_digest: {from: header:X-D}",
			"scheme.body_digest.from: this digest is not signed"},
		"token": {"method: token", "scheme.body_unsigned: is not set"},
		"token with a message": {"method: token, body_unsigned: true, message: '{body}'",
			"scheme.message: a token has no"},
		"hash without secret": {"method: hash", "scheme.message: {secret} is allowed, and required, in the message"},
		"secret in an hmac": {"message: '{secret}{body}'",
			"scheme.message: {secret} is allowed, and required, in the message"},
		"half a condition": {"when: {from: header:X-V}", "scheme.when.is: is not set"},
		"url not named":    {"message: '{url}{body}'", "sources.a: url: the sender signs the address"},
		"no truth": {"body_unsigned: maybe",
			`line 6: sources.a.scheme.body_unsigned: "maybe" is neither true nor false: write one of them`},
		"yes": {"body_unsigned: yes", `"yes" is neither true nor false: write true`},
		"no braces in message": {"message: body",
			`scheme.message: "body" is plain text here: to use the value, write "{body}"`},
	})
	checkDeclared(t, "hmac", "%", map[string][]string{
		"no scheme": {"accounts: []", "sources.a.scheme: is not set: write how the sender signs"},
		"no place":  {"scheme: {prefix: x}", "line 6: sources.a.scheme.header: is not set"},
		"no place in a list": {"schemes:\n  - header: X-S\n  - prefix: x",
			"line 8: sources.a.schemes.1.header: is not set"},
		"unknown digest": {"scheme:\n  header: X-S\n  digest: md5",
			`line 8: sources.a.scheme.digest: "md5" is not a known value: write one of sha256`},
		"unknown place": {"scheme: {in: cookie:x}",
			`scheme.in: "cookie:x" is not a reference that this setting accepts: write header:NAME, json:PATH, ` +
				"form:FIELD"},
		"token as a key": {"scheme: {header: X-Auth-Key, method: token, body_unsigned: true}\nevents: {key: " +
			"'{json:id}[-{header:x-auth-key}]'}",
			"events.key: {header:X-Auth-Key} is the token that authenticates the sender"},
		"token as an account": {"scheme: {in: query:code, method: token, body_unsigned: true}\nevents: {account: " +
			"'{query:code}'}", "events.account: {query:code} is the token"},
		"one token of many": {"scheme: {header: X-Access-#, method: token, body_unsigned: true}\nevents: {type: " +
			"'{header:X-Access-7}'}", "events.type: {header:X-Access-7} is the token"},
		"token in JSON": {"scheme:\n  method: token\n  in: json:auth.token\n  body_unsigned: true",
			"line 8: sources.a.scheme.in: json:auth.token is a token in the body, and bodies are stored byte for " +
				"byte. The database, views, exports and feeds would contain it"},
		"token in a form": {"schemes:\n  - {header: X-S}\n  - {header: X-T, in: form:token, method: token, " +
			"body_unsigned: true}", "line 8: sources.a.schemes.1.in: form:token is a token in the body"},
		"consent for headers": {"scheme: {header: X-T, method: token, body_unsigned: true}\nstore_token: true",
			"line 7: sources.a.store_token: has no effect, because no scheme of this source reads a token from the " +
				"body"},
		"consent for queries": {"scheme: {in: query:t, method: token, body_unsigned: true}\nstore_token: true",
			"line 7: sources.a.store_token: has no effect"},
		"consent for an HMAC": {"scheme: {in: json:sig, message: '{json:id}', body_unsigned: true}\nstore_token: " +
			"true", "line 7: sources.a.store_token: has no effect"},
		"form's token as JSON": {"scheme: {in: form:t, method: token, body_unsigned: true}\nstore_token: " +
			"true\nevents: {body: form, key: '{json:t}'}",
			"line 8: sources.a.events.key: {json:t} is the token that authenticates the sender"},
		"token of the root": {"scheme: {in: json:t, method: token, body_unsigned: true}\nstore_token: " +
			"true\nevents: {split: list, type: '{root:t}'}", "events.type: {root:t} is the token"},
		"token as an object": {"scheme: {in: json:t, method: token, body_unsigned: true}\nstore_token: " +
			"true\nobjects: [{type: x, id: '{json:t}'}]", "line 8: sources.a.objects.0.id: {json:t} is the token"},
		"token as its type": {"scheme: {in: json:t, method: token, body_unsigned: true}\nstore_token: " +
			"true\nobjects: [{type: '{root:t}', id: '{json:id}'}]", "objects.0.type: {root:t} is the token"},
		"hash of the secret": {"scheme: {in: json:sig, method: hash, message: '{secret}', body_unsigned: true}",
			"line 6: sources.a.scheme.message: contains nothing that differs between deliveries, so all deliveries " +
				"have the same signature, which is a token"},
		"HMAC of a constant": {"scheme: {in: json:sig, message: 'v1:{method}', body_unsigned: true}",
			"scheme.message: contains nothing that differs between deliveries"},
		"extendable form": {"scheme:\n  header: X-S\n  method: hash\n  message: '{secret}{body}'\nevents: {body: " +
			"[json, form]}",
			"line 9: sources.a.scheme.message: this hash can be extended: with one signed form, an attacker can " +
				"sign a longer one"},
		"extendable fields": {"schemes: [{header: X-S, method: hash, message: " +
			"'{secret}{sorted_form}[{secret}{header:X-M}]'}]\nevents: {body: payload}",
			"line 6: sources.a.schemes.0.message: this hash can be extended"},
		"deletes half signed": {"schemes: [{header: X-S, message: '{header:X-T}{body}'}, {header: X-R}]\nevents: " +
			"{type: '{header:X-T}'}\nobjects: [{type: x, id: '{json:id}', deletes: [y]}]",
			"objects.0.deletes: the type, in header:X-T"},
		"no public key": {"schemes: [{header: X-S}, {header: X-P, method: ed25519}]",
			"secrets: none is a public key for scheme ed25519; write it as PEM, or put whpk_ before it"},
		"misspelt": {"scheme:\n  header: X-S\n  mesage: x",
			`line 8: sources.a.scheme.mesage: unknown field "mesage"; did you mean message?`},
		"no word": {"scheme: {header: {x: y}}", "line 6"},
	})
	checkDeclared(t, "hmac", "scheme: {header: X-S}\nevents: {%}", map[string][]string{
		"unknown body":        {"body: xml", `events.body: "xml" is not a known value: write one of json`},
		"constant key":        {"key: event", `events.key: "event" is the same`},
		"secret in a key":     {"key: '{secret}'", "{secret} is not allowed here"},
		"type in the type":    {"type: '{type}'", `events.type: "{type}": {type} is not allowed`},
		"item without a list": {"item: x", "events.item: is a path inside an element"},
		"no path of a list":   {"split: entry.*", `events.split: "entry.*" is not the path of a`},
		"list of the list":    {"split: '..*.x'", "is not the path of a list"},
		"time of a header": {"occurred: {from: header:X-T}",
			`events.occurred.from: "header:X-T" is not a reference that this setting accepts: write json:PATH, ` +
				"root:PATH or form:FIELD"},
		"integer time":        {"occurred: {from: json:t, unit: integer}", `events.occurred.unit: "integer" is not a`},
		"kept credential":     {"headers: [Authorization]", "events.headers: Authorization contains a credential"},
		"kept token":          {"headers: [x-auth-token]", "events.headers: x-auth-token contains a credential"},
		"kept api key":        {"headers: [X-API-KEY]", "events.headers: X-API-KEY contains a credential"},
		"key of a credential": {"key: '{header:cookie}'", "events.headers: Cookie contains a credential"},
		"bare mapping": {"key: {json:id}",
			`sources.a.events.key: YAML reads {json:id} as a mapping unless it is quoted: write "{json:id}"`},
		"bare mapping in list": {"key: [{json:id}]", "events.key: YAML reads {json:id} as a mapping"},
		"reference for group": {"occurred: json:created",
			"line 7: sources.a.events.occurred: has settings of its own: write {from: 'json:created'}"},
		"no braces": {"key: json:id",
			`events.key: "json:id" is plain text here: to use the value, write "{json:id}"`},
		"braces in a split": {"split: '{json:data}'",
			`events.split: "{json:data}" is a reference, but a path is required: write data`},
		"nothing in reference": {"key: '{json:data..id}'",
			`events.key: "{json:data..id}": data..id is not a path: a part between its`},
	})
	checkDeclared(t, "hmac", "scheme: {header: X-S}\nobjects: [{%}]", map[string][]string{
		"no object type": {"id: '{json:id}'", "line 7: sources.a.objects.0.type: is not set"},
		"no object id":   {"type: x", "objects.0.id: is not set"},
		"header of an event": {"type: x, id: '{header:X-I}'",
			`objects.0.id: "{header:X-I}": {header:X-I} is not allowed here: use json:PATH, root:PATH, form:FIELD ` +
				"or type in braces"},
		"no order": {"type: x, id: '{json:id}', state: data",
			"objects.0.version: is not set, and neither is events.occurred"},
		"before nothing": {"type: x, id: '{json:id}', before: old",
			"objects.0.before: describes a change of the state"},
		"final what":        {"type: x, id: '{json:id}', final: true", "objects.0.final: applies to deletes: set"},
		"ignored and named": {"ignored: no, type: x", "objects.0.ignored: an ignored event changes no object"},
		"reference for version": {"type: x, id: '{json:id}', version: json:v",
			"sources.a.objects.0.version: has settings of its own: write {from: 'json:v'}"},
		"reference as a path": {"type: x, id: '{json:id}', state: s, before: json:old",
			`objects.0.before: "json:old" is a reference, but a path is required: write old`},
		"nothing between dots": {"type: x, id: '{json:id}', state: data..x",
			`objects.0.state: "data..x" is not a path: a part between its`},
		"types without a type": {"events: order.*, type: x, id: '{json:id}'",
			"objects.0.events: contains types, but events.type is not set"},
		"deletes of no type": {"type: x, id: '{json:id}', deletes: gone",
			"objects.0.events: contains types, but events.type is not set"},
	})
	checkDeclared(t, "hmac", "scheme: {header: X-S}\n%", map[string][]string{
		"two ways":   {"schemes: [{header: X-T}]", "line 7: sources.a.schemes: scheme is set too"},
		"key choice": {"key: webhook-id", "sources.a: key: provider hmac has no"},
		"perhaps constant key": {"events:\n  key: ['{json:id}', 'e[{json:n}]']",
			`line 8: sources.a.events.key: "e[{json:n}]" is the same`},
		"never reached": {"objects:\n  - {type: x, id: '{json:id}'}\n  - {events: y, type: y, id: '{json:id}'}",
			"line 9: sources.a.objects.1: is never used, because"},
		"deletes unsigned": {"events: {type: '{header:X-T}[.{json:a}]'}\nobjects: [{type: x, id: '{json:id}', " +
			"deletes: [y]}]",
			"line 8: sources.a.objects.0.deletes: the type, in header:X-T, is not signed, so anyone who captured a " +
				"delivery could delete"},
		"deletes of a query": {"events: {type: ['{json:a}', '{query:t}']}\nobjects: [{type: x, id: '{json:id}', " +
			"deletes: [y]}]", "objects.0.deletes: the type, in query:t, is not"},
		"long tolerance": {"tolerance: 25h",
			"line 7: sources.a.tolerance: 25h0m0s is too large: the maximum is 24h0m0s"},
		"challenge without echo": {"handshake: {challenge: {as: x}}", "handshake.challenge.echo: is not set"},
		"echo of a body": {"handshake: {challenge: {echo: json:x}}",
			`handshake.challenge.echo: "json:x" is not a reference that this setting accepts: write query:NAME`},
		"token not there": {"handshake:\n  challenge:\n    echo: query:c\n    token: {from: query:t, env: NOWHERE}",
			"line 10: sources.a.handshake.challenge.token: the variable NOWHERE is not set"},
		"token nowhere": {"handshake: {challenge: {echo: query:c, token: {value: v}}}",
			"handshake.challenge.token: from is not set"},
		"signed without when": {"handshake: {signed: {echo: json:challenge}}",
			"handshake.signed.when.is: is not set"},
		"reply that fails":   {"reply: {status: 410}", "reply.status: 410 would make the sender"},
		"reply without type": {"reply: {body: ok}", "reply.content_type: is not set"},
		"empty reply with body": {"reply: {status: 204, body: ok, content_type: x}",
			"reply.body: a response with status 204"},
		"seconds": {"tolerance: 5", `line 7: sources.a.tolerance: "5" is not a duration with a unit: write e.g. 5s`},
		"braces in a path": {"events: {occurred: {from: json:t}}\nobjects: [{type: x, id: '{json:id}', state: " +
			"'{json:data}'}]", `objects.0.state: "{json:data}" is a reference, but a path is required: write data`},
		"deletes of others": {"events: {type: '{json:type}'}\nobjects: [{events: [order.*, bill.paid], type: x, " +
			"id: '{json:id}', deletes: [orders.deleted]}]",
			`objects.0.deletes: "orders.deleted" is not among this object's events (order.*, bill.paid)`},
	})
	checkDeclared(t, "github", "%", map[string][]string{
		"consent of a preset": {"store_token: true", "line 6: sources.a.store_token: has no effect"},
	})
	checkDeclared(t, "standardwebhooks", "%", map[string][]string{
		"deletes by a header": {"events: {type: '{header:X-T}'}\nobjects: [{type: x, id: '{json:id}', deletes: [y]}]",
			"objects.0.deletes: the type, in header:X-T"},
		"scheme of a standard": {"scheme: {header: X-S}\n",
			"sources.a.scheme: standardwebhooks has a fixed signature and response format"},
	})
	checkDeclared(t, "stripe", "%", map[string][]string{
		"scheme of a provider": {"scheme: {header: X-S}\n",
			"line 6: sources.a.scheme: stripe has a fixed signature and"},
		"events of a provider": {"events: {key: '{json:id}'}",
			"line 6: sources.a.events: stripe defines its events and objects itself: leave this out, or write " +
				"provider: hmac, standardwebhooks or api"},
		"objects of a provider": {"objects: [{type: x, id: '{json:id}'}]",
			"sources.a.objects: stripe defines its events"},
		"reply of a provider": {"reply: {status: 204}",
			"sources.a.reply: stripe has a fixed signature and response format"},
	})
}

// Errors that follow from an unreadable scheme or message are not reported again.
func TestDeclaredSource_oneProblem_isReportedOnce(t *testing.T) {
	t.Parallel()
	for scheme, want := range map[string]string{
		"method: ed25519, digest: md5":                                "scheme.digest",
		"message: '{timestmp}.{body}', timestamp: {from: header:X-T}": "scheme.message",
		"message: '{body', timestamp: {from: header:X-T}":             "scheme.message",
		"message: 'timestamp', timestamp: {from: header:X-T}":         "scheme.message",
	} {
		_, err := config.Parse([]byte(declaredSource("hmac", "scheme: {header: X-S, "+scheme+"}")), environment())
		if err == nil || strings.Contains(err.Error(), "\n") || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", scheme, err)
		}
	}
}

// A pattern with * may match only some of the deletes. Deletes are accepted if the type is signed,
// or if the source signs nothing.
func TestDeclaredSource_reachableDeletes_areAccepted(t *testing.T) {
	t.Parallel()
	const scheme, typed = "scheme: {header: X-S}", "\nevents: {type: '{json:type}'}"
	for _, c := range [][2]string{
		{scheme + typed, "events: order.*, deletes: order.deleted"},
		{scheme + typed, "events: order.*, deletes: '*.deleted'"},
		{scheme + typed, "events: ['a*c'], deletes: 'ab*'"},
		{scheme + typed, "deletes: gone"},
		{scheme + typed, "events: '*', deletes: gone"},
		{"scheme: {header: X-S, message: '{header:X-T}{body}'}\nevents: {type: '{header:x-t|lower}'}", "deletes: [y]"},
		{"scheme: {header: X-S, message: '{url}{body}'}\nurl: https://hooks.example/a\nevents: {type: '{query:t}'}",
			"deletes: [y]"},
		{"scheme: {header: X-S, method: token, body_unsigned: true}\nevents: {type: '{header:X-T}'}", "deletes: [y]"},
	} {
		settings := c[0] + "\nobjects: [{type: x, id: '{json:id}', " + c[1] + "}]"
		if _, err := config.Parse([]byte(declaredSource("hmac", settings)), environment()); err != nil {
			t.Errorf("%s: %v", settings, err)
		}
	}
}

// The settings can express every kind of scheme, and the resulting scheme matches them.
func TestDeclaredScheme_yaml_becomesScheme(t *testing.T) {
	t.Parallel()
	c := parse(t, declaredSource("hmac", `
schemes:
  - name: mine
    header: [X-S, X-S-#]
    in: [json:sig.nature, form:s, query:s]
    digest: sha512
    encoding: base64url
    prefix: "p="
    group: " "
    separator: ","
    spaces: true
    assign: "="
    item: v1
    key: {form: hex, strip: [a_, b_], plain_fallback: true}
    message: "[id:{query:id|lower};]{method}{url}{path}{item:n}{timestamp}{sorted_form}"
    timestamp: {from: item:t, unit: auto, unchecked: true}
    when: {from: header:X-V, is: "2"}
  - {header: X-S, method: hash, message: "{secret}{body}"}
  - header: X-S
    message: "{header:X-D}"
    body_digest: {from: header:X-D, digest: sha1, encoding: base64}
url: https://hooks.example/webhooks/a
`))
	ref := signature.MustRef
	want := []*signature.Scheme{{
		Name: "mine", Digest: signature.SHA512, Encoding: signature.Base64URL,
		Key: signature.Key{Form: signature.KeyHex, Strip: []string{"a_", "b_"}, VerbatimWithoutPrefix: true},
		Signature: signature.Layout{In: []signature.Ref{ref("header:X-S"), ref("header:X-S-#"), ref("json:sig.nature"),
			ref("form:s"), ref("query:s")},
			Prefix: "p=", Group: " ", Separator: ",", TrimSpaces: true, KeySeparator: "=", Item: "v1"},
		Timestamp: &signature.Clock{From: ref("item:t"), Unit: signature.Magnitude, Unchecked: true},
		When:      &signature.Condition{From: ref("header:X-V"), Is: "2"},
		Message:   signature.MustTemplate("[id:{query:id|lower};]{method}{url}{path}{item:n}{timestamp}{sorted_form}"),
	}, {
		Name: "hash-sha256", Method: signature.Hash,
		Signature: signature.Layout{In: []signature.Ref{ref("header:X-S")}},
		Message:   signature.MustTemplate("{secret}{body}"),
	}, {
		Name: "hmac-sha256", Signature: signature.Layout{In: []signature.Ref{ref("header:X-S")}},
		Message: signature.MustTemplate("{header:X-D}"),
		Body:    &signature.BodyDigest{From: ref("header:X-D"), Digest: signature.SHA1, Encoding: signature.Base64},
	}}
	got := c.Endpoints()[0].Provider.(*declared.Provider).Schemes()
	if diff := cmp.Diff(want, got,
		cmp.Comparer(func(a, b signature.Template) bool { return a.String() == b.String() })); diff != "" {
		t.Error(diff)
	}
}

// Each setting has a variable, so that secret values need not be in the file.
func TestDeclaredSource_variables_becomeProvider(t *testing.T) {
	t.Parallel()
	c, err := config.Parse(nil, environment("POSTERN_DATABASE_URL=postgres://x", "POSTERN_SOURCES=a",
		"POSTERN_SOURCES_A_PROVIDER=hmac", "POSTERN_SOURCES_A_SECRETS_0_NAME=n",
		"POSTERN_SOURCES_A_SECRETS_0_VALUE=token of a test", "POSTERN_SOURCES_A_SCHEME_HEADER=X-S,X-T",
		"POSTERN_SOURCES_A_SCHEME_METHOD=token", "POSTERN_SOURCES_A_SCHEME_BODY_UNSIGNED=true",
		"POSTERN_SOURCES_A_EVENTS_KEY={json:id}", "POSTERN_SOURCES_A_OBJECTS_0_TYPE=order",
		"POSTERN_SOURCES_A_OBJECTS_0_ID={json:id}"))
	must(t, err)
	spec := c.Endpoints()[0].Provider.(*declared.Provider).Spec()
	s := spec.Schemes[0]
	if s.Method != signature.Token || s.Encoding != signature.Plain || s.Name != "token" || len(s.Signature.In) != 2 ||
		len(spec.Objects) != 1 || len(spec.Events.Key) != 1 {
		t.Errorf("%+v, %+v", s, spec)
	}
	const unsigned = "POSTERN_SOURCES_A_SCHEME_BODY_UNSIGNED"
	checkRejectedBy(t, "", []string{"POSTERN_DATABASE_URL=postgres://x", "POSTERN_SOURCES=a", unsigned + "=yes"},
		unsigned+`: "yes" is neither true nor false`)
}

// Senders that use Standard Webhooks share the signature format, and the source defines the rest.
func TestStandardWebhooks_eventsSection_isApplied(t *testing.T) {
	t.Parallel()
	c := parse(t, strings.Replace(declaredSource("standardwebhooks", `
events: {type: "{json:kind}", headers: [x-more]}
objects: [{type: order, id: "{json:data.id}"}]
`), "736563726574", "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw", 1))
	e := c.Endpoints()[0]
	d := &provider.Delivery{Header: map[string][]string{"Webhook-Id": {"msg_1"}},
		Body: []byte(`{"kind": "k", "data": {"id": "7"}}`)}
	events, err := e.Provider.Identify(e.Source, d)
	if err != nil || len(events) != 1 || events[0].Key != "msg_1" || events[0].Type != "k" ||
		events[0].ObjectType != "order" || events[0].ObjectID != "7" {
		t.Errorf("%+v, %v", events, err)
	}
	if headers := strings.Join(e.Provider.Headers(), " "); !strings.Contains(headers, "X-More") ||
		!strings.Contains(headers, "Webhook-Signature") {
		t.Errorf("headers %s", headers)
	}
}

// Where a source accepts shared secrets and public keys, nobody can sign with a public key, and one
// without a prefix is reported.
func TestSecrets_publicKeyAlongsideSharedSecrets_needsPrefix(t *testing.T) {
	t.Parallel()
	public := ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)).Public().(ed25519.PublicKey)
	bare := hex.EncodeToString(public)
	parse := func(secret string) (*config.Config, error) {
		text := declaredSource("hmac", "schemes: [{header: X-S}, {header: X-P, method: ed25519}]")
		return config.Parse([]byte(strings.Replace(text, "736563726574", "'"+secret+"'", 1)), environment())
	}
	if _, err := parse(bare); err == nil || !strings.Contains(err.Error(), "put whpk_ before it") {
		t.Errorf("a bare public key: %v", err)
	}
	c, err := parse("whpk_" + bare)
	must(t, err)
	e := c.Endpoints()[0]
	for _, key := range []string{bare, string(public), "whpk_" + bare} {
		mac := hmac.New(sha256.New, []byte(key))
		mac.Write([]byte("{}"))
		d := &provider.Delivery{Header: map[string][]string{"X-S": {hex.EncodeToString(mac.Sum(nil))}},
			Body: []byte("{}")}
		if _, err := e.Provider.Verify(e.Source, d); err == nil {
			t.Errorf("signed with the public key %q, and accepted", key)
		}
	}
	d := &provider.Delivery{Header: map[string][]string{"X-P": {hex.EncodeToString(
		ed25519.Sign(ed25519.NewKeyFromSeed(make([]byte, ed25519.SeedSize)), []byte("{}")))}}, Body: []byte("{}")}
	if _, err := e.Provider.Verify(e.Source, d); err != nil {
		t.Errorf("signed with the private key: %v", err)
	}
}

const directSource = "database: {url: postgres://postern@localhost/postern}\nsources:\n  shop:\n    provider: api\n  " +
	"  secrets: [{name: n, value: a_token_of_a_test}]\n"

func direct(t *testing.T, settings string, env map[string]string) config.Endpoint {
	t.Helper()
	c, err := config.Parse([]byte(directSource+settings), func(name string) string { return env[name] })
	must(t, err)
	return c.Endpoints()[0]
}

// By default, deliveries of callers that read the response are never stored in the spool; others
// may be.
func TestRequireCommit_default_dependsOnProvider(t *testing.T) {
	t.Parallel()
	const variable = "POSTERN_SOURCES_SHOP_REQUIRE_COMMIT"
	for name, c := range map[string]struct {
		settings string
		env      map[string]string
		want     bool
	}{
		"nothing":  {"", nil, true},
		"true":     {"    require_commit: true\n", nil, true},
		"false":    {"    require_commit: false\n", nil, false},
		"variable": {"", map[string]string{variable: "false"}, false},
		"over it":  {"    require_commit: false\n", map[string]string{variable: "true"}, true},
	} {
		if got := direct(t, c.settings, c.env).RequireCommit; got != c.want {
			t.Errorf("%s: %t", name, got)
		}
	}
	for _, e := range (&config.Config{Sources: config.DemoSources()}).Endpoints() {
		if _, direct := e.Provider.(provider.DirectProvider); e.RequireCommit != direct {
			t.Errorf("%s: %t", e.Provider.Name(), e.RequireCommit)
		}
	}
	checkRejected(t, directSource+"    require_commit: maybe\n", "require_commit")
}

// A source defines what its events describe and, for JSON under a key, where type and time are. A
// CloudEvent keeps its own values.
func TestDirectSource_yaml_becomesProvider(t *testing.T) {
	t.Parallel()
	e := direct(t, `    events: {type: '{json:kind}', occurred: {from: json:at, unit: ms}, headers: [X-Tenant]}
    objects:
      - {events: ["order.*"], type: order, state: data}
      - {type: thing, id: '{json:data.number}', state: .}
`, nil)
	if e.IsCustomized {
		t.Error("the samples are said not to fit")
	}
	for name, c := range map[string]struct{ body, want string }{
		"CloudEvent": {`{"specversion":"1.0","id":"1","source":"/s","type":"order.paid","subject":"7","data":{}}`,
			"/s 1 order.paid order 7"},
		"JSON":        {`{"kind":"sent","at":1783168215250,"data":{"number":5}}`, "k sent thing 5"},
		"JSON, other": {`{"type":"sent","data":{"number":5}}`, "k sent thing 5"},
	} {
		d := &provider.Delivery{Header: http.Header{}, Body: []byte(c.body)}
		if name != "CloudEvent" {
			d.Header.Set("Idempotency-Key", "k")
		}
		got, err := e.Provider.Identify(e.Source, d)
		if err != nil || len(got) != 1 || got[0].Key+" "+got[0].Type+" "+got[0].ObjectType+" "+
			got[0].ObjectID != c.want {
			t.Errorf("%s: %+v, %v", name, got, err)
		}
	}
	if kept := strings.Join(e.Provider.Headers(), " "); !strings.Contains(kept, "X-Tenant") ||
		strings.Contains(kept, "Authorization") {
		t.Errorf("kept headers %s", kept)
	}
}

func TestDirectSource_wrongSettings_areReported(t *testing.T) {
	t.Parallel()
	for settings, want := range map[string]string{
		"    events: {key: '{json:id}'}\n":                  "sources.shop.events.key",
		"    events: {split: data}\n":                       "sources.shop.events.split",
		"    events: {every_delivery: true}\n":              "sources.shop.events.every_delivery",
		"    events: {type: '{header:Authorization}'}\n":    "sources.shop.events",
		"    scheme: {header: X-Signature}\n":               "sources.shop.scheme",
		"    objects: [{type: order, state: a, id: x y}]\n": "",
		"    objects: [{id: '{json:subject}'}]\n":           "sources.shop.objects.0.type",
		"    key: other\n":                                  "sources.shop",
	} {
		_, err := config.Parse([]byte(directSource+settings), func(string) string { return "" })
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v, want %s", settings, err, want)
		}
	}
}
