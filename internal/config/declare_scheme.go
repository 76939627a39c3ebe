package config

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// The kinds of references that the settings of a scheme accept.
var (
	signaturePlaceKinds = refKinds{signature.Header, signature.JSON, signature.Form, signature.Query}
	timeKinds           = refKinds{signature.Header, signature.Item, signature.JSON, signature.Form, signature.Query}
	messageKinds        = refKinds{signature.Body, signature.Timestamp, signature.Header, signature.JSON,
		signature.Form,
		signature.Query, signature.Item,
		signature.HTTPMethod, signature.URL, signature.Path, signature.SortedForm, signature.Secret}
)

// scheme reads how a sender signs.
func (b *providerBuilder) scheme(s *Scheme) *signature.Scheme {
	method := choose(b, "method", s.Method, choice[signature.Method]{"hmac", signature.HMAC},
		choice[signature.Method]{"hash", signature.Hash},
		choice[signature.Method]{"ed25519", signature.Ed25519}, choice[signature.Method]{"ecdsa", signature.ECDSA},
		choice[signature.Method]{"rsa", signature.RSA}, choice[signature.Method]{"token", signature.Token})
	out := &signature.Scheme{
		Name:      s.Name,
		Method:    method,
		Digest:    b.digest("digest", s.Digest),
		Key:       b.key(&s.Key, method),
		Signature: b.layout(s),
		Encoding: b.encoding("encoding",
			cmp.Or(s.Encoding, map[bool]string{true: "plain"}[method == signature.Token])),
	}
	if out.Name == "" {
		out.Name = b.schemeName(s)
	}
	if out.Encoding == signature.Plain && method != signature.Token {
		b.fail("encoding", "plain is for tokens only: write hex, base64 or base64url")
	}
	if s.When != (Condition{}) {
		when := b.condition("when", s.When, signaturePlaceKinds)
		out.When = &when
	}
	b.coverage(s, out)
	return out
}

// schemeName returns the name of a scheme without a configured name.
func (b *providerBuilder) schemeName(s *Scheme) string {
	name := cmp.Or(s.Method, "hmac")
	if name == "token" || name == "ed25519" {
		return name
	}
	return name + "-" + cmp.Or(s.Digest, "sha256")
}

func (b *providerBuilder) digest(key, word string) signature.Digest {
	return choose(b, key, word, choice[signature.Digest]{"sha256", signature.SHA256}, choice[signature.Digest]{"sha1",
		signature.SHA1}, choice[signature.Digest]{"sha512", signature.SHA512})
}

func (b *providerBuilder) encoding(key, word string) signature.Encoding {
	return choose(b, key, word, choice[signature.Encoding]{"hex", signature.Hex}, choice[signature.Encoding]{"base64",
		signature.Base64}, choice[signature.Encoding]{"base64url", signature.Base64URL},
		choice[signature.Encoding]{"plain", signature.Plain})
}

func (b *providerBuilder) key(k *SchemeKey, method signature.Method) signature.Key {
	b = b.under("key")
	if !isZero(*k) && method != signature.HMAC && method != signature.Token {
		b.fail("", "only hmac derives a key from the secret: leave this out")
	}
	if k.PlainElse && len(k.Strip) == 0 {
		b.fail("plain_fallback", "has an effect only where strip lists prefixes")
	}
	return signature.Key{
		Form: choose(b, "form", k.Form, choice[signature.KeyForm]{"text", signature.KeyText},
			choice[signature.KeyForm]{"base64", signature.KeyBase64},
			choice[signature.KeyForm]{"hex", signature.KeyHex}, choice[signature.KeyForm]{"sha1", signature.KeySHA1},
			choice[signature.KeyForm]{"nfkd", signature.KeyNFKD}),
		Strip:                 k.Strip,
		VerbatimWithoutPrefix: k.PlainElse,
	}
}

