package provider_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/provider"
)

func TestSecret_printed_isMasked(t *testing.T) {
	t.Parallel()
	s := provider.Secret{Name: "live", Value: []byte("hunter2")}
	encoded, err := json.Marshal(s)
	if err != nil {
		t.Fatal(err)
	}
	got := fmt.Sprint(s, &s, []provider.Secret{s}) + fmt.Sprintf("%v %+v %#v %s", s, s, s, s) + string(encoded)
	for _, value := range []string{"hunter2", "0x68", "104 117", "aHVudGVyMg"} {
		if strings.Contains(got, value) {
			t.Errorf("printed: %s", got)
		}
	}
}

func TestValidName_texts_areAcceptedOrRejected(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{
		"evt_1": true, "é": true, strings.Repeat("x", 255): true,
		"": false, strings.Repeat("x", 256): false, "a\x00": false, "a\nb": false, "\xff": false, "\u0085": false,
		"a\ufffd": false,
	}
	for s, want := range tests {
		if provider.ValidName(s) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
}

func TestReadObject_bodies_areReadOrDead(t *testing.T) {
	t.Parallel()
	if _, err := provider.ReadObject([]byte(` {"a": 1} `)); err != nil {
		t.Error(err)
	}
	tests := map[string]string{
		`{"a": }`: "at byte 6", `[]`: "a JSON array", `null`: "a JSON null", ``: "not JSON", "\"\xff\"": "not JSON",
	}
	for body, want := range tests {
		_, err := provider.ReadObject([]byte(body))
		if dead := new(provider.Dead); !errors.As(err, &dead) || !strings.Contains(dead.Reason, want) {
			t.Errorf("%q: %v, want %q", body, err, want)
		}
	}
}

// The parts are separated: moving a byte from one part to the next gives another key.
func TestContentKey_parts_giveDistinctKeys(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		part := func(name string) string { return rapid.StringN(0, 3, 12).Draw(t, name) }
		a, b := [3]string{part("a1"), part("a2"), part("a3")}, [3]string{part("b1"), part("b2"), part("b3")}
		keyA, keyB := provider.ContentKey(a[0], a[1], []byte(a[2])), provider.ContentKey(b[0], b[1], []byte(b[2]))
		if (keyA == keyB) != (a == b) {
			t.Fatalf("%q and %q: %s, %s", a, b, keyA, keyB)
		}
	})
	if provider.ContentKey("a", "b", []byte("c")) == provider.ContentKey("ab", "", []byte("c")) {
		t.Error("the parts are not separated")
	}
}

func TestEditJSON_numbers_keepDigits(t *testing.T) {
	t.Parallel()
	got, err := provider.EditJSON([]byte(`{"b": 820982911946154508, "a": "<x>"}`), "",
		func(o map[string]any) { o["c"] = json.Number("1") })
	if want := `{"a":"<x>","b":820982911946154508,"c":1}`; err != nil || string(got) != want {
		t.Errorf("edit: %s, %v, want %s", got, err, want)
	}
	for _, body := range []string{`[]`, `null`, `{`, ``} {
		if _, err := provider.EditJSON([]byte(body), "", func(map[string]any) {}); err == nil {
			t.Errorf("edit accepts %q", body)
		}
	}
}

// The key is masked before the text is cut, wherever the cut is.
func TestQuote_longText_isMaskedAndCut(t *testing.T) {
	t.Parallel()
	const key = "sk_live_across"
	api := &provider.API{Key: provider.Secret{Value: []byte(key)}}
	for before := range 40 {
		text := api.Quote(strings.Repeat("x", before)+key+" and more", 30)
		if strings.Contains(text, key[:4]) || len(text) > 32 || !strings.HasPrefix(text, `"`) {
			t.Errorf("after %d characters: %s", before, text)
		}
	}
	if got := (*provider.API)(nil).Quote("a\nbc", 3); got != `"a\nb"` {
		t.Errorf("without an API: %s", got)
	}
}

