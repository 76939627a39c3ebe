package views

import (
	"crypto/sha256"
	"encoding/hex"
	"strings"
	"unicode"
	"unicode/utf8"
)

// maxName is the maximum length of a name in PostgreSQL, in bytes. It cuts longer names silently.
const maxName = 63

// safeName makes a name that needs no quotes from any text, unless it is a reserved word:
// "lineItems" becomes line_items, and "checkout.session" checkout_session. A name that is too long
// ends in a hash of the text.
func safeName(text string) string {
	var b strings.Builder
	var before rune
	for _, r := range text {
		switch {
		case unicode.IsUpper(r):
			if unicode.IsLower(before) || unicode.IsDigit(before) {
				b.WriteByte('_')
			}
			b.WriteRune(unicode.ToLower(r))
		case unicode.IsLetter(r), r >= '0' && r <= '9':
			b.WriteRune(r)
		default:
			b.WriteByte('_')
		}
		before = r
	}
	name := b.String()
	if name == "" || name[0] >= '0' && name[0] <= '9' {
		name = "_" + name
	}
	if len(name) > maxName {
		return withHash(name, text, 6)
	}
	return name
}

// uniqueName returns the name, or the name with a hash of the text if it is taken.
func uniqueName(name, text string, taken func(string) bool) string {
	unique := name
	for digits := 6; taken(unique); digits += 6 {
		unique = withHash(name, text, digits)
	}
	return unique
}

// withHash appends the first digits of a hash of the text to a name, and cuts the name if needed.
func withHash(name, text string, digits int) string {
	name = name[:min(len(name), maxName-1-digits)]
	for !utf8.ValidString(name) {
		name = name[:len(name)-1]
	}
	return name + "_" + hash(text, digits)
}

// hash returns the first digits of a hash of a text.
func hash(text string, digits int) string {
	sum := sha256.Sum256([]byte(text))
	return hex.EncodeToString(sum[:])[:digits]
}

// isReserved reports whether a schema of this name is PostgreSQL's or Postern's own.
func isReserved(schema string) bool {
	switch schema {
	case "public", "postern", "mirror", "information_schema":
		return true
	}
	return strings.HasPrefix(schema, "pg_")
}

// quoteLiteral writes a text as a literal of SQL, whatever standard_conforming_strings is.
func quoteLiteral(text string) string {
	quoted := "'" + strings.ReplaceAll(text, "'", "''") + "'"
	if strings.Contains(text, `\`) {
		return " E" + strings.ReplaceAll(quoted, `\`, `\\`)
	}
	return quoted
}
