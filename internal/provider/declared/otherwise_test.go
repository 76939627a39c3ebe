package declared_test

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/provider/providertest"
	"github.com/postern-gateway/postern/internal/signature"
)

// An event is not read under another one's name after the list, or the places of names, were configured otherwise.
func TestConfiguredOtherwise(t *testing.T) {
	t.Parallel()
	const body = `{"id":"whole","type":"batch","l":[{"id":"a","type":"t","at":5,"data":{"id":"1"}}],"m":[{"id":"b","type":"t","at":5,"data":{"id":"2"}},` +
		`{"id":"a","type":"u","at":5,"data":{"id":"3"}},{"type":"t","at":5,"data":{"id":"4"}}]}`
	split := func(list string) *declared.Provider {
		return declared.New(specOf(func(s *declared.Spec) { s.Events.Split = list }))
	}
	byHeader := declared.New(specOf(func(s *declared.Spec) {
		s.Events.Split, s.Events.Key, s.Events.Type = "m", declared.Templates("{header:X-K}"), declared.Templates("{header:X-T}")
	}))
	dead := "dead: the source was configured otherwise when it came*"
	for name, tc := range map[string]struct {
		p         *declared.Provider
		key, kind string
		index     int
		want      string
	}{
		"as it was":       {split("l"), "a", "t", 0, "thing 1,*"},
		"another list":    {split("m"), "a", "t", 0, dead},
		"no list":         {split(""), "a", "t", 0, dead},
		"another type":    {split("m"), "a", "t", 1, dead},
		"a content key":   {split("m"), "sha256:0a", "t", 2, "thing 4,*"},
		"named elsewhere": {byHeader, "any", "t", 0, "thing 2,*"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o, err := tc.p.Observe(&provider.Source{}, &provider.Stored{Key: tc.key, Type: tc.kind, Index: tc.index, Body: []byte(body)})
			var d *provider.Dead
			if err != nil && !errors.As(err, &d) {
				t.Fatal(err)
			}
			if says := providertest.Summary(o, err); !strings.HasPrefix(says, strings.TrimSuffix(tc.want, "*")) {
				t.Errorf("%s, want %s", says, tc.want)
			}
		})
	}
}

// A token is kept under none of its headers, however many there are, and a numbered signature under twenty.
func TestNumberedHeaders(t *testing.T) {
	t.Parallel()
	numbered := func(method signature.Method) []string {
		return declared.New(specOf(func(s *declared.Spec) {
			s.Headers = []string{"x-token-7", "x-token-50", "x-token-more"}
			s.Schemes = []*signature.Scheme{{Name: "s", Method: method, Encoding: signature.Plain, Signature: signature.Layout{In: []signature.Ref{signature.MustRef("header:X-Token-#")}}}}
		})).Headers()
	}
	tokens := numbered(signature.Token)
	for _, name := range tokens {
		if strings.HasPrefix(name, "X-Token-") && name != "X-Token-More" {
			t.Errorf("the token in %s is kept", name)
		}
	}
	if !slices.Contains(tokens, "X-Token-More") {
		t.Errorf("no X-Token-More in %v", tokens)
	}
	for _, name := range []string{"X-Token-1", "X-Token-20", "X-Token-50"} {
		if kept := numbered(signature.HMAC); !slices.Contains(kept, name) {
			t.Errorf("no %s in %v", name, kept)
		}
	}
}

// Only a provider that has a challenge says so.
func TestChallenges(t *testing.T) {
	t.Parallel()
	none := declared.New(specOf(nil))
	some := declared.New(specOf(func(s *declared.Spec) {
		s.Challenge = func(*provider.Source, *provider.Delivery) *provider.Reply { return nil }
	}))
	if provider.Challenges(none) || !provider.Challenges(some) {
		t.Errorf("challenges: %v without, %v with one", provider.Challenges(none), provider.Challenges(some))
	}
}

// Of a form whose fields are signed without marks between them, one that has a field twice names no object; where the body is signed it
// names one.
func TestRepeatedField(t *testing.T) {
	t.Parallel()
	for message, want := range map[string]string{"{sorted_form}": "k t: ignored: a field of the form comes twice*", "{body}": "k t: thing 1, partial: *"} {
		p := declared.New(specOf(func(s *declared.Spec) {
			s.Schemes[0].Message = signature.MustTemplate(message)
			s.Events.Bodies = []declared.BodyForm{declared.Form}
			s.Objects[0].ID, s.Objects[0].State = declared.Templates("{form:n}"), ""
		}))
		got := told(t, p, &provider.Delivery{Header: http.Header{}, Body: []byte("id=k&type=t&n=1&other=a&other=b")})
		if len(got) != 1 || !strings.HasPrefix(got[0], strings.TrimSuffix(want, "*")) {
			t.Errorf("%s: %v, want %s", message, got, want)
		}
	}
}