// A key is masked in each form: as it is, in base64, or escaped.
func TestMask_keyForms_areReplaced(t *testing.T) {
	t.Parallel()
	for _, key := range []string{"user:pass", "sk/live+1 &?", "ab~~~~ÿ", "sixsix"} {
		api := &provider.API{Key: provider.Secret{Value: []byte(key)}}
		coded := base64.StdEncoding.EncodeToString([]byte(key))
		for _, form := range []string{key, coded, url.QueryEscape(key), url.PathEscape(key), url.QueryEscape(coded),
			url.PathEscape(coded)} {
			text := "Basic " + form + ", twice: " + form
			masked := api.Mask(text)
			if !api.ContainsKey(text) || api.ContainsKey(masked) ||
				len(masked) > len("Basic [hidden]%3D%3D, twice: [hidden]%3D%3D") {
				t.Errorf("%q was masked as %q", text, masked)
			}
		}
		if text := "nothing of it"; api.ContainsKey(text) || api.Mask(text) != text {
			t.Errorf("%q is found in %q", key, text)
		}
	}
	short := &provider.API{Key: provider.Secret{Value: []byte("the")}}
	if text := "the other"; short.ContainsKey(text) || short.Mask(text) != text {
		t.Errorf("a text that is too short for a key is masked")
	}
}

// Each schema has its own fields, so no release reads a refetch as another kind.
func TestDecodeRefetch_bodies_areReadOrDead(t *testing.T) {
	t.Parallel()
	const overwrite = `"overwrite":{"before":"2026-01-01T00:00:00Z","actor":"me","reason":"why"},`
	for more, wrong := range map[string]string{
		`"schema":1,`:                                "",
		`"schema":2,` + overwrite:                    "",
		`"schema":3,"reversioned":true,`:             "",
		`"schema":4,`:                                "has schema 4",
		`"schema":0,`:                                "has schema 0",
		`"schema":2,`:                                "must say what it overwrites",
		`"schema":1,` + overwrite:                    "must say what it overwrites",
		`"schema":3,`:                                "must say that it was re-versioned",
		`"schema":1,"reversioned":true,`:             "must say that it was re-versioned",
		`"schema":2,"reversioned":true,` + overwrite: "must say that it was re-versioned",
	} {
		l, err := provider.DecodeRefetch(fmt.Appendf(nil, `{%s"found":true,"date":"2026-01-01T00:00:01Z","object":{}}`,
			more))
		var dead *provider.Dead
		switch {
		case wrong != "" && (!errors.As(err, &dead) || !strings.Contains(dead.Reason, wrong)):
			t.Errorf("%s: %v, want ...%s...", more, err, wrong)
		case wrong == "" && (err != nil || l.Reversioned != strings.Contains(more, "reversioned") ||
			(l.Overwrite != nil) != strings.Contains(more, "overwrite")):
			t.Errorf("%s: %+v, %v", more, l, err)
		}
	}
}

func TestRetryAfter_headers_giveWait(t *testing.T) {
	t.Parallel()
	const date = "Sun, 22 Nov 2026 04:00:00 GMT"
	for text, want := range map[string]time.Duration{
		"": 0, "0": 0, "-3": 0, "3": 3 * time.Second, "0.25": 250 * time.Millisecond, "NaN": 0, "1e300": time.Hour,
		"86400": time.Hour, "soon": 0,
		"Sun, 22 Nov 2026 04:00:30 GMT": 30 * time.Second, "Sun, 22 Nov 2026 03:00:00 GMT": 0,
		"Mon, 23 Nov 2026 04:00:00 GMT": time.Hour,
	} {
		if got := provider.RetryAfter(http.Header{"Retry-After": {text}, "Date": {date}}); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
	if got := provider.RetryAfter(http.Header{"Retry-After": {date}}); got != 0 {
		t.Errorf("a time without a Date to compare it with: %s", got)
	}
}

func TestClassifyStatus_responses_giveVerdict(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		status int
		body   string
		kind   provider.VerdictKind
		wait   time.Duration
	}{
		{200, "{}", provider.Found, 0}, {201, "\n{ } ", provider.Found, 0}, {200, "[]", provider.Failure, 0},
		{204, "", provider.Failure, 0}, {200, " ", provider.Failure, 0},
		{302, "", provider.Failure, 0}, {400, "", provider.Failure, 0}, {401, "", provider.Rejected, time.Minute},
		{403, "", provider.Rejected, 0},
		{404, "", provider.Failure, 0}, {429, "", provider.Throttled, time.Second}, {502, "", provider.Failure, 0},
		{0, "", provider.Failure, 0},
	} {
		if v := provider.ClassifyStatus(tc.status, http.Header{}, []byte(tc.body)); v.Kind != tc.kind ||
			v.Wait != tc.wait {
			t.Errorf("%d %q: %+v", tc.status, tc.body, v)
		}
	}
}
