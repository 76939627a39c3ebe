package config

import (
	"cmp"
	"fmt"
	"slices"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

// What the settings of a scheme may refer to.
var (
	placeKinds   = kinds{signature.Header, signature.JSON, signature.Form, signature.Query}
	timeKinds    = kinds{signature.Header, signature.Item, signature.JSON, signature.Form, signature.Query}
	messageKinds = kinds{signature.Body, signature.Timestamp, signature.Header, signature.JSON, signature.Form, signature.Query, signature.Item,
		signature.HTTPMethod, signature.URL, signature.Path, signature.SortedForm, signature.Secret}
)

// scheme reads how a sender signs.
func (b *builder) scheme(s *Scheme) *signature.Scheme {
	method := oneOf(b, "method", s.Method, choice[signature.Method]{"hmac", signature.HMAC}, choice[signature.Method]{"hash", signature.Hash},
		choice[signature.Method]{"ed25519", signature.Ed25519}, choice[signature.Method]{"ecdsa", signature.ECDSA},
		choice[signature.Method]{"rsa", signature.RSA}, choice[signature.Method]{"token", signature.Token})
	out := &signature.Scheme{
		Name:      s.Name,
		Method:    method,
		Digest:    b.digest("digest", s.Digest),
		Key:       b.key(&s.Key, method),
		Signature: b.layout(s),
		Encoding:  b.encoding("encoding", cmp.Or(s.Encoding, map[bool]string{true: "plain"}[method == signature.Token])),
	}
	if out.Name == "" {
		out.Name = b.schemeName(s)
	}
	if out.Encoding == signature.Plain && method != signature.Token {
		b.fail("encoding", "only a token is written plainly: write hex, base64 or base64url")
	}
	if s.When != (Condition{}) {
		when := b.condition("when", s.When, placeKinds)
		out.When = &when
	}
	b.signed(s, out)
	return out
}

// schemeName is what an unnamed scheme is called.
func (b *builder) schemeName(s *Scheme) string {
	name := cmp.Or(s.Method, "hmac")
	if name == "token" || name == "ed25519" {
		return name
	}
	return name + "-" + cmp.Or(s.Digest, "sha256")
}

func (b *builder) digest(key, word string) signature.Digest {
	return oneOf(b, key, word, choice[signature.Digest]{"sha256", signature.SHA256}, choice[signature.Digest]{"sha1", signature.SHA1},
		choice[signature.Digest]{"sha512", signature.SHA512})
}

func (b *builder) encoding(key, word string) signature.Encoding {
	return oneOf(b, key, word, choice[signature.Encoding]{"hex", signature.Hex}, choice[signature.Encoding]{"base64", signature.Base64},
		choice[signature.Encoding]{"base64url", signature.Base64URL}, choice[signature.Encoding]{"plain", signature.Plain})
}

func (b *builder) key(k *SchemeKey, method signature.Method) signature.Key {
	b = b.under("key")
	if !isZero(*k) && method != signature.HMAC && method != signature.Token {
		b.fail("", "only an hmac has a key that is made of the secret: leave this out")
	}
	if k.PlainElse && len(k.Strip) == 0 {
		b.fail("plain_else", "is of use only where strip names prefixes")
	}
	return signature.Key{
		Form: oneOf(b, "form", k.Form, choice[signature.KeyForm]{"text", signature.KeyText}, choice[signature.KeyForm]{"base64", signature.KeyBase64},
			choice[signature.KeyForm]{"hex", signature.KeyHex}, choice[signature.KeyForm]{"sha1", signature.KeySHA1},
			choice[signature.KeyForm]{"nfkd", signature.KeyNFKD}),
		Strip:     k.Strip,
		PlainElse: k.PlainElse,
	}
}

// layout reads where the signatures sit and how they are written.
func (b *builder) layout(s *Scheme) signature.Layout {
	l := signature.Layout{Prefix: s.Prefix, Group: s.Group, Separator: s.Separator, Spaces: s.Spaces, Assign: s.Assign, Item: s.Item, Skip: s.Skip}
	for _, name := range s.Header {
		l.In = append(l.In, b.ref("header", "header:"+name, placeKinds))
	}
	for _, place := range s.In {
		l.In = append(l.In, b.ref("in", place, placeKinds))
	}
	switch {
	case len(l.In) == 0:
		b.fail("header", "is not set: name the header with the signature, or set in: json:PATH, form:FIELD or query:NAME")
	case s.Separator == "" && (s.Assign != "" || s.Group != "" || s.Skip != 0 || s.Spaces):
		b.fail("separator", "is not set: assign, group, skip and spaces are for places that hold several items; a lone signature's beginning is its prefix")
	case s.Item != "" && s.Assign == "":
		b.fail("assign", "is not set: item is the key of the signatures, so say what separates keys from values, e.g. '='")
	case s.Skip < 0, s.Skip > 0 && s.Assign != "":
		b.fail("skip", "counts items that have no keys, from 0: with assign set, name the key of the signatures in item")
	case s.Group != "" && s.Group == s.Separator:
		b.fail("group", "separates groups of items, so it is another text than separator")
	}
	return l
}

// condition reads a value that must be as it says.
func (b *builder) condition(key string, c Condition, allowed kinds) signature.Condition {
	b = b.under(key)
	if c.Is == "" {
		b.fail("is", "is not set: say what the value must be")
	}
	return signature.Condition{From: b.ref("from", c.From, allowed), Is: c.Is}
}

// signed reads what a scheme covers: message, time and body.
func (b *builder) signed(s *Scheme, out *signature.Scheme) {
	if out.Method == signature.Token {
		b.token(s)
		return
	}
	known := b.problems()
	out.Message = b.template("message", cmp.Or(s.Message, "{body}"), messageKinds)
	if b.problems() > known {
		return // what it covers is not known, so that nothing that follows from it could be told
	}
	refs := out.Message.Refs()
	if out.Constant() {
		b.fail("message", "holds nothing that differs between deliveries, so that all have one signature, which is a token: "+
			"write method: token without message, and give that signature as the secret")
		return
	}
	if hashed := slices.ContainsFunc(refs, isKind(signature.Secret)); hashed != (out.Method == signature.Hash) {
		b.fail("message", "{secret} stands in the message of method hash, and in no other: there it is what only the sender knows")
	}
	if s.Timestamp != (SchemeTime{}) {
		out.Timestamp = b.clock(&s.Timestamp, s, refs)
	} else if slices.ContainsFunc(refs, isKind(signature.Timestamp)) {
		b.fail("timestamp", "is not set, and message has {timestamp}: say where the time stands, e.g. timestamp: {from: header:X-Timestamp}")
	}
	if slices.ContainsFunc(refs, isKind(signature.Item)) && s.Separator == "" {
		b.fail("separator", "is not set, and message has an {item:...}: say what separates the items")
	}
	if s.BodyDigest != (BodyDigest{}) {
		out.Body = b.bodyDigest(&s.BodyDigest, refs)
	}
	b.consent(s, out.Body != nil || slices.ContainsFunc(refs, isKind(signature.Body, signature.SortedForm)))
}

// token refuses what a token has none of.
func (b *builder) token(s *Scheme) {
	for key, set := range map[string]bool{"message": s.Message != "", "timestamp": s.Timestamp != (SchemeTime{}), "body_digest": s.BodyDigest != (BodyDigest{}), "digest": s.Digest != ""} {
		if set {
			b.fail(key, "a token signs nothing: leave this out")
		}
	}
	b.consent(s, false)
}

// consent wants it said that nothing proves the body, and said only where that is so.
func (b *builder) consent(s *Scheme, covered bool) {
	switch {
	case !covered && !s.BodyUnsigned:
		b.fail("body_unsigned", "is not set: this scheme proves the sender and not the body, so that whoever sees one delivery can send any body; "+
			"sign the body ({body} in message, or body_digest), or write body_unsigned: true to take that risk")
	case covered && s.BodyUnsigned:
		b.fail("body_unsigned", "the message covers the body: leave this out")
	}
}

func isKind(wanted ...signature.Kind) func(signature.Ref) bool {
	return func(r signature.Ref) bool { return slices.Contains(wanted, r.Kind) }
}

// clock reads the signed time.
func (b *builder) clock(t *SchemeTime, s *Scheme, message []signature.Ref) *signature.Clock {
	b = b.under("timestamp")
	from := b.ref("from", t.From, timeKinds)
	if from.Kind == signature.Item && s.Separator == "" {
		b.fail("from", "item:%s is an item beside the signature, so set separator", from.Name)
	}
	if from.Kind != signature.None && !signs(message, from) && !slices.ContainsFunc(message, isKind(signature.Timestamp)) {
		b.fail("from", "this time is not signed, so anyone can change it: put {timestamp} into message as the sender does, or leave timestamp out")
	}
	return &signature.Clock{
		From: from,
		Unit: oneOf(b, "unit", t.Unit, choice[signature.Unit]{"s", signature.Seconds}, choice[signature.Unit]{"ms", signature.Milliseconds},
			choice[signature.Unit]{"rfc3339", signature.RFC3339}, choice[signature.Unit]{"auto", signature.Magnitude}),
		Unchecked: t.Unchecked,
	}
}

// signs tells whether a message covers what a reference names: itself, or as a part of the body or the URL.
func signs(message []signature.Ref, ref signature.Ref) bool {
	whole := map[signature.Kind][]signature.Kind{
		signature.JSON:  {signature.Body},
		signature.Form:  {signature.Body, signature.SortedForm},
		signature.Query: {signature.URL, signature.Path},
	}[ref.Kind]
	return slices.Contains(message, ref) || slices.ContainsFunc(message, isKind(whole...))
}

func (b *builder) bodyDigest(d *BodyDigest, message []signature.Ref) *signature.BodyDigest {
	b = b.under("body_digest")
	out := &signature.BodyDigest{From: b.ref("from", d.From, kinds{signature.Header, signature.Query}), Digest: b.digest("digest", d.Digest), Encoding: b.encoding("encoding", d.Encoding)}
	if out.From.Kind != signature.None && !signs(message, out.From) {
		b.fail("from", "this digest is not signed, so anyone can change it with the body: put {%s} into message", out.From)
	}
	return out
}

// prefixKeyPairs lets public keys say that they are keys where a shared secret is taken as well: one that were taken for a shared
// secret would let everyone sign.
func prefixKeyPairs(schemes []*signature.Scheme) {
	if !mixed(schemes) {
		return
	}
	for _, s := range schemes {
		s.Key.Prefixed = s.Asymmetric()
	}
}

// mixed tells whether a source takes both shared secrets and public keys.
func mixed(schemes []*signature.Scheme) bool {
	public := func(s *signature.Scheme) bool { return s.Asymmetric() }
	shared := func(s *signature.Scheme) bool { return !s.Asymmetric() }
	return slices.ContainsFunc(schemes, public) && slices.ContainsFunc(schemes, shared)
}

// checkKeyPairs wants a public key among the secrets for each scheme of a key pair that stands beside one of a shared secret. Which of
// the other secrets is a bare public key cannot be told; that one is missing can.
func checkKeyPairs(schemes []*signature.Scheme, secrets []provider.Secret) error {
	if !mixed(schemes) {
		return nil
	}
	for _, s := range schemes {
		fits := func(secret provider.Secret) bool { return s.CheckSecret(secret.Value) == nil }
		if s.Asymmetric() && !slices.ContainsFunc(secrets, fits) {
			return fmt.Errorf("secrets: none is a public key for scheme %s; give it as PEM, or write whpk_ before it: beside a scheme with a shared secret "+
				"a bare public key would be taken for that secret, and everyone could sign", s.Name)
		}
	}
	return nil
}