// layout reads where the signatures are and how they are written.
func (b *providerBuilder) layout(s *Scheme) signature.Layout {
	l := signature.Layout{Prefix: s.Prefix, Group: s.Group, Separator: s.Separator, TrimSpaces: s.Spaces,
		KeySeparator: s.Assign,
		Item:         s.Item, Skip: s.Skip}
	for _, name := range s.Header {
		l.In = append(l.In, b.ref("header", "header:"+name, signaturePlaceKinds))
	}
	for _, place := range s.In {
		l.In = append(l.In, b.ref("in", place, signaturePlaceKinds))
	}
	switch {
	case len(l.In) == 0:
		b.fail("header", "is not set: name the header with the signature, or set in: json:PATH, form:FIELD or "+
			"query:NAME")
	case s.Separator == "" && (s.Assign != "" || s.Group != "" || s.Skip != 0 || s.Spaces):
		b.fail("separator", "is not set: assign, group, skip and spaces apply to values with several items; for "+
			"a single signature use prefix")
	case s.Item != "" && s.Assign == "":
		b.fail("assign", "is not set: item is the key of the signatures, so write what separates keys from values, "+
			"e.g. '='")
	case s.Skip < 0, s.Skip > 0 && s.Assign != "":
		b.fail("skip", "counts items without keys, from 0: with assign set, write the key of the signatures in item")
	case s.Group != "" && s.Group == s.Separator:
		b.fail("group", "separates groups of items: it must differ from separator")
	}
	return l
}

// condition reads a value that a request must have.
func (b *providerBuilder) condition(key string, c Condition, allowed refKinds) signature.Condition {
	b = b.under(key)
	if c.Is == "" {
		b.fail("is", "is not set: write the required value")
	}
	return signature.Condition{From: b.ref("from", c.From, allowed), Is: c.Is}
}

// coverage reads what a scheme signs: message, time and body.
func (b *providerBuilder) coverage(s *Scheme, out *signature.Scheme) {
	if out.Method == signature.Token {
		b.rejectTokenSettings(s)
		return
	}
	known := b.problemCount()
	out.Message = b.template("message", cmp.Or(s.Message, "{body}"), messageKinds)
	if b.problemCount() > known {
		return // the message is unknown, so checks that depend on it would report wrong problems
	}
	refs := out.Message.Refs()
	if out.IsConstant() {
		b.fail("message", "contains nothing that differs between deliveries, so all deliveries have the same "+
			"signature, which is a token: write method: token without message, and use that signature as the secret")
		return
	}
	if hashed := slices.ContainsFunc(refs, isKind(signature.Secret)); hashed != (out.Method == signature.Hash) {
		b.fail("message", "{secret} is allowed, and required, in the message of method hash only: it is the part "+
			"that only the sender knows")
	}
	if s.Timestamp != (SchemeTime{}) {
		out.Timestamp = b.timestamp(&s.Timestamp, s, refs)
	} else if slices.ContainsFunc(refs, isKind(signature.Timestamp)) {
		b.fail("timestamp", "is not set, and message contains {timestamp}: write where the time is, e.g. timestamp: "+
			"{from: header:X-Timestamp}")
	}
	if slices.ContainsFunc(refs, isKind(signature.Item)) && s.Separator == "" {
		b.fail("separator", "is not set, and message contains {item:...}: write what separates the items")
	}
	if s.BodyDigest != (BodyDigest{}) {
		out.Body = b.bodyDigest(&s.BodyDigest, refs)
	}
	b.checkBodyUnsigned(s, out.Body != nil || slices.ContainsFunc(refs, isKind(signature.Body, signature.SortedForm)))
}

// rejectTokenSettings rejects settings that do not apply to a token.
func (b *providerBuilder) rejectTokenSettings(s *Scheme) {
	for key, set := range map[string]bool{"message": s.Message != "", "timestamp": s.Timestamp != (SchemeTime{}),
		"body_digest": s.BodyDigest != (BodyDigest{}), "digest": s.Digest != ""} {
		if set {
			b.fail(key, "a token has no signed message: leave this out")
		}
	}
	b.checkBodyUnsigned(s, false)
}

// checkBodyUnsigned requires body_unsigned exactly where the signature does not cover the body.
func (b *providerBuilder) checkBodyUnsigned(s *Scheme, covered bool) {
	switch {
	case !covered && !s.BodyUnsigned:
		b.fail("body_unsigned", "is not set: this scheme authenticates the sender but not the body, so that anyone "+
			"who reads one delivery can send any body; sign the body ({body} in message, or body_digest), or write "+
			"body_unsigned: true to take that risk")
	case covered && s.BodyUnsigned:
		b.fail("body_unsigned", "the message covers the body: leave this out")
	}
}

