package provider

import (
	"encoding/base64"
	"fmt"
	"net/url"
	"slices"
	"strings"
)

// shortestKey is the shortest text that is looked for where a key must not be shown: a shorter one is none, and would be found in words.
const shortestKey = 6

// Hide takes the key out of a text, in each way in which it may have been sent and written back.
func (a *API) Hide(text string) string {
	for _, spelt := range a.spelt() {
		text = strings.ReplaceAll(text, spelt, "[hidden]")
	}
	return text
}

// Quote is a text that a server sent, as an error may have it: without the key, cut to so many characters, and in quotes. What is cut first may end in the middle of a key that is not found any more.
// It may be called on nil, where no key is known.
func (a *API) Quote(text string, most int) string {
	if a != nil {
		text = a.Hide(text)
	}
	return fmt.Sprintf("%.*q", most, text)
}

// Shows tells whether the key is in a text.
func (a *API) Shows(text string) bool {
	return slices.ContainsFunc(a.spelt(), func(spelt string) bool { return strings.Contains(text, spelt) })
}

// spelt are the key as it is and in base64, whose padding others may leave out, both also as an address escapes them.
func (a *API) spelt() []string {
	if len(a.Key.Value) < shortestKey {
		return nil
	}
	plain, coded := string(a.Key.Value), base64.RawStdEncoding.EncodeToString(a.Key.Value)
	return []string{plain, url.QueryEscape(plain), url.PathEscape(plain), coded, url.QueryEscape(coded), url.PathEscape(coded)}
}
