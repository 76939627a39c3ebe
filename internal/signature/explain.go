package signature

import (
	"bytes"
	"crypto/sha256"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Step is one step of a verification, described for an operator.
type Step struct {
	// Name is the subject of the step, in one or two words.
	Name string `json:"name"`
	// OK reports whether the step succeeded.
	OK bool `json:"ok"`
	// Detail says what was expected and what was found. It contains no secret and no signature,
	// neither a correct nor a received one. Data from unauthenticated clients is quoted and
	// truncated.
	Detail string `json:"detail"`
}

// Explain describes each step of Verify. If no secret matches, it tries common mistakes and reports
// those that would match; these steps are named "cause". The last step is the result of Verify: it
// is OK if and only if Verify returns no error. Explain tries dozens of variants and formats the
// message again. It is therefore only for single deliveries that an operator selects. It names
// secrets by names, or by their positions from 1.
func (s *Scheme) Explain(secrets [][]byte, r Request, tolerance time.Duration, names ...string) []Step {
	x := &explainer{scheme: s, values: &values{request: &r}, names: names}
	x.explainPlace()
	if claims, err := s.readClaims(x.values); err == nil {
		x.explainMatch(secrets, claims, tolerance)
	} else if !slices.ContainsFunc(x.steps, func(s Step) bool { return !s.OK }) {
		x.add("reading", false, "%v", err)
	}
	m, err := s.Verify(secrets, r, tolerance)
	if err != nil {
		x.explainMistakes(secrets, err)
		x.add("verdict", false, "%v", err)
		return x.steps
	}
	x.add("verdict", true, "%s matches the signature", x.secretName(m.Secret))
	return x.steps
}

// explainer collects the steps of one request.
type explainer struct {
	scheme *Scheme
	values *values
	names  []string
	steps  []Step
}

// secretName returns the name of a secret in messages.
func (x *explainer) secretName(i int) string {
	if i < len(x.names) {
		return "secret " + strings.TrimPrefix(x.names[i], "secret ")
	}
	return fmt.Sprintf("secret %d", i+1)
}

func (x *explainer) add(name string, ok bool, format string, args ...any) {
	x.steps = append(x.steps, Step{Name: name, OK: ok, Detail: fmt.Sprintf(format, args...)})
}

// explainPlace adds steps about the place of the signature, its contents, and its items.
func (x *explainer) explainPlace() {
	if s := x.scheme; s.When != nil {
		x.add("scheme", s.isApplicable(x.values), "%s names the scheme; for this one it is %s", s.When.From,
			s.When.describe())
	}
	texts, err := x.scheme.signatureTexts(x.values)
	switch {
	case err != nil:
		x.add("place", false, "%v", err)
		return
	case len(texts) == 0:
		x.add("place", false, "expected the %s: it is missing. Present are: %s", x.scheme.DescribePlace(),
			x.headerNames())
		return
	}
	n := 0
	for _, text := range texts {
		x.add("place", true, "expected the %s: it has %d bytes", x.scheme.DescribePlace(), len(text))
		for part := range x.scheme.itemTexts(text) {
			n++
			if n > maxItems {
				return
			}
			x.explainItem(part)
		}
	}
	x.explainTime()
}

// headerNames returns the names of the request's headers.
func (x *explainer) headerNames() string {
	names := slices.Sorted(maps.Keys(x.values.request.Header))
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

// explainItem adds a step about one item. For a signature it compares the form with the expected
// one.
func (x *explainer) explainItem(p itemText) {
	l := x.scheme.Signature
	it, isSignature, err := x.scheme.readItem(p.index, p.text)
	switch {
	case err != nil:
		x.add("item", false, "item %d has no %q between key and value", p.index+1, l.KeySeparator)
	case isSignature:
		b, err := x.scheme.decodeSignature(it.value)
		if want := x.scheme.signatureSize(); err == nil && want > 0 && len(b) != want {
			err = fmt.Errorf("it has %d bytes instead of %d", len(b), want)
		}
		detail := fmt.Sprintf("expected %s, found %s", x.scheme.describeForm(), x.scheme.describeFound(it.value))
		if err != nil && x.scheme.Method != Token {
			detail += fmt.Sprintf(": %v", err)
		}
		x.add("signature", err == nil, "%s", detail)
	case x.isSignedTime(p.index, it.key):
		x.add("item", true, "%s is the signed time; it has %d bytes", x.scheme.Timestamp.From, len(it.value))
	case l.KeySeparator == "":
		x.add("item", true, "item %d is not a signature; it has %d bytes", p.index+1, len(it.value))
	default:
		x.add("item", true, "the item under %s is not a signature of this scheme; it has %d bytes",
			quoteItemKey(it.key), len(it.value))
	}
}

// isSignedTime reports whether an item, by its position or key, is the signed time.
func (x *explainer) isSignedTime(place int, key string) bool {
	t := x.scheme.Timestamp
	if t == nil || t.From.Kind != Item {
		return false
	}
	if x.scheme.Signature.KeySeparator == "" {
		return t.From.Name == strconv.Itoa(place)
	}
	return t.From.Name == key
}

// quoteItemKey quotes an item's key. A long key may be a signature without a key, and is not
// quoted.
func quoteItemKey(key string) string {
	if len(key) > 12 {
		return fmt.Sprintf("a key of %d bytes", len(key))
	}
	return fmt.Sprintf("%q", key)
}

// describeForm describes the form of a signature of the scheme.
func (s *Scheme) describeForm() string {
	text := s.describeMethod() + " as " + s.Encoding.describe()
	if s.Method == Token {
		text = "the token as " + s.Encoding.describe()
	}
	switch size := s.signatureSize(); {
	case size > 0 && (s.Encoding == Hex || s.Encoding == ""):
		text = fmt.Sprintf("%d hexadecimal digits, %s", 2*size, s.describeMethod())
	case size > 0 && s.Encoding == Base64:
		text = fmt.Sprintf("%d characters of base64, %s", (size+2)/3*4, s.describeMethod())
	case size > 0 && s.Encoding == Base64URL:
		text = fmt.Sprintf("%d characters of URL-safe base64, %s", (size*4+2)/3, s.describeMethod())
	}
	if s.Signature.Prefix != "" {
		text += fmt.Sprintf(", after %q", s.Signature.Prefix)
	}
	return text
}

// describeFound describes the form of a text in the place of a signature.
func (s *Scheme) describeFound(text string) string {
	rest, ok := strings.CutPrefix(text, s.Signature.Prefix)
	after := ""
	switch prefix := otherPrefix(text); {
	case ok && s.Signature.Prefix != "":
		after = fmt.Sprintf(" after %q", s.Signature.Prefix)
	case prefix != "" && s.Method != Token:
		rest, after = text[len(prefix):], fmt.Sprintf(" after %q", prefix)
	}
	return describeAlphabet(rest) + after
}

// knownPrefixes are the prefixes of signatures of known senders.
var knownPrefixes = []string{"sha1=", "sha256=", "sha512=", "hmac-sha256=", "hmac-sha256-hex=", "v0=", "v1=", "v1,",
	"HMAC ", "Bearer ", "Basic "}

func otherPrefix(text string) string {
	for _, prefix := range knownPrefixes {
		if strings.HasPrefix(text, prefix) {
			return prefix
		}
	}
	return ""
}

// describeAlphabet returns the number of a text's characters and their alphabet.
func describeAlphabet(text string) string {
	consistsOf := func(more string) bool {
		return strings.Trim(text, "0123456789"+more) == "" && text != ""
	}
	const letters = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	characters := "characters"
	switch {
	case text == "":
		return "nothing"
	case consistsOf("abcdefABCDEF"):
		characters = "hexadecimal digits"
	case consistsOf(letters + "+/="):
		characters = "characters of base64"
	case consistsOf(letters + "-_="):
		characters = "characters of URL-safe base64"
	}
	return fmt.Sprintf("%d %s", len(text), characters)
}

// explainTime adds a step about the signed time if all signatures share one. Otherwise explainMatch
// explains the time of each group.
func (x *explainer) explainTime() {
	if x.scheme.Timestamp == nil || x.scheme.Timestamp.From.Kind == Item {
		return
	}
	x.values.claim = nil
	if _, _, err := x.scheme.readTime(x.values); err != nil {
		x.add("time", false, "%v", err)
	}
}

// explainMatch adds steps about the signed message, each secret, and the later checks.
func (x *explainer) explainMatch(secrets [][]byte, claims []claim, tolerance time.Duration) {
	s := x.scheme
	for i := range claims {
		x.values.claim = &claims[i]
		if t := s.Timestamp; t != nil {
			x.add("time", true, "%s is %s, which is %s", t.From, quoteTime(claims[i].timestamp),
				claims[i].signedAt.Format(time.RFC3339Nano))
		}
		x.explainMessage()
	}
	for i, secret := range secrets {
		if _, err := s.key(secret); err != nil {
			x.add("secret", false, "%s cannot be used: %v", x.secretName(i), err)
			continue
		}
		if _, _, err := s.findMatch([][]byte{secret}, x.values, claims); err != nil {
			x.add("secret", false, "%s does not match any signature", x.secretName(i))
			continue
		}
		x.add("secret", true, "%s matches a signature", x.secretName(i))
	}
	if len(secrets) == 0 {
		x.add("secret", false, "no secret is configured")
	}
	_, c, err := s.findMatch(secrets, x.values, claims)
	if err != nil {
		return
	}
	if s.Body != nil {
		if err := s.checkBodyDigest(x.values); err != nil {
			x.add("body", false, "%v", err)
			return
		}
		x.add("body", true, "the digest of the body that was signed in %s matches the body", s.Body.From)
	}
	x.explainAge(c.signedAt, tolerance)
}

func (x *explainer) explainAge(at time.Time, tolerance time.Duration) {
	t := x.scheme.Timestamp
	switch {
	case t == nil:
		return
	case t.Unchecked:
		x.add("age", true, "the age of the signed time is not checked")
		return
	}
	tolerance = x.scheme.tolerance(tolerance)
	if err := checkAge(at, x.values.request.ReceivedAt, tolerance); err != nil {
		x.add("age", false, "%v", err)
		return
	}
	x.add("age", true, "signed %s before receipt; %s are allowed in both directions",
		x.values.request.ReceivedAt.Sub(at).Round(time.Millisecond), tolerance)
}

// explainMessage adds a step about the signed bytes.
func (x *explainer) explainMessage() {
	s := x.scheme
	if s.Method == Token {
		x.add("message", true, "nothing is signed: the sender sends a token, and the body is not verified")
		return
	}
	x.values.secret = []byte("[secret]")
	for n := range 1 + len(s.Or) {
		t := s.messageAt(n)
		text, err := s.signedBytes(x.values, t)
		if err != nil {
			x.add("message", false, "%s: %v", t.escaped(), err)
			continue
		}
		digest := ""
		if s.Method != Hash { // its message contains the secret
			digest = fmt.Sprintf("; SHA-256 %x", sha256.Sum256(text))
		}
		x.add("message", true, "%s is signed, here %d bytes: %s%s", t.escaped(), len(text), excerpt(text), digest)
	}
}

// excerpt quotes the beginning and the end of a text.
func excerpt(text []byte) string {
	const head, tail = 80, 40
	if len(text) <= head+tail {
		return fmt.Sprintf("%q", text)
	}
	return fmt.Sprintf("%q ... %q", text[:head], text[len(text)-tail:])
}

// explainMistakes adds steps about mistakes that would match.
func (x *explainer) explainMistakes(secrets [][]byte, err error) {
	var e *Error
	if !errors.As(err, &e) || e.Problem != Wrong && e.Problem != Malformed {
		return
	}
	if slices.ContainsFunc(x.steps, func(s Step) bool { return s.Name == "body" && !s.OK }) {
		x.add("cause", false, "the body was changed after it was signed, perhaps only by a newline: use its raw bytes "+
			"(curl --data-binary)")
		return
	}
	r := *x.values.request
	r.Body = bytes.Clone(r.Body)
	found := x.scheme.findMistakes(secrets, r)
	if len(found) == 0 {
		found = x.scheme.findMessageMistake(secrets, r)
	}
	for _, description := range found {
		x.add("cause", false, "it matches %s", description)
	}
}
