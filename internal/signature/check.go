package signature

import (
	"cmp"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/settings"
)

// Complete returns a scheme of the configuration with its defaults.
func (s Scheme) Complete() *Scheme {
	var in []Ref
	for _, name := range s.Signature.Header {
		var r Ref
		_ = r.UnmarshalText([]byte("header:" + name)) // Check reports an empty name
		in = append(in, r)
	}
	s.Signature.In, s.Signature.Header = append(in, s.Signature.In...), nil
	if s.Method == Token {
		s.Encoding = cmp.Or(s.Encoding, Plain)
	} else if s.Message.IsZero() {
		s.Message = bodyTemplate
	}
	if s.Name == "" {
		s.Name = string(cmp.Or(s.Method, HMAC))
		if s.Method != Token && s.Method != Ed25519 {
			s.Name += "-" + string(cmp.Or(s.Digest, SHA256))
		}
	}
	return &s
}

var bodyTemplate = MustTemplate("{body}")

// CheckConfigured is Check for a scheme of the configuration. It also rejects settings without an
// effect, and requires body_unsigned exactly where the signature does not cover the body.
func (s *Scheme) CheckConfigured(c settings.Checker) {
	known := c.Count()
	switch key := c.Under("key"); {
	case !settings.IsZero(s.Key) && !s.isHMAC() && s.Method != Token:
		key.Fail("", "only hmac derives a key from the secret: leave this out")
	case s.Key.VerbatimWithoutPrefix && len(s.Key.Strip) == 0:
		key.Fail("plain_fallback", "has an effect only where strip lists prefixes")
	}
	if s.When != nil && s.When.Is == "" {
		c.Under("when").Fail("is", "is not set: write the required value")
	}
	s.Check(c)
	covered := s.Method != Token && (s.Body != nil || s.Message.usesKind(Body, SortedForm))
	switch {
	case c.Count() > known: // coverage depends on these settings
	case !covered && !s.BodyUnsigned:
		c.Fail("body_unsigned", "is not set: this scheme authenticates the sender but not the body, so that anyone "+
			"who reads one delivery can send any body; sign the body ({body} in message, or body_digest), or write "+
			"body_unsigned: true to take that risk")
	case covered && s.BodyUnsigned:
		c.Fail("body_unsigned", "the message covers the body: leave this out")
	}
}

// Check reports what makes a scheme invalid, whatever the secrets are. In particular, a time or a
// digest of the body must be covered by the signature, because otherwise anyone could change it.
func (s *Scheme) Check(c settings.Checker) {
	known := c.Count()
	CheckFields(c, s)
	s.checkLayout(c)
	switch {
	case s.Name == "":
		c.Fail("name", "is not set")
	case s.Encoding == Plain && s.Method != Token:
		c.Fail("encoding", "plain is for tokens only: write hex, base64 or base64url")
	case s.Key.RequirePrefix && len(s.Key.Strip) == 0 && !s.IsAsymmetric():
		c.Fail("key", "its keys require a prefix, but no prefix is set")
	}
	if c.Count() > known {
		return // coverage depends on these settings
	}
	if s.Method == Token {
		s.checkToken(c)
		return
	}
	for n := range 1 + len(s.Or) {
		if s.checkMessage(c, s.messageAt(n)); c.Count() > known {
			return
		}
	}
	if s.Timestamp != nil {
		s.checkTime(c.Under("timestamp"))
	}
	if s.Body != nil && !s.covers(s.Body.From, None) {
		c.Under("body_digest").Fail("from", "this digest is not signed, so anyone can change it with the body: put "+
			"{%s} into message", s.Body.From)
	}
}

func (s *Scheme) checkLayout(c settings.Checker) {
	l := s.Signature
	switch {
	case len(l.In) == 0:
		c.Fail("header", "is not set: name the header with the signature, or set in: json:PATH, form:FIELD or "+
			"query:NAME")
	case l.Separator == "" && (l.KeySeparator != "" || l.Group != "" || l.Skip != 0 || l.TrimSpaces):
		c.Fail("separator", "is not set: assign, group, skip and spaces apply to values with several items; for "+
			"a single signature use prefix")
	case l.Item != "" && l.KeySeparator == "":
		c.Fail("assign", "is not set: item is the key of the signatures, so write what separates keys from values, "+
			"e.g. '='")
	case l.Skip < 0, l.Skip > 0 && l.KeySeparator != "":
		c.Fail("skip", "counts items without keys, from 0: with assign set, write the key of the signatures in item")
	case l.Group != "" && l.Group == l.Separator:
		c.Fail("group", "separates groups of items: it must differ from separator")
	}
}

