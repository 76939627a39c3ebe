package signature

import (
	"bytes"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Step is one step of a proof, in words for a person.
type Step struct {
	// Name is what was looked at, in a word or two.
	Name string `json:"name"`
	// OK: it is as it must be.
	OK bool `json:"ok"`
	// Detail says what was looked for and what was found. It holds no secret and no signature, neither a right one nor one that was
	// sent; what strangers sent is quoted and cut.
	Detail string `json:"detail"`
}

// Explain goes the way of Verify and tells of each step. Where no secret matches it tries what people often get wrong, and says
// what would have matched; these steps are named "hint". The last step is Verify's answer: it is OK if and only if Verify has no
// error. It tries dozens of variations and writes the message anew, so it is for a person's one delivery, never for a stranger's.
// Secrets are called by their names where names are given, else by their place from 1.
func (s *Scheme) Explain(secrets [][]byte, r Request, tolerance time.Duration, names ...string) []Step {
	x := &explanation{s: s, v: &values{r: &r}, names: names}
	x.place()
	if claims, err := s.claims(x.v); err == nil {
		x.proof(secrets, claims, tolerance)
	} else if !slices.ContainsFunc(x.steps, func(s Step) bool { return !s.OK }) {
		x.add("reading", false, "%v", err)
	}
	m, err := s.Verify(secrets, r, tolerance)
	if err != nil {
		x.hints(secrets, err)
		x.add("verdict", false, "%v", err)
		return x.steps
	}
	x.add("verdict", true, "%s made the signature", x.secret(m.Secret))
	return x.steps
}

// explanation gathers the steps of one request.
type explanation struct {
	s     *Scheme
	v     *values
	names []string
	steps []Step
}

// secret is what a secret is called.
func (x *explanation) secret(i int) string {
	if i < len(x.names) {
		return "secret " + strings.TrimPrefix(x.names[i], "secret ")
	}
	return fmt.Sprintf("secret %d", i+1)
}

func (x *explanation) add(name string, ok bool, format string, args ...any) {
	x.steps = append(x.steps, Step{Name: name, OK: ok, Detail: fmt.Sprintf(format, args...)})
}

// place tells where the signature was looked for, what is there, and how it comes apart.
func (x *explanation) place() {
	if s := x.s; s.When != nil {
		x.add("scheme", s.applies(x.v), "%s says which scheme was used; of this one it is %s", s.When.From, s.When.words())
	}
	texts, err := x.s.texts(x.v)
	switch {
	case err != nil:
		x.add("place", false, "%v", err)
		return
	case len(texts) == 0:
		x.add("place", false, "looked for the %s: it is not there. There are: %s", x.s.Where(), x.headers())
		return
	}
	n := 0
	for _, text := range texts {
		x.add("place", true, "looked for the %s: %d bytes are there", x.s.Where(), len(text))
		for part := range x.s.parts(text) {
			n++
			if n > maxItems {
				return
			}
			x.item(part)
		}
	}
	x.clock()
}

// headers are the names of the request's headers.
func (x *explanation) headers() string {
	names := slices.Sorted(maps.Keys(x.v.r.Header))
	if len(names) == 0 {
		return "no headers"
	}
	if len(names) > 40 {
		names = append(names[:40], "...")
	}
	for i, name := range names {
		names[i] = fmt.Sprintf("%.60q", name)
	}
	return strings.Join(names, ", ")
}

// item tells what one item is, and of a signature which form it has and must have.
func (x *explanation) item(p piece) {
	l := x.s.Signature
	it, isSignature, err := x.s.item(p.place, p.text)
	switch {
	case err != nil:
		x.add("item", false, "item %d has no %q between key and value", p.place+1, l.Assign)
	case isSignature:
		b, err := x.s.decode(it.value)
		if want := x.s.size(); err == nil && want > 0 && len(b) != want {
			err = fmt.Errorf("it holds %d bytes instead of %d", len(b), want)
		}
		detail := fmt.Sprintf("looked for %s, found %s", x.s.form(), x.s.found(it.value))
		if err != nil && x.s.Method != Token {
			detail += fmt.Sprintf(": %v", err)
		}
		x.add("signature", err == nil, "%s", detail)
	case x.signedTime(p.place, it.key):
		x.add("item", true, "%s is the signed time; it has %d bytes", x.s.Timestamp.From, len(it.value))
	case l.Assign == "":
		x.add("item", true, "item %d is no signature; it has %d bytes", p.place+1, len(it.value))
	default:
		x.add("item", true, "the item under %s is no signature of this scheme; it has %d bytes", shortKey(it.key), len(it.value))
	}
}

// signedTime tells whether an item, by its place or its key, is the signed time.
func (x *explanation) signedTime(place int, key string) bool {
	t := x.s.Timestamp
	if t == nil || t.From.Kind != Item {
		return false
	}
	if x.s.Signature.Assign == "" {
		return t.From.Name == strconv.Itoa(place)
	}
	return t.From.Name == key
}

// shortKey quotes an item's key; a long one may be a signature that lacks its key.
func shortKey(key string) string {
	if len(key) > 12 {
		return fmt.Sprintf("a key of %d bytes", len(key))
	}
	return fmt.Sprintf("%q", key)
}

// form says how a signature of the scheme is written.
func (s *Scheme) form() string {
	text := s.methodText() + " as " + s.Encoding.String()
	if s.Method == Token {
		text = "the token as " + s.Encoding.String()
	}
	switch size := s.size(); {
	case size > 0 && s.Encoding == Hex:
		text = fmt.Sprintf("%d hexadecimal digits, %s", 2*size, s.methodText())
	case size > 0 && s.Encoding == Base64:
		text = fmt.Sprintf("%d characters of base64, %s", (size+2)/3*4, s.methodText())
	case size > 0 && s.Encoding == Base64URL:
		text = fmt.Sprintf("%d characters of URL-safe base64, %s", (size*4+2)/3, s.methodText())
	}
	if s.Signature.Prefix != "" {
		text += fmt.Sprintf(", after %q", s.Signature.Prefix)
	}
	return text
}

// found says how a text is written that stands where a signature must.
func (s *Scheme) found(text string) string {
	rest, ok := strings.CutPrefix(text, s.Signature.Prefix)
	after := ""
	switch prefix := foreignPrefix(text); {
	case ok && s.Signature.Prefix != "":
		after = fmt.Sprintf(" after %q", s.Signature.Prefix)
	case prefix != "" && s.Method != Token:
		rest, after = text[len(prefix):], fmt.Sprintf(" after %q", prefix)
	}
	return alphabet(rest) + after
}

// prefixes are what signatures of senders begin with.
var prefixes = []string{"sha1=", "sha256=", "sha512=", "hmac-sha256=", "hmac-sha256-hex=", "v0=", "v1=", "v1,", "HMAC ", "Bearer ", "Basic "}

func foreignPrefix(text string) string {
	for _, prefix := range prefixes {
		if strings.HasPrefix(text, prefix) {
			return prefix
		}
	}
	return ""
}

// alphabet says which characters a text is made of, and how many.
func alphabet(text string) string {
	only := func(more string) bool {
		return strings.Trim(text, "0123456789"+more) == "" && text != ""
	}
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	what := "characters"
	switch {
	case text == "":
		return "nothing"
	case only("abcdefABCDEF"):
		what = "hexadecimal digits"
	case only(letters + "+/="):
		what = "characters of base64"
	case only(letters + "-_="):
		what = "characters of URL-safe base64"
	}
	return fmt.Sprintf("%d %s", len(text), what)
}

// clock tells of the signed time where all signatures share one; else it is told with the group it stands in.
func (x *explanation) clock() {
	if x.s.Timestamp == nil || x.s.Timestamp.From.Kind == Item {
		return
	}
	x.v.claim = nil
	if _, _, err := x.s.readTime(x.v); err != nil {
		x.add("time", false, "%v", err)
	}
}

// proof tells of what was signed, of each secret, and of what is judged after them.
func (x *explanation) proof(secrets [][]byte, claims []claim, tolerance time.Duration) {
	s := x.s
	for i := range claims {
		x.v.claim = &claims[i]
		if t := s.Timestamp; t != nil {
			x.add("time", true, "%s is %s, which is %s", t.From, shownTime(claims[i].timestamp), claims[i].at.Format(time.RFC3339Nano))
		}
		x.message()
	}
	for i, secret := range secrets {
		if _, err := s.key(secret); err != nil {
			x.add("secret", false, "%s cannot be used: %v", x.secret(i), err)
			continue
		}
		if _, _, err := s.match([][]byte{secret}, x.v, claims); err != nil {
			x.add("secret", false, "%s made no signature that is there", x.secret(i))
			continue
		}
		x.add("secret", true, "%s made a signature that is there", x.secret(i))
	}
	if len(secrets) == 0 {
		x.add("secret", false, "there is no secret")
	}
	_, c, err := s.match(secrets, x.v, claims)
	if err != nil {
		return
	}
	if s.Body != nil {
		if err := s.checkBody(x.v); err != nil {
			x.add("body", false, "%v", err)
			return
		}
		x.add("body", true, "the digest of the body that was signed in %s is that of the body", s.Body.From)
	}
	x.age(c.at, tolerance)
}

func (x *explanation) age(at time.Time, tolerance time.Duration) {
	t := x.s.Timestamp
	switch {
	case t == nil:
		return
	case t.Unchecked:
		x.add("age", true, "the age of the signed time is not judged")
		return
	}
	tolerance = x.s.tolerance(tolerance)
	if err := fresh(at, x.v.r.ReceivedAt, tolerance); err != nil {
		x.add("age", false, "%v", err)
		return
	}
	x.add("age", true, "signed %s before receipt; %s are allowed, both ways", x.v.r.ReceivedAt.Sub(at).Round(time.Millisecond), tolerance)
}

// message tells which bytes were signed.
func (x *explanation) message() {
	s := x.s
	if s.Method == Token {
		x.add("message", true, "nothing is signed: the sender shows a token, and the body is taken as it is")
		return
	}
	x.v.secret = []byte("[secret]")
	for n := range 1 + len(s.Or) {
		t := s.message(n)
		text, err := s.bytes(x.v, t)
		if err != nil {
			x.add("message", false, "%s: %v", t.shown(), err)
			continue
		}
		x.add("message", true, "%s is signed, here %d bytes: %s", t.shown(), len(text), excerpt(text))
	}
}

// excerpt quotes the head and the tail of a text.
func excerpt(text []byte) string {
	const head, tail = 80, 40
	if len(text) <= head+tail {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprintf("%q ... %q", text[:head], text[len(text)-tail:])
}

// hints tells what would have matched.
func (x *explanation) hints(secrets [][]byte, err error) {
	var e *Error
	if !errors.As(err, &e) || e.Problem != Wrong && e.Problem != Malformed {
		return
	}
	if slices.ContainsFunc(x.steps, func(s Step) bool { return s.Name == "body" && !s.OK }) {
		x.add("hint", false, "the body was changed after it was signed, be it by a newline: take its raw bytes (curl --data-binary)")
		return
	}
	r := *x.v.r
	r.Body = bytes.Clone(r.Body)
	found := x.s.mistakes(secrets, r)
	if len(found) == 0 {
		found = x.s.messageMistake(secrets, r)
	}
	for _, words := range found {
		x.add("hint", false, "it matches %s", words)
	}
}