func isKind(wanted ...signature.Kind) func(signature.Ref) bool {
	return func(r signature.Ref) bool { return slices.Contains(wanted, r.Kind) }
}

// timestamp reads the signed time.
func (b *providerBuilder) timestamp(t *SchemeTime, s *Scheme, message []signature.Ref) *signature.Clock {
	b = b.under("timestamp")
	from := b.ref("from", t.From, timeKinds)
	if from.Kind == signature.Item && s.Separator == "" {
		b.fail("from", "item:%s is another item of the signature's header: set separator", from.Name)
	}
	if from.Kind != signature.None && !coversValue(message, from) &&
		!slices.ContainsFunc(message, isKind(signature.Timestamp)) {
		b.fail("from", "this time is not signed, so anyone can change it: put {timestamp} into message as the sender "+
			"does, or leave timestamp out")
	}
	return &signature.Clock{
		From: from,
		Unit: choose(b, "unit", t.Unit, choice[signature.Unit]{"s", signature.Seconds},
			choice[signature.Unit]{"ms", signature.Milliseconds},
			choice[signature.Unit]{"rfc3339", signature.RFC3339}, choice[signature.Unit]{"auto", signature.Magnitude}),
		Unchecked: t.Unchecked,
	}
}

// coversValue reports whether a message covers the value of a reference: directly, or as a part of
// the body or the URL.
func coversValue(message []signature.Ref, ref signature.Ref) bool {
	whole := map[signature.Kind][]signature.Kind{
		signature.JSON:  {signature.Body},
		signature.Form:  {signature.Body, signature.SortedForm},
		signature.Query: {signature.URL, signature.Path},
	}[ref.Kind]
	return slices.Contains(message, ref) || slices.ContainsFunc(message, isKind(whole...))
}

func (b *providerBuilder) bodyDigest(d *BodyDigest, message []signature.Ref) *signature.BodyDigest {
	b = b.under("body_digest")
	out := &signature.BodyDigest{From: b.ref("from", d.From, refKinds{signature.Header, signature.Query}),
		Digest: b.digest("digest", d.Digest), Encoding: b.encoding("encoding", d.Encoding)}
	if out.From.Kind != signature.None && !coversValue(message, out.From) {
		b.fail("from", "this digest is not signed, so anyone can change it with the body: put {%s} into message",
			out.From)
	}
	return out
}

// requireKeyPrefix marks the schemes of key pairs of a source that also has a shared secret: there
// a public key needs PEM format or the prefix whpk_. Without that mark a public key could be used
// as a shared secret, and everyone could sign.
func requireKeyPrefix(schemes []*signature.Scheme) {
	if !mixesKeyKinds(schemes) {
		return
	}
	for _, s := range schemes {
		s.Key.RequirePrefix = s.IsAsymmetric()
	}
}

// mixesKeyKinds reports whether a source uses both shared secrets and public keys.
func mixesKeyKinds(schemes []*signature.Scheme) bool {
	public := func(s *signature.Scheme) bool { return s.IsAsymmetric() }
	shared := func(s *signature.Scheme) bool { return !s.IsAsymmetric() }
	return slices.ContainsFunc(schemes, public) && slices.ContainsFunc(schemes, shared)
}

// checkKeyPairs requires a public key among the secrets for each key-pair scheme that is configured
// alongside a shared-secret scheme. It cannot recognize a public key without prefix among the other
// secrets, but it can see that none has one.
func checkKeyPairs(schemes []*signature.Scheme, secrets []provider.Secret) error {
	if !mixesKeyKinds(schemes) {
		return nil
	}
	for _, s := range schemes {
		fits := func(secret provider.Secret) bool { return s.CheckSecret(secret.Value) == nil }
		if s.IsAsymmetric() && !slices.ContainsFunc(secrets, fits) {
			return fmt.Errorf("secrets: none is a public key for scheme %s; write it as PEM, or put whpk_ before "+
				"it: alongside a scheme with a shared secret, "+
				"a public key without prefix would be used as that secret, and everyone could sign", s.Name)
		}
	}
	return nil
}
