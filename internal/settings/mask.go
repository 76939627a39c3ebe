package settings

import (
	"fmt"
	"regexp"
	"strings"
)

const mask = "[hidden]"

// MaskedString is text that no print, log line or encoding shows; string(h) is the text itself.
type MaskedString string

// String masks the text.
func (h MaskedString) String() string {
	if h == "" {
		return ""
	}
	return mask
}

// GoString masks the text for %#v.
func (h MaskedString) GoString() string { return fmt.Sprintf("%q", h.String()) }

// MarshalText masks the text for JSON and other encodings.
func (h MaskedString) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// URL is a connection string that may contain a password. Printing masks it; string(u) is the
// complete text.
type URL string

// String masks passwords.
func (u URL) String() string { return MaskURL(string(u)) }

// GoString masks passwords for %#v.
func (u URL) GoString() string { return fmt.Sprintf("%q", u.String()) }

// MarshalText masks passwords for JSON and other encodings.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

var (
	nextURL    = regexp.MustCompile(`,[a-z+]+://`)
	inKeyValue = regexp.MustCompile(`(?i)\b([a-z]*password)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&]*)`)
)

// MaskURL masks the passwords of a connection string: of each URL of a comma-separated list, and
// password=... of key-value strings and queries. If a password is not escaped, it masks too much
// rather than too little.
func MaskURL(s string) string {
	var out strings.Builder
	for s != "" {
		one := s
		if cut := nextURL.FindStringIndex(s); cut != nil {
			one = s[:cut[0]+1]
		}
		s = s[len(one):]
		out.WriteString(maskUserinfo(one))
	}
	return inKeyValue.ReplaceAllString(out.String(), "$1="+mask)
}

// maskUserinfo keeps a user's name and masks the rest. A single word before the @ is a token and is
// masked too, except for PostgreSQL, where it is a user.
func maskUserinfo(u string) string {
	start := strings.Index(u, "://")
	end := strings.LastIndex(u, "@")
	if start < 0 || end < start {
		return u
	}
	scheme, info, rest := u[:start+3], u[start+3:end], u[end:]
	user, _, ok := strings.Cut(info, ":")
	switch {
	case ok:
		return scheme + user + ":" + mask + rest
	case strings.HasPrefix(scheme, "postgres") && !strings.ContainsAny(info, "/?,"):
		return u
	}
	return scheme + mask + rest
}