func (s *Scheme) checkToken(c settings.Checker) {
	for key, set := range map[string]bool{"message": !s.Message.IsZero() || len(s.Or) > 0,
		"timestamp": s.Timestamp != nil, "body_digest": s.Body != nil, "digest": s.Digest != ""} {
		if set {
			c.Fail(key, "a token has no signed message: leave this out")
		}
	}
}

func (s *Scheme) checkMessage(c settings.Checker, t *Template) {
	switch {
	case s.isConstantMessage(t):
		c.Fail("message", "contains nothing that differs between deliveries, so all deliveries have the same "+
			"signature, which is a token: write method: token without message, and use that signature as the secret")
	case t.usesKind(Secret) != (s.Method == Hash):
		c.Fail("message", "{secret} is allowed, and required, in the message of method hash only: it is the part "+
			"that only the sender knows")
	case t.usesKind(Timestamp) && s.Timestamp == nil:
		c.Fail("timestamp", "is not set, and message contains {timestamp}: write where the time is, e.g. timestamp: "+
			"{from: header:X-Timestamp}")
	case t.usesKind(Item) && s.Signature.Separator == "":
		c.Fail("separator", "is not set, and message contains {item:...}: write what separates the items")
	}
	if !slices.ContainsFunc(s.Signature.In, func(r Ref) bool { return !t.contains(r) }) {
		c.Fail("message", "%s covers %s, and therefore the signature itself: no sender can sign that", t,
			s.Signature.In[0])
	}
}

func (s *Scheme) checkTime(c settings.Checker) {
	from := s.Timestamp.From
	switch {
	case from.Kind == Item && s.Signature.Separator == "":
		c.Fail("from", "item:%s is another item of the signature's header: set separator", from.Name)
	case s.Timestamp.Tolerance < 0:
		c.Fail("tolerance", "is negative")
	case !s.covers(from, Timestamp):
		c.Fail("from", "this time is not signed, so anyone can change it: put {timestamp} into message as the sender "+
			"does, or leave timestamp out")
	}
}

// covers reports whether each message covers a reference: directly, by the kind that represents it,
// or as a part of signed data.
func (s *Scheme) covers(from Ref, standsFor Kind) bool {
	for n := range 1 + len(s.Or) {
		if t := s.messageAt(n); !t.Covers(from) && (standsFor == None || !t.usesKind(standsFor)) {
			return false
		}
	}
	return true
}

// Covers reports whether a template contains the value of a reference, in any format, or all data
// that it is a part of.
func (t *Template) Covers(from Ref) bool {
	return t.contains(from) || slices.ContainsFunc(t.Refs(), func(r Ref) bool {
		return r.Kind == from.Kind && strings.EqualFold(r.Name, from.Name)
	})
}

// isHMAC reports whether signatures are HMACs.
func (s *Scheme) isHMAC() bool { return s.Method == HMAC || s.Method == "" }

// IsConstant reports whether every delivery has the same signature, because its message does not
// depend on the delivery. Such a signature is a token.
func (s *Scheme) IsConstant() bool { return s.Method != Token && s.isConstantMessage(&s.Message) }

func (s *Scheme) isConstantMessage(t *Template) bool {
	isConstantRef := func(r Ref) bool { return r.Kind == Secret || r.Kind == HTTPMethod }
	return !slices.ContainsFunc(t.Refs(), func(r Ref) bool { return !isConstantRef(r) })
}

// IsExtendable reports whether someone without the secret can append bytes to the signed message. A
// digest is the state of its hash, so hashing can continue from it, unless the secret ends the
// message.
func (s *Scheme) IsExtendable() bool {
	for n := range 1 + len(s.Or) {
		if s.Method == Hash && !s.messageAt(n).endsIn(Secret) {
			return true
		}
	}
	return false
}

// BodyToken returns the first place in the body where the sender sends the token itself.
func (s *Scheme) BodyToken() (Ref, bool) {
	i := slices.IndexFunc(s.Signature.In, func(r Ref) bool { return r.Kind == JSON || r.Kind == Form })
	if s.Method != Token || i < 0 {
		return Ref{}, false
	}
	return s.Signature.In[i], true
}

// contains reports whether a template contains all data that a reference is a part of.
func (t *Template) contains(part Ref) bool {
	switch part.Kind {
	case JSON:
		return t.usesKind(Body)
	case Form:
		return t.usesKind(Body, SortedForm)
	case Query:
		return t.usesKind(URL, Path)
	}
	return false
}
