package signature

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"strings"
)

// findMistakes undoes common mistakes, one at a time, and describes the first of each kind that
// makes the signature match.
func (s *Scheme) findMistakes(secrets [][]byte, r Request) []string {
	var out []string
	for _, kind := range []func([][]byte, Request) string{s.findBodyMistake, s.findSecretMistake, s.findKeyMistake,
		s.findURLMistake, s.findFormMistake} {
		if description := kind(secrets, r); description != "" {
			out = append(out, description)
		}
	}
	return out
}

func (s *Scheme) findBodyMistake(secrets [][]byte, r Request) string {
	body := r.Body
	for _, m := range bodyMistakes {
		r.Body = m.change(body)
		if r.Body != nil && !bytes.Equal(body, r.Body) && s.verifies(secrets, &r) {
			return m.description
		}
	}
	return ""
}

func (s *Scheme) findSecretMistake(secrets [][]byte, r Request) string {
	for _, m := range secretMistakes {
		if s.verifies(changeAll(secrets, m.change), &r) {
			return m.description
		}
	}
	return ""
}

func (s *Scheme) findKeyMistake(secrets [][]byte, r Request) string {
	if s.IsAsymmetric() {
		return ""
	}
	for _, m := range keyMistakes {
		other := *s
		other.Key = m.key
		if other.verifies(secrets, &r) {
			return m.description
		}
	}
	return ""
}

func (s *Scheme) findURLMistake(secrets [][]byte, r Request) string {
	address := r.URL
	for _, m := range urlMistakes {
		r.URL = m.change(address)
		if r.URL != address && s.verifies(secrets, &r) {
			return m.description
		}
	}
	return ""
}

func (s *Scheme) findFormMistake(secrets [][]byte, r Request) string {
	for _, other := range s.otherForms() {
		if other.verifies(secrets, &r) {
			return "as " + other.describeForm()
		}
	}
	return ""
}

func (s *Scheme) verifies(secrets [][]byte, r *Request) bool {
	v := &values{request: r}
	claims, err := s.readClaims(v)
	if err != nil {
		return false
	}
	_, _, err = s.findMatch(secrets, v, claims)
	return err == nil
}

// otherForms returns the scheme with other digests, encodings and prefixes.
func (s *Scheme) otherForms() []*Scheme {
	if s.Method == Token {
		return nil
	}
	var out []*Scheme
	seen := map[string]bool{s.describeForm(): true}
	for _, digest := range []Digest{SHA256, SHA1, SHA512} {
		for _, encoding := range []Encoding{Hex, Base64, Base64URL} {
			for _, prefix := range append([]string{s.Signature.Prefix, ""}, knownPrefixes...) {
				other := *s
				other.Digest, other.Encoding, other.Signature.Prefix = digest, encoding, prefix
				if form := other.describeForm(); !seen[form] {
					seen[form] = true
					out = append(out, &other)
				}
			}
		}
	}
	return out
}

func changeAll(secrets [][]byte, change func(string) string) [][]byte {
	var out [][]byte
	for _, secret := range secrets {
		if changed := change(string(secret)); changed != string(secret) {
			out = append(out, []byte(changed))
		}
	}
	return out
}

