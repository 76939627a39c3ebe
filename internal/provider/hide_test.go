package provider_test

import (
	"encoding/base64"
	"net/url"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
)

// What is quoted is rid of the key before it is cut, wherever the cut lies.
func TestQuote(t *testing.T) {
	t.Parallel()
	const key = "sk_live_across"
	api := &provider.API{Key: provider.Secret{Value: []byte(key)}}
	for before := range 40 {
		text := api.Quote(strings.Repeat("x", before)+key+" and more", 30)
		if strings.Contains(text, key[:4]) || len(text) > 32 || !strings.HasPrefix(text, `"`) {
			t.Errorf("behind %d characters: %s", before, text)
		}
	}
	if got := (*provider.API)(nil).Quote("a\nbc", 3); got != `"a\nb"` {
		t.Errorf("of no API: %s", got)
	}
}

// However a key is written, as it is, in base64 or escaped, a text is rid of it.
func TestHide(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"user:pass", "sk/live+1 &?", "ab~~~~ÿ", "sixsix"} {
		api := &provider.API{Key: provider.Secret{Value: []byte(key)}}
		coded := base64.StdEncoding.EncodeToString([]byte(key))
		for _, spelt := range []string{key, coded, url.QueryEscape(key), url.PathEscape(key), url.QueryEscape(coded), url.PathEscape(coded)} {
			text := "Basic " + spelt + ", twice: " + spelt
			hidden := api.Hide(text)
			if !api.Shows(text) || api.Shows(hidden) || len(hidden) > len("Basic [hidden]%3D%3D, twice: [hidden]%3D%3D") {
				t.Errorf("of %q is left %q", text, hidden)
			}
		}
		if text := "nothing of it"; api.Shows(text) || api.Hide(text) != text {
			t.Errorf("%q is found in %q", key, text)
		}
	}
	short := &provider.API{Key: provider.Secret{Value: []byte("the")}}
	if text := "the other"; short.Shows(text) || short.Hide(text) != text {
		t.Errorf("what is no key is found in words")
	}
}
