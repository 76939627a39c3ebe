package redaction

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"iter"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
)

// The shortest values that can be searched at any place, in bytes. A shorter value also matches
// data that does not belong to the person. A short number may be an amount.
const (
	minMentionLength = 5
	minNumberLength  = 8
)

// MaxMentions is how many values one redaction may search for.
const MaxMentions = 50

// NewMentionMatcher returns the matcher of a value that may be at any place in a body: an id or an
// e-mail address. Errors: events.ErrInvalid.
func NewMentionMatcher(value string) (ValueMatcher, error) {
	value = normalize(value)
	switch {
	case len(value) < minMentionLength:
		return ValueMatcher{}, fmt.Errorf("%w: a mention of %d characters is too short to be distinguished from "+
			"other data: give at least %d, or name the object, or the path of the value", events.ErrInvalid, len(value),
			minMentionLength)
	case isNumber(value) && len(value) < minNumberLength:
		return ValueMatcher{}, fmt.Errorf("%w: a number of %d digits may also be an amount: give one of at least %d, "+
			"or name the object, or the path of the value", events.ErrInvalid, len(value), minNumberLength)
	}
	f, err := NewValueMatcher(mentionPath, value)
	f.Length = len(value)
	return f, err
}

// mentionPath stands for any place in a body, including names of members.
const mentionPath = "$..*"

func isNumber(text string) bool { return strings.Trim(text, "0123456789") == "" }

// isMention reports whether the value may be at any place.
func (f *ValueMatcher) isMention() bool { return f.Path == mentionPath }

// decodings yields a body unchanged, and then without its escapes.
func decodings(body []byte) iter.Seq[string] {
	return func(yield func(string) bool) {
		text := string(body)
		if !yield(text) {
			return
		}
		if isForm(body) {
			text = strings.ReplaceAll(text, "+", " ")
		}
		for range 3 { // JSON in a form, or in JSON
			before := text
			if strings.ContainsAny(text, `\&`) {
				text = unescape(text)
			}
			if strings.Contains(text, "%") {
				text = percentDecode(text)
			}
			if text == before || !yield(text) {
				return
			}
		}
	}
}

// percentDecode decodes the escapes of URLs. Invalid escapes stay.
func percentDecode(text string) string {
	var read strings.Builder
	for i := 0; i < len(text); i++ {
		if text[i] == '%' && i+2 < len(text) {
			if n, err := strconv.ParseUint(text[i+1:i+3], 16, 8); err == nil {
				read.WriteByte(byte(n))
				i += 2
				continue
			}
		}
		read.WriteByte(text[i])
	}
	return read.String()
}

// idPrefix matches the start of ids that contain their type: cus_, in_, gid://shopify/Customer/.
var idPrefix = regexp.MustCompile(`^([A-Za-z]+_|gid://[A-Za-z0-9-]+/[A-Za-z0-9]+/)`)

// globalID matches an id that consists of several tokens.
var globalID = regexp.MustCompile(`gid://[A-Za-z0-9-]+/[A-Za-z0-9]+/[A-Za-z0-9]+`)

// plainID matches ids that do not identify a person to others: no e-mail address, telephone number
// or name.
var plainID = regexp.MustCompile(`^([A-Za-z]+_[A-Za-z0-9]+|[0-9]+|gid://[A-Za-z0-9/]+|[0-9a-fA-F-]{36})$`)

// mentionsAny reports whether any text contains one of the mention values as a whole token. The
// token may be literal, or escaped as in JSON (also in JSON within JSON), XML, forms and URLs.
func mentionsAny(finds []ValueMatcher, body []byte) bool {
	finds = slices.DeleteFunc(slices.Clone(finds), func(f ValueMatcher) bool { return !f.isMention() })
	if len(finds) == 0 {
		return false
	}
	for text := range decodings(body) {
		text = strings.ToLower(text)
		if slices.ContainsFunc(finds, func(f ValueMatcher) bool { return f.occursIn(text) }) {
			return true
		}
	}
	return false
}

// Mentioning returns which of the events mention one of the values, in their body or headers.
func Mentioning(ctx context.Context, pool *pgxpool.Pool, finds []ValueMatcher, ids []int64) (map[int64]bool, error) {
	selected, err := (&Params{Matchers: finds}).selectEvents(ctx, pool, ids)
	if err != nil {
		return nil, err
	}
	found := map[int64]bool{}
	for _, id := range selected.found {
		found[id] = true
	}
	return found, nil
}

// AuditName returns a value in the form that the audit stores: an id unchanged, and anything else,
// which may be personal, as a digest. The digest can be computed from the value: the first 32
// hexadecimal digits of the sha256 of the value in lower case.
func AuditName(value string) string {
	prefix := idPrefix.FindString(value)
	// ada_lovelace is a name
	if plainID.MatchString(value) && (prefix == "" || strings.ContainsFunc(value[len(prefix):], isIDChar)) {
		return value
	}
	return digestOf(value)
}

func digestOf(value string) string {
	sum := sha256.Sum256([]byte(normalize(value)))
	return "sha256:" + hex.EncodeToString(sum[:16])
}