// bodyMistakes are mistakes with the body. change undoes the mistake; it returns nil if it cannot.
var bodyMistakes = []struct {
	description string
	change      func([]byte) []byte
}{
	{"with a newline after the body: something removed it (curl -d @file does; use --data-binary @file)",
		func(b []byte) []byte { return append(bytes.Clone(b), '\n') }},
	{"with CR and LF after the body: something removed them (curl -d @file does; use --data-binary @file)",
		func(b []byte) []byte { return append(bytes.Clone(b), '\r', '\n') }},
	{"without the newline at the body's end: an editor or a shell added it (printf '%s' and editors in binary mode " +
		"do not)",
		func(b []byte) []byte { return bytes.TrimRight(b, "\r\n") }},
	{"with LF for each CR LF: something changed the line ends (a file transfer in text mode, git's autocrlf)",
		func(b []byte) []byte { return bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")) }},
	{"with CR LF for each LF: something changed the line ends (a file transfer in text mode, git's autocrlf)",
		func(b []byte) []byte {
			return bytes.ReplaceAll(bytes.ReplaceAll(b, []byte("\r\n"), []byte("\n")), []byte("\n"), []byte("\r\n"))
		}},
	{"without the line breaks in the body",
		func(b []byte) []byte {
			return bytes.ReplaceAll(bytes.ReplaceAll(b, []byte("\r"), nil), []byte("\n"), nil)
		}},
	{"without the byte order mark before the body: an editor added it (save as UTF-8 without BOM)",
		func(b []byte) []byte { return bytes.TrimPrefix(b, []byte("\xef\xbb\xbf")) }},
	{"with the body decoded from base64: a proxy or a function runtime encodes bodies like this",
		func(b []byte) []byte {
			out, err := base64.StdEncoding.DecodeString(string(b))
			if err != nil {
				return nil
			}
			return out
		}},
	{"with the JSON written without spaces: something parsed the body and wrote it again (express.json, a proxy, an " +
		"editor); take the raw bytes",
		compactJSON},
	{"with the JSON indented by two spaces: something parsed the body and wrote it again (an editor, jq, curl -d " +
		"@file); take the raw bytes",
		func(b []byte) []byte {
			var out bytes.Buffer
			if json.Indent(&out, bytes.TrimSpace(b), "", "  ") != nil {
				return nil
			}
			return out.Bytes()
		}},
	{"with the JSON written as Python does, a space after each comma and colon: something parsed the body and wrote " +
		"it again; take the raw bytes",
		func(b []byte) []byte { return addSpaces(compactJSON(b)) }},
}

func compactJSON(b []byte) []byte {
	var out bytes.Buffer
	if json.Compact(&out, b) != nil {
		return nil
	}
	return out.Bytes()
}

// addSpaces adds a space after each comma and colon of compact JSON.
func addSpaces(b []byte) []byte {
	var out []byte
	for i := 0; i < len(b); {
		if b[i] == '"' {
			end := stringEnd(b, i)
			out = append(out, b[i:end]...)
			i = end
			continue
		}
		out = append(out, b[i])
		if b[i] == ',' || b[i] == ':' {
			out = append(out, ' ')
		}
		i++
	}
	return out
}

var secretMistakes = []struct {
	description string
	change      func(string) string
}{
	{"without the white space around the secret: a file ends with a newline, or the secret was copied with one",
		strings.TrimSpace},
	{"without the quotes around the secret: they are part of the configured value", func(s string) string {
		return strings.Trim(strings.TrimSpace(s), "\"'`")
	}},
	{"without the secret's prefix, up to its first underscore", func(s string) string {
		_, rest, _ := strings.Cut(s, "_")
		return rest
	}},
	{`with "whsec_" before the secret: copy it whole, as the provider shows it`,
		func(s string) string { return "whsec_" + s }},
}

var keyMistakes = []struct {
	description string
	key         Key
}{
	{"with the secret used verbatim", Key{}},
	{"with the secret decoded from base64", Key{Form: KeyBase64}},
	{"with the secret decoded from base64, without its prefix whsec_",
		Key{Form: KeyBase64, Strip: []string{"whsec_", "v1,whsec_"}}},
	{"with the secret decoded from hexadecimal", Key{Form: KeyHex}},
}

var urlMistakes = []struct {
	description string
	change      func(string) string
}{
	{"with https instead of http in the url", func(u string) string { return replacePrefix(u, "http://", "https://") }},
	{"with http instead of https in the url", func(u string) string { return replacePrefix(u, "https://", "http://") }},
	{"with or without the port in the url, contrary to the configuration", togglePort},
	{"with or without a slash at the end of the url's path, contrary to the configuration", toggleSlash},
	{"without the query of the url", func(u string) string {
		before, _, _ := strings.Cut(u, "?")
		return before
	}},
}

func replacePrefix(text, from, to string) string {
	if rest, ok := strings.CutPrefix(text, from); ok {
		return to + rest
	}
	return text
}

func toggleSlash(address string) string {
	path, query, hasQuery := strings.Cut(address, "?")
	if trimmed := strings.TrimSuffix(path, "/"); trimmed != path {
		path = trimmed
	} else {
		path += "/"
	}
	if hasQuery {
		path += fmt.Sprintf("?%s", query)
	}
	return path
}
