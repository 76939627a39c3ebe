package provider_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/signature"
)

var scheme = signature.Scheme{
	Name: "test", Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Test")}, Separator: ",", Assign: "=", Item: "v1"},
	Timestamp: &signature.Clock{From: signature.MustRef("item:t")}, Message: signature.MustTemplate("{timestamp}{body}"),
}

func TestProve(t *testing.T) {
	t.Parallel()
	at := time.Unix(1_700_000_000, 0).UTC()
	signed := signature.Request{Body: []byte("body")}
	if err := scheme.Sign([]byte("key"), &signed, at); err != nil {
		t.Fatal(err)
	}
	right := signed.Header.Get("X-Test")
	tests := map[string]struct {
		header string
		age    time.Duration
		want   provider.Reason
	}{
		"right":     {right, 0, ""},
		"in time":   {right, provider.DefaultTolerance, ""},
		"missing":   {"", 0, provider.MissingSignature},
		"malformed": {"t", 0, provider.MalformedSignature},
		"wrong":     {"t=1700000000,v1=00", 0, provider.WrongSignature},
		"stale":     {right, provider.DefaultTolerance + 1, provider.StaleTimestamp},
		"future":    {right, -provider.DefaultTolerance - 1, provider.FutureTimestamp},
	}
	src := &provider.Source{Secrets: []provider.Secret{{Name: "old", Value: []byte("other")}, {Name: "new", Value: []byte("key")}}}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d := &provider.Delivery{Header: http.Header{"X-Test": {test.header}}, Body: []byte("body"), ReceivedAt: at.Add(test.age)}
			v, err := provider.Prove(src, d, &scheme)
			if test.want == "" {
				if want := (provider.Verification{Scheme: "test", Secret: "new", SignedAt: at}); err != nil || v != want {
					t.Errorf("prove: %+v, %v", v, err)
				}
				return
			}
			var r *provider.Rejection
			if !errors.As(err, &r) || r.Reason != test.want || r.Detail == "" || r.Reason.Explain() == string(r.Reason) {
				t.Errorf("prove: %v, want %s, explained", err, test.want)
			}
		})
	}
}

func TestSecretsAreNeverPrinted(t *testing.T) {
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

func TestValidName(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{
		"evt_1": true, "é": true, strings.Repeat("x", 255): true,
		"": false, strings.Repeat("x", 256): false, "a\x00": false, "a\nb": false, "\xff": false, "\u0085": false, "a\ufffd": false,
	}
	for s, want := range tests {
		if provider.ValidName(s) != want {
			t.Errorf("%q: %v", s, !want)
		}
	}
}

func TestReadObject(t *testing.T) {
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

// Parts are told apart whatever they hold: moving a byte from one to the next is another content.
func TestContentKey(t *testing.T) {
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
		t.Error("parts run into each other")
	}
}

func TestEditKeepsDigits(t *testing.T) {
	t.Parallel()
	got, err := provider.Edit([]byte(`{"b": 820982911946154508, "a": "<x>"}`), "", func(o map[string]any) { o["c"] = json.Number("1") })
	if want := `{"a":"<x>","b":820982911946154508,"c":1}`; err != nil || string(got) != want {
		t.Errorf("edit: %s, %v, want %s", got, err, want)
	}
	for _, body := range []string{`[]`, `null`, `{`, ``} {
		if _, err := provider.Edit([]byte(body), "", func(map[string]any) {}); err == nil {
			t.Errorf("edit takes %q", body)
		}
	}
}
