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

// Find chooses events of a source by a value in their bodies. The value itself is nowhere: a run's order is kept in the ledger, and what is to be forgotten must not
// be written down there.
type Find struct {
	// Path leads to the value: $.customer.email, $.orders[*].email, $.lines[0].id. A form's fields are named likewise: $.From.
	// That of NewMention leads anywhere.
	Path string `json:"path"`
	// Salt and Digest stand for the value, without regard to case and to space around it.
	Salt   []byte `json:"salt"`
	Digest []byte `json:"digest"`
	// Length is that of the value as it is compared, in bytes, for bodies that no path leads through; 0: too short to be told from other things there.
	Length int `json:"length,omitempty"`

	steps []string
}

// NewFind is the find of a value. Errors: events.ErrInvalid.
func NewFind(path, value string) (Find, error) {
	f := Find{Path: path, Salt: []byte(rand.Text())}
	if strings.TrimSpace(value) == "" {
		return f, fmt.Errorf("%w: an empty value would choose what has nothing there", events.ErrInvalid)
	}
	if f.Digest = f.digest(value); len(compared(value)) >= shortest {
		f.Length = len(compared(value))
	}
	return f, f.read()
}

func (f *Find) digest(value string) []byte {
	h := sha256.New()
	h.Write(f.Salt)
	h.Write([]byte(compared(value)))
	return h.Sum(nil)
}

// compared is a value without regard to case and to space around it.
func compared(value string) string { return strings.ToLower(strings.TrimSpace(value)) }

// any is the step to each element of a list, or member of an object.
const anyStep = "*"

// read splits the path. Errors: events.ErrInvalid.
func (f *Find) read() error {
	if f.mention() {
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
		return fmt.Errorf("%w: path %q: write it as $.customer.email, $.orders[*].email or $['odd.name']", events.ErrInvalid, f.Path)
	}
	return nil
}

// in tells whether a body has the value at the path, which leads to one place.
func (f *Find) in(body *canonical.Value, form url.Values) bool {
	if body != nil {
		return f.below(body, f.steps)
	}
	for _, v := range form[strings.Join(f.steps, ".")] {
		if f.is(v) {
			return true
		}
	}
	for _, v := range form[f.steps[0]] {
		if f.within(v, f.steps[1:]) {
			return true
		}
	}
	return false
}

// within goes into a text that is JSON itself.
func (f *Find) within(text string, steps []string) bool {
	if len(steps) == 0 {
		return false
	}
	root, err := canonical.Parse([]byte(text))
	return err == nil && (root.Kind() == canonical.Object || root.Kind() == canonical.Array) && f.below(root, steps)
}

func (f *Find) below(v *canonical.Value, steps []string) bool {
	if len(steps) == 0 {
		text, ok := scalar(v)
		return ok && f.is(text)
	}
	switch step := steps[0]; v.Kind() {
	case canonical.Object:
		if step != anyStep {
			return f.below(v.Get(step), steps[1:])
		}
		for _, member := range v.Members() {
			if f.below(member, steps[1:]) {
				return true
			}
		}
	case canonical.String:
		text, ok := v.Text()
		return ok && f.within(text, steps)
	case canonical.Array:
		n, err := strconv.Atoi(step)
		for i, element := range v.Elements() {
			if (step == anyStep || err == nil && i == n) && f.below(element, steps[1:]) {
				return true
			}
		}
	}
	return false
}

func (f *Find) is(value string) bool {
	return subtle.ConstantTimeCompare(f.digest(value), f.Digest) == 1
}

// scalar is a text as it reads, and a number or truth value as it is written.
func scalar(v *canonical.Value) (string, bool) {
	switch v.Kind() {
	case canonical.String:
		return v.Text()
	case canonical.Number, canonical.Bool:
		return string(v.Raw()), true
	}
	return "", false
}
