package signature

import (
	"errors"
	"fmt"
	"slices"
	"strings"
)

// Check tells what is wrong with a scheme itself, whatever its secrets; nil if it can prove what it says. Above all a time, or a
// digest of the body, that no signature covers is no proof: anyone could write another.
func (s *Scheme) Check() error {
	for _, check := range []func() error{s.checkNumbers, s.checkLayout, s.checkMessages, s.checkTime, s.checkDigest} {
		if err := check(); err != nil {
			return fmt.Errorf("scheme %s: %w", s.Name, err)
		}
	}
	return nil
}

func (s *Scheme) checkNumbers() error {
	ok := s.Method >= HMAC && s.Method <= Token && s.Digest >= SHA256 && s.Digest <= SHA512 && s.Encoding >= Hex && s.Encoding <= Plain &&
		s.Key.Form >= KeyText && s.Key.Form <= KeyNFKD
	if ok && s.Timestamp != nil {
		ok = s.Timestamp.Unit >= Seconds && s.Timestamp.Unit <= Magnitude
	}
	if ok && s.Body != nil {
		ok = s.Body.Digest >= SHA256 && s.Body.Digest <= SHA512 && s.Body.Encoding >= Hex && s.Body.Encoding <= Base64URL
	}
	switch {
	case s.Name == "":
		return errors.New("it has no name")
	case !ok:
		return errors.New("a method, digest, encoding, key form or unit is none of those there are")
	case s.Encoding == Plain && s.Method != Token:
		return errors.New("only a token is plain text")
	case s.Key.Prefixed && len(s.Key.Strip) == 0 && !s.Asymmetric():
		return errors.New("its keys need a prefix, and none is named")
	}
	return nil
}

// Constant tells whether every delivery has the same signature: the message holds nothing that differs
// between deliveries. Such a signature is a token.
func (s *Scheme) Constant() bool { return s.Method != Token && s.constant(&s.Message) }

func (s *Scheme) constant(t *Template) bool {
	same := func(r Ref) bool { return r.Kind == Secret || r.Kind == HTTPMethod }
	return !slices.ContainsFunc(t.Refs(), func(r Ref) bool { return !same(r) })
}

// Extendable tells whether bytes can be added to what was signed without knowing the secret. A digest
// is the state of its hash, so that hashing can go on from it, unless the secret ends the message.
func (s *Scheme) Extendable() bool {
	for n := range 1 + len(s.Or) {
		if s.Method == Hash && !s.message(n).endsIn(Secret) {
			return true
		}
	}
	return false
}

// BodyToken returns the first place in the body where the sender shows the token itself.
func (s *Scheme) BodyToken() (Ref, bool) {
	i := slices.IndexFunc(s.Signature.In, func(r Ref) bool { return r.Kind == JSON || r.Kind == Form })
	if s.Method != Token || i < 0 {
		return Ref{}, false
	}
	return s.Signature.In[i], true
}

// places are the kinds where a sender can write a value.
var places = []Kind{Header, JSON, Form, Query}

func (s *Scheme) checkLayout() error {
	l := s.Signature
	for _, ref := range l.In {
		if !slices.Contains(places, ref.Kind) || ref.Name == "" {
			return fmt.Errorf("a signature cannot stand in %s; write header:NAME, json:PATH, form:FIELD or query:NAME", ref)
		}
	}
	switch {
	case len(l.In) == 0:
		return errors.New("it does not say where the signature is")
	case l.Separator == "" && (l.Assign != "" || l.Skip != 0):
		return errors.New("items need a separator")
	case l.Assign == "" && l.Item != "":
		return errors.New("an item's key needs what separates it from its value")
	case l.Assign != "" && l.Skip != 0:
		return errors.New("items have keys or places, not both")
	case s.When != nil && !slices.Contains(places, s.When.From.Kind):
		return fmt.Errorf("%s cannot tell which scheme was used", s.When.From)
	}
	return nil
}

func (s *Scheme) checkMessages() error {
	if s.Method == Token {
		if s.Message.String() != "" || len(s.Or) > 0 || s.Timestamp != nil || s.Body != nil {
			return errors.New("a token signs nothing: no message, no time and no digest of the body")
		}
		return nil
	}
	for n := range 1 + len(s.Or) {
		t := s.message(n)
		switch {
		case s.constant(t):
			return errors.New("what is signed holds nothing of the request")
		case t.uses(Root, Index, Content, EventType):
			return fmt.Errorf("%s names events, which are not read before the proof", t)
		case t.uses(Secret) != (s.Method == Hash):
			return fmt.Errorf("%s: the secret is part of what is hashed, and of nothing else", t)
		case t.uses(Item) && s.Signature.Separator == "":
			return fmt.Errorf("%s names an item, and the signature has none beside it", t)
		case t.uses(Timestamp) && s.Timestamp == nil:
			return fmt.Errorf("%s names a time, and the scheme says of none where it is", t)
		}
		for _, ref := range s.Signature.In {
			if t.whole(ref) {
				return fmt.Errorf("%s covers %s, and with it the signature itself", t, ref)
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
		return errors.New("the time is an item, and the signature has none beside it")
	case s.Timestamp.From.Kind != Item && !slices.Contains(places, s.Timestamp.From.Kind):
		return fmt.Errorf("%s is no place for a time", s.Timestamp.From)
	case s.Timestamp.Tolerance < 0:
		return errors.New("its tolerance is negative")
	}
	return s.covers("the time", s.Timestamp.From, Timestamp)
}

func (s *Scheme) checkDigest() error {
	if s.Body == nil {
		return nil
	}
	return s.covers("the body's digest", s.Body.From, None)
}

// covers wants a reference in each message: by itself, as the kind that stands for it, or as a part of what is signed whole.
func (s *Scheme) covers(what string, from Ref, standsFor Kind) error {
	for n := range 1 + len(s.Or) {
		t := s.message(n)
		same := slices.ContainsFunc(t.Refs(), func(r Ref) bool { return r.Kind == from.Kind && strings.EqualFold(r.Name, from.Name) })
		if !same && !t.whole(from) && (standsFor == None || !t.uses(standsFor)) {
			return fmt.Errorf("%s in %s is not signed: %s does not hold it", what, from, t)
		}
	}
	return nil
}

// whole tells whether a template holds all of what a reference is a part of.
func (t *Template) whole(part Ref) bool {
	switch part.Kind {
	case JSON:
		return t.uses(Body)
	case Form:
		return t.uses(Body, SortedForm)
	case Query:
		return t.uses(URL, Path)
	}
	return false
}
