package provider

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// minKeyLength is the length from which a key is masked. A shorter text is no real key, and would
// occur in ordinary words.
const minKeyLength = 6

// Mask replaces the key in a text, in every form in which it may have been sent and returned.
func (a *API) Mask(text string) string {
	for _, form := range a.keyForms() {
		text = strings.ReplaceAll(text, form, "[hidden]")
	}
	return text
}

// Quote returns a text from a server for use in an error: masked, cut to limit characters, and
// quoted. It masks before it cuts, because part of a key would not be found. It may be called on
// nil when no key is known.
func (a *API) Quote(text string, limit int) string {
	if a != nil {
		text = a.Mask(text)
	}
	return fmt.Sprintf("%.*q", limit, text)
}

// ContainsKey reports whether a text contains the key.
func (a *API) ContainsKey(text string) bool {
	return slices.ContainsFunc(a.keyForms(), func(form string) bool { return strings.Contains(text, form) })
}

// keyForms returns the key as it is and in base64 without padding, each also escaped as in a URL.
func (a *API) keyForms() []string {
	if len(a.Key.Value) < minKeyLength {
		return nil
	}
	plain, coded := string(a.Key.Value), base64.RawStdEncoding.EncodeToString(a.Key.Value)
	return []string{plain, url.QueryEscape(plain), url.PathEscape(plain), coded, url.QueryEscape(coded),
		url.PathEscape(coded)}
}
