package redaction

import (
	"crypto/rand"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"net/url"
	"strconv"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/events"
)

// ValueMatcher selects events of a source by a value in their bodies. It holds no value but a
// digest, because the parameters of a run are stored in the ledger.
type ValueMatcher struct {
	// Path is the path of the value: $.customer.email, $.orders[*].email, $.lines[0].id. Fields of
	// a form are named likewise: $.From. A matcher of NewMentionMatcher matches at any place.
	Path string `json:"path"`
	// Salt and Digest represent the value, without regard to case and surrounding space.
	Salt   []byte `json:"salt"`
	Digest []byte `json:"digest"`
	// Length is the length of the normalized value in bytes, for bodies that cannot be parsed. It
	// is 0 if the value is too short to be distinguished there.
	Length int `json:"length,omitempty"`

	steps []string
}

// NewValueMatcher returns the matcher of a value at a path. Errors: events.ErrInvalid.
func NewValueMatcher(path, value string) (ValueMatcher, error) {
	f := ValueMatcher{Path: path, Salt: []byte(rand.Text())}
	if strings.TrimSpace(value) == "" {
		return f, fmt.Errorf("%w: give the value at that path too: an empty value would match every body that "+
			"has none there", events.ErrInvalid)
	}
	if f.Digest = f.digest(value); len(normalize(value)) >= minSearchLength {
		f.Length = len(normalize(value))
	}
	return f, f.parsePath()
}

func (f *ValueMatcher) digest(value string) []byte {
	h := sha256.New()
	h.Write(f.Salt)
	h.Write([]byte(normalize(value)))
	return h.Sum(nil)
}

// normalize returns a value without regard to case and surrounding space.
func normalize(value string) string { return strings.ToLower(strings.TrimSpace(value)) }

// anyStep selects each element of a list, or each member of an object.
const anyStep = "*"

// parsePath splits the path. Errors: events.ErrInvalid.
func (f *ValueMatcher) parsePath() error {
	if f.isMention() {
		return nil
	}
	rest, ok := strings.CutPrefix(f.Path, "$")
	for f.steps = nil; ok && rest != ""; {
		var step string
		switch {
		case strings.HasPrefix(rest, "['"):
			step, rest, ok = strings.Cut(rest[2:], "']")
		case rest[0] == '[':
			step, rest, ok = strings.Cut(rest[1:], "]")
			if _, err := strconv.ParseUint(step, 10, 31); err != nil && step != anyStep {
				ok = false
			}
		case rest[0] == '.':
			rest = rest[1:]
			end := strings.IndexAny(rest, ".[")
			if end < 0 {
				end = len(rest)
			}
			step, rest = rest[:end], rest[end:]
		default:
			ok = false
		}
		ok = ok && step != ""
		f.steps = append(f.steps, step)
	}
	if !ok || len(f.steps) == 0 {
		return fmt.Errorf("%w: path %q: write it like $.customer.email, $.orders[*].email or $['odd.name']",
			events.ErrInvalid, f.Path)
	}
	return nil
}

// matchesBody reports whether a parsed body has the value at the path.
func (f *ValueMatcher) matchesBody(body *canonical.Value, form url.Values) bool {
	if body != nil {
		return f.matchesBelow(body, f.steps)
	}
	for _, v := range form[strings.Join(f.steps, ".")] {
		if f.equals(v) {
			return true
		}
	}
	for _, v := range form[f.steps[0]] {
		if f.matchesJSONText(v, f.steps[1:]) {
			return true
		}
	}
	return false
}

// matchesJSONText searches in a text that contains JSON.
func (f *ValueMatcher) matchesJSONText(text string, steps []string) bool {
	if len(steps) == 0 {
		return false
	}
	root, err := canonical.Parse([]byte(text))
	return err == nil && (root.Kind() == canonical.Object || root.Kind() == canonical.Array) &&
		f.matchesBelow(root, steps)
}

func (f *ValueMatcher) matchesBelow(v *canonical.Value, steps []string) bool {
	if len(steps) == 0 {
		text, ok := scalar(v)
		return ok && f.equals(text)
	}
	switch step := steps[0]; v.Kind() {
	case canonical.Object:
		if step != anyStep {
			return f.matchesBelow(v.Get(step), steps[1:])
		}
		for _, member := range v.Members() {
			if f.matchesBelow(member, steps[1:]) {
				return true
			}
		}
	case canonical.String:
		text, ok := v.Text()
		return ok && f.matchesJSONText(text, steps)
	case canonical.Array:
		n, err := strconv.Atoi(step)
		for i, element := range v.Elements() {
			if (step == anyStep || err == nil && i == n) && f.matchesBelow(element, steps[1:]) {
				return true
			}
		}
	}
	return false
}

func (f *ValueMatcher) equals(value string) bool {
	return subtle.ConstantTimeCompare(f.digest(value), f.Digest) == 1
}

// scalar returns a text unescaped, and a number or boolean as it is written.
func scalar(v *canonical.Value) (string, bool) {
	switch v.Kind() {
	case canonical.String:
		return v.Text()
	case canonical.Number, canonical.Bool:
		return string(v.Raw()), true
	}
	return "", false
}
