package signature

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Check returns an error if the scheme itself is invalid, whatever the secrets are. In particular,
// a time or a digest of the body must be covered by the signature, because otherwise anyone could
// change it.
func (s *Scheme) Check() error {
	for _, check := range []func() error{s.checkNumbers, s.checkLayout, s.checkMessages, s.checkTime, s.checkDigest} {
		if err := check(); err != nil {
			return fmt.Errorf("scheme %s: %w", s.Name, err)
		}
	}
	return nil
}

func (s *Scheme) checkNumbers() error {
	ok := s.Method >= HMAC && s.Method <= Token && s.Digest >= SHA256 && s.Digest <= SHA512 &&
		s.Encoding >= Hex && s.Encoding <= Plain && s.Key.Form >= KeyText && s.Key.Form <= KeyNFKD
	if ok && s.Timestamp != nil {
		ok = s.Timestamp.Unit >= Seconds && s.Timestamp.Unit <= Magnitude
	}
	if ok && s.Body != nil {
		ok = s.Body.Digest >= SHA256 && s.Body.Digest <= SHA512 && s.Body.Encoding >= Hex &&
			s.Body.Encoding <= Base64URL
	}
	switch {
	case s.Name == "":
		return errors.New("it has no name")
	case !ok:
		return errors.New("a method, digest, encoding, key form or unit does not exist")
	case s.Encoding == Plain && s.Method != Token:
		return errors.New("only a token is plain text")
	case s.Key.RequirePrefix && len(s.Key.Strip) == 0 && !s.IsAsymmetric():
		return errors.New("its keys require a prefix, but no prefix is set")
	}
	return nil
}

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

// requestKinds are the kinds of references where a sender can write a value.
var requestKinds = []Kind{Header, JSON, Form, Query}

func (s *Scheme) checkLayout() error {
	l := s.Signature
	for _, ref := range l.In {
		if !slices.Contains(requestKinds, ref.Kind) || ref.Name == "" {
			return fmt.Errorf("a signature cannot be in %s; write header:NAME, json:PATH, form:FIELD or query:NAME",
				ref)
		}
	}
	switch {
	case len(l.In) == 0:
		return errors.New("it does not say where the signature is")
	case l.Separator == "" && (l.KeySeparator != "" || l.Skip != 0):
		return errors.New("items need a separator")
	case l.KeySeparator == "" && l.Item != "":
		return errors.New("an item's key needs a separator from its value")
	case l.KeySeparator != "" && l.Skip != 0:
		return errors.New("items have either keys or positions, not both")
	case s.When != nil && !slices.Contains(requestKinds, s.When.From.Kind):
		return fmt.Errorf("%s cannot show which scheme was used", s.When.From)
	}
	return nil
}

func (s *Scheme) checkMessages() error {
	if s.Method == Token {
		if s.Message.String() != "" || len(s.Or) > 0 || s.Timestamp != nil || s.Body != nil {
			return errors.New("a token signs nothing: it has no message, no time and no digest of the body")
		}
		return nil
	}
	for n := range 1 + len(s.Or) {
		t := s.messageAt(n)
		switch {
		case s.isConstantMessage(t):
			return errors.New("the signed message contains nothing of the request")
		case t.usesKind(Root, Index, Content, EventType):
			return fmt.Errorf("%s refers to events, which are not read before the verification", t)
		case t.usesKind(Secret) != (s.Method == Hash):
			return fmt.Errorf("%s: a message contains the secret if the method is hash, and only then", t)
		case t.usesKind(Item) && s.Signature.Separator == "":
			return fmt.Errorf("%s refers to an item, but the signature has no other items", t)
		case t.usesKind(Timestamp) && s.Timestamp == nil:
			return fmt.Errorf("%s refers to a time, but the scheme does not say where the time is", t)
		}
		for _, ref := range s.Signature.In {
			if t.contains(ref) {
				return fmt.Errorf("%s covers %s, and therefore the signature itself", t, ref)
			}
		}
	}
	return nil
}

func (s *Scheme) checkTime() error {
	switch {
	case s.Timestamp == nil:
		return nil
	case s.Timestamp.From.Kind == Item && s.Signature.Separator == "":
		return errors.New("the time is an item, but the signature has no other items")
	case s.Timestamp.From.Kind != Item && !slices.Contains(requestKinds, s.Timestamp.From.Kind):
		return fmt.Errorf("%s is not a valid place for a time", s.Timestamp.From)
	case s.Timestamp.Tolerance < 0:
		return errors.New("its tolerance is negative")
	}
	return s.checkCovered("the time", s.Timestamp.From, Timestamp)
}

func (s *Scheme) checkDigest() error {
	if s.Body == nil {
		return nil
	}
	return s.checkCovered("the body's digest", s.Body.From, None)
}

// checkCovered checks that each message covers a reference: directly, by the kind that represents
// it, or as a part of signed data.
func (s *Scheme) checkCovered(subject string, from Ref, standsFor Kind) error {
	for n := range 1 + len(s.Or) {
		t := s.messageAt(n)
		same := slices.ContainsFunc(t.Refs(), func(r Ref) bool {
			return r.Kind == from.Kind && strings.EqualFold(r.Name, from.Name)
		})
		if !same && !t.contains(from) && (standsFor == None || !t.usesKind(standsFor)) {
			return fmt.Errorf("%s in %s is not signed: %s does not contain it", subject, from, t)
		}
	}
	return nil
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
