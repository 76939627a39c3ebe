package apply

import (
	"regexp"
	"slices"
	"strings"
	"unicode"
)

// variable stands for a variable part of a reason.
const variable = "…"

var (
	// reasonParts are quoted texts, times, mail addresses, and words. A quote inside a word is an
	// apostrophe.
	reasonParts = regexp.MustCompile(`"(?:\\.|[^"\\])*"|` + "`[^`]*`" + `|(?:^|\B)'[^']*'(?:\B|$)|` +
		`\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(?::\d{2}(?:\.\d+)?)?(?: ?UTC|Z|[+-]\d{2}:?\d{2})?|` +
		`[\w.+-]+@[\w-]+(?:\.[\w-]+)+|` +
		`[\pL\pN_](?:[\pL\pN_.\-]*[\pL\pN_])?`)
	wordPieces  = regexp.MustCompile(`[^.\-]+|[.\-]`)
	numeral     = regexp.MustCompile(`^\d[\d.,\-]*$`)
	quantity    = regexp.MustCompile(`^(?:\d+(?:\.\d+)?(?:ns|us|µs|ms|s|m|h|d|B|kB|KB|MB|GB|KiB|MiB|GiB))+$`)
	hexadecimal = regexp.MustCompile(`^(?:0x)?[0-9a-fA-F]{8,}$`)
	uuid        = regexp.MustCompile(`^(?i)[0-9a-f]{8}-(?:[0-9a-f]{4}-){3}[0-9a-f]{12}$`)
	statusCode  = regexp.MustCompile(`^[1-5]\d\d$`)
	repeated    = regexp.MustCompile(variable + `(?:[.:,/\-]?` + variable + `)+`)
)

// FailurePattern returns a reason with … for each variable part: numbers, times, ids, hex and
// quoted texts. Status codes and JSON paths stay, because they distinguish causes.
func FailurePattern(reason string) string {
	var b strings.Builder
	end, before := 0, ""
	for _, at := range reasonParts.FindAllStringIndex(reason, -1) {
		b.WriteString(reason[end:at[0]])
		part := reason[at[0]:at[1]]
		end = at[1]
		switch out := patternOf(part, before); {
		case out == part:
			b.WriteString(part)
			if lower := strings.ToLower(part); lower != "with" && lower != "of" {
				before = lower
			}
		default:
			b.WriteString(out)
		}
	}
	b.WriteString(reason[end:])
	return repeated.ReplaceAllString(b.String(), variable)
}

// patternOf returns a part of a reason, with its variable text replaced. before is the word before
// it.
func patternOf(part, before string) string {
	switch first := part[0]; {
	case first == '"' || first == '`' || first == '\'':
		if strings.HasPrefix(part[1:], "$") { // a JSON path
			return part[:1] + FailurePattern(part[1:len(part)-1]) + part[len(part)-1:]
		}
		return part[:1] + variable + part[len(part)-1:]
	case strings.ContainsRune(part, '@'):
		return variable
	case !strings.ContainsFunc(part, unicode.IsDigit):
		return part
	case before == "sqlstate",
		statusCode.MatchString(part) && slices.Contains([]string{"responded", "answered", "returned", "http"}, before),
		len(part) <= 3 && slices.Contains([]string{"status", "code"}, before):
		return part
	case numeral.MatchString(part), uuid.MatchString(part), quantity.MatchString(part), strings.Contains(part, ":"):
		return variable
	}
	return wordPieces.ReplaceAllStringFunc(part, patternOfPiece)
}

// patternOfPiece replaces a piece of a word if it looks like an id. It keeps the prefix of an id:
// in_….
func patternOfPiece(piece string) string {
	digits := 0
	for _, r := range piece {
		if unicode.IsDigit(r) {
			digits++
		}
	}
	prefix, id := "", piece
	if i := strings.LastIndexByte(piece, '_'); i >= 0 {
		prefix, id = piece[:i+1], piece[i+1:]
	}
	hasDigit := strings.ContainsFunc(id, unicode.IsDigit)
	switch {
	case digits == 0:
		return piece
	case numeral.MatchString(piece), quantity.MatchString(piece), hexadecimal.MatchString(piece),
		prefix == "" && len(piece) >= 10 && digits >= 2:
		return variable
	case prefix != "" && hasDigit && (len(id) >= 6 || len(id) > 1 && numeral.MatchString(id)):
		return prefix + variable
	}
	return piece
}

// likePattern returns a pattern for LIKE that selects at least the reasons of a failure pattern.
func likePattern(pattern string) string {
	return strings.NewReplacer(`\`, `\\`, "%", `\%`, "_", `\_`, variable, "%").Replace(pattern)
}
