package settings

import (
	"net/http"
	"slices"
	"strings"
)

// reservedHeaders are headers that the HTTP client sets, or that change the response's encoding.
var reservedHeaders = []string{"Host", "Content-Length", "Connection", "Transfer-Encoding", "Accept-Encoding",
	"User-Agent", "Cache-Control"}

// CredentialHeader requires a header with a key, e.g. "Authorization: Bearer {key}"; empty means
// the default.
func (c Checker) CredentialHeader(key, text string) {
	name, value, _ := strings.Cut(text, ":")
	if text != "" && (!isCallHeader(strings.TrimSpace(name)) || !strings.Contains(value, "{key}") &&
		!strings.Contains(value, "{key_base64}")) {
		c.Fail(key, "%q is not a header with the key: write e.g. 'Authorization: Bearer {key}' or 'X-Api-Key: {key}'",
			text)
	}
}

// CallHeader requires a header that calls may set. credential says what to do with a credential.
func (c Checker) CallHeader(name, value, credential string) {
	switch {
	case !isCallHeader(name):
		c.Fail(name, "cannot be set here: leave it out")
	case IsCredentialHeader(name):
		c.Fail(name, "%s", credential)
	case strings.ContainsAny(value, "\r\n\x00"):
		c.Fail(name, "contains a line break: remove it")
	}
}

// isCallHeader reports whether a call may set a header: its name is valid and not reserved.
func isCallHeader(name string) bool {
	return IsHeaderName(name) && !slices.Contains(reservedHeaders, http.CanonicalHeaderKey(name))
}

// IsHeaderName reports whether a text is a valid header name.
func IsHeaderName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}

// IsCredentialHeader reports whether a header, by its name, carries a credential. A signature in
// such a header is stored all the same: it verifies one delivery and gives no access.
func IsCredentialHeader(header string) bool {
	name := http.CanonicalHeaderKey(header)
	return slices.Contains([]string{"Authorization", "Proxy-Authorization", "Cookie", "Set-Cookie",
		"X-Forwarded-Client-Cert"}, name) ||
		slices.ContainsFunc([]string{"Token", "Secret", "Password", "Api-Key", "Apikey"},
			func(end string) bool { return name == end || strings.HasSuffix(name, "-"+end) })
}
