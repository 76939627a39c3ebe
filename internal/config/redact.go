package config

import (
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml"
)

const hidden = "[hidden]"

// Hidden is text that no print, log line or encoding shows; string(h) is the text itself.
type Hidden string

// String hides the text.
func (h Hidden) String() string {
	if h == "" {
		return ""
	}
	return hidden
}

// GoString hides the text from %#v.
func (h Hidden) GoString() string { return fmt.Sprintf("%q", h.String()) }

// MarshalText hides the text from JSON and other encodings.
func (h Hidden) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// URL is a connection string that may carry a password; it prints without one. string(u) is the whole.
type URL string

// String leaves passwords out.
func (u URL) String() string { return RedactURL(string(u)) }

// GoString leaves passwords out of %#v.
func (u URL) GoString() string { return fmt.Sprintf("%q", u.String()) }

// MarshalText leaves passwords out of JSON and other encodings.
func (u URL) MarshalText() ([]byte, error) { return []byte(u.String()), nil }

var (
	nextURL    = regexp.MustCompile(`,[a-z+]+://`)
	inKeyValue = regexp.MustCompile(`(?i)\b([a-z]*password)\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&]*)`)
)

// RedactURL hides the passwords of a connection string: of each URL of a comma-separated list, and password=... of
// key-value strings and queries. It rather hides too much than too little where a password is not escaped.
func RedactURL(s string) string {
	var out strings.Builder
	for s != "" {
		one := s
		if cut := nextURL.FindStringIndex(s); cut != nil {
			one = s[:cut[0]+1]
		}
		s = s[len(one):]
		out.WriteString(redactUserinfo(one))
	}
	return inKeyValue.ReplaceAllString(out.String(), "$1="+hidden)
}

// redactUserinfo keeps a user's name and hides what follows it; a lone word before the @ is a token and hidden too,
// unless the scheme is PostgreSQL's, where it is a user.
func redactUserinfo(u string) string {
	start := strings.Index(u, "://")
	end := strings.LastIndex(u, "@")
	if start < 0 || end < start {
		return u
	}
	scheme, info, rest := u[:start+3], u[start+3:end], u[end:]
	user, _, ok := strings.Cut(info, ":")
	switch {
	case ok:
		return scheme + user + ":" + hidden + rest
	case strings.HasPrefix(scheme, "postgres") && !strings.ContainsAny(info, "/?,"):
		return u
	}
	return scheme + hidden + rest
}

// Format prints a secret's name, whatever the verb: what was read from env or file is hidden with the rest.
func (s Secret) Format(f fmt.State, _ rune) { _, _ = io.WriteString(f, "secret "+s.Name) }

// String is the whole configuration as YAML without any secret or password, for a person.
func (c *Config) String() string {
	b, err := yaml.Marshal(c)
	if err != nil {
		return "config: " + err.Error()
	}
	return string(b)
}

// LogValue logs what tells one process from another, without any secret or password.
func (c *Config) LogValue() slog.Value {
	return slog.GroupValue(
		slog.String("database", c.Database.URL.String()),
		slog.String("nats", c.NATS.URL.String()),
		slog.String("listen", c.Ingest.Listen),
		slog.Int("sources", len(c.Sources)),
	)
}
