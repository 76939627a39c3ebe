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

// The shortest values that may be looked for anywhere, in bytes. A shorter one is found in things that have nothing to do
// with the person, and so is a short number: it may be an amount.
const (
	shortestMention = 5
	shortestNumber  = 8
)

// MaxMentions is how many values one redaction may look for.
const MaxMentions = 50

// NewMention returns the find of a value that may be anywhere in a body: an id or an e-mail address. Errors:
// events.ErrInvalid.
func NewMention(value string) (Find, error) {
	value = compared(value)
	switch {
	case len(value) < shortestMention:
		return Find{}, fmt.Errorf("%w: a mention of %d characters is too short to be told from other things: give at least %d, "+
			"or name the object, or the path of the value", events.ErrInvalid, len(value), shortestMention)
	case isNumber(value) && len(value) < shortestNumber:
		return Find{}, fmt.Errorf("%w: a number of %d digits may also be an amount: give one of at least %d, or name the object, "+
			"or the path of the value", events.ErrInvalid, len(value), shortestNumber)
	}
	f, err := NewFind(mentionPath, value)
	f.Length = len(value)
	return f, err
}

// mentionPath stands for any place in a body, its names included.
const mentionPath = "$..*"

func isNumber(text string) bool { return strings.Trim(text, "0123456789") == "" }

// mention tells whether the value may be anywhere.
func (f *Find) mention() bool { return f.Path == mentionPath }

// readings yields a body as it stands, and without its escapes.
func readings(body []byte) iter.Seq[string] {
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
				text = unescaped(text)
			}
			if strings.Contains(text, "%") {
				text = percentRead(text)
			}
			if text == before || !yield(text) {
				return
			}
		}
	}
}

// percentRead is a text without the escapes of URLs. What is none stays.
func percentRead(text string) string {
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

// idPrefix begins the ids of one type where a provider writes the type into them: cus_, in_, gid://shopify/Customer/.
var idPrefix = regexp.MustCompile(`^([A-Za-z]+_|gid://[A-Za-z0-9-]+/[A-Za-z0-9]+/)`)

// globalID is an id that is several tokens.
var globalID = regexp.MustCompile(`gid://[A-Za-z0-9-]+/[A-Za-z0-9]+/[A-Za-z0-9]+`)

// plainID is an id that names nobody to a stranger: no e-mail address, telephone number or name.
var plainID = regexp.MustCompile(`^([A-Za-z]+_[A-Za-z0-9]+|[0-9]+|gid://[A-Za-z0-9/]+|[0-9a-fA-F-]{36})$`)

// mentioned tells whether a text of any kind has one of the values that are looked for anywhere, as a whole token: as it stands,
// or escaped as in JSON (also in JSON within JSON), XML, forms and URLs.
func mentioned(finds []Find, body []byte) bool {
	finds = slices.DeleteFunc(slices.Clone(finds), func(f Find) bool { return !f.mention() })
	if len(finds) == 0 {
		return false
	}
	for text := range readings(body) {
		text = strings.ToLower(text)
		if slices.ContainsFunc(finds, func(f Find) bool { return f.stands(text) }) {
			return true
		}
	}
	return false
}

// Mentioning returns which of some events mention one of the values, in their body or headers.
func Mentioning(ctx context.Context, pool *pgxpool.Pool, finds []Find, ids []int64) (map[int64]bool, error) {
	chosen, err := (&Order{Finds: finds}).choose(ctx, pool, ids)
	if err != nil {
		return nil, err
	}
	found := map[int64]bool{}
	for _, id := range chosen.found {
		found[id] = true
	}
	return found, nil
}

// NameOf returns what the audit keeps of a value: an id as it is, and of anything else, which may be personal, a digest.
// Whoever knows the value can make the digest again: sha256 of the value in lower case, 32 hexadecimal digits of it.
func NameOf(value string) string {
	prefix := idPrefix.FindString(value)
	if plainID.MatchString(value) && (prefix == "" || strings.ContainsFunc(value[len(prefix):], isOfID)) { // ada_lovelace is a name
		return value
	}
	return digestOf(value)
}

func digestOf(value string) string {
	sum := sha256.Sum256([]byte(compared(value)))
	return "sha256:" + hex.EncodeToString(sum[:16])
}
