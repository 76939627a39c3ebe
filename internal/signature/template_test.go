package signature_test

import (
	"fmt"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/postern-gateway/postern/internal/signature"
)

func TestRefs(t *testing.T) {
	t.Parallel()
	tests := map[string]signature.Ref{
		"body":                 {Kind: signature.Body},
		"header:x-request-id":  {Kind: signature.Header, Name: "X-Request-Id"},
		"json:data.id|lower":   {Kind: signature.JSON, Name: "data.id", Lower: true},
		"query:data.id":        {Kind: signature.Query, Name: "data.id"},
		"form:a:b":             {Kind: signature.Form, Name: "a:b"},
		"item:0":               {Kind: signature.Item, Name: "0"},
		"url":                  {Kind: signature.URL},
		"url|port":             {Kind: signature.URL, OtherPort: true},
		"url|unescaped|port":   {Kind: signature.URL, OtherPort: true, Unescaped: true},
		"url|lower|port":       {Kind: signature.URL, OtherPort: true, Lower: true},
		"sorted_form":          {Kind: signature.SortedForm},
		"root:data.object|low": {Kind: signature.Root, Name: "data.object|low"},
	}
	for text, want := range tests {
		got, err := signature.ParseRef(text)
		if err != nil || got != want {
			t.Errorf("%s: %+v, %v; want %+v", text, got, err, want)
		}
		again, err := signature.ParseRef(got.String())
		if err != nil || again != got {
			t.Errorf("%s is written as %s, which is %+v, %v", text, got, again, err)
		}
	}
	for _, text := range []string{"", "Body", "header", "header:", "json:|lower", "body:x", "url:x", "body|port", "header:A|unescaped", "url|upper", "body |lower", "timestamp:"} {
		if r, err := signature.ParseRef(text); err == nil {
			t.Errorf("%q is %+v", text, r)
		} else if !strings.Contains(err.Error(), fmt.Sprintf("%q", text)) {
			t.Errorf("%q: the error does not show it: %v", text, err)
		}
	}
}

func TestTemplates(t *testing.T) {
	t.Parallel()
	values := map[string]string{"body": "B", "header:A": "h", "url": "U", "json:empty": ""}
	find := func(r signature.Ref) (string, bool) {
		s, ok := values[r.String()]
		return s, ok
	}
	tests := map[string]struct{ want, err string }{
		"":                                   {"", ""},
		"v0:{header:A}.{body}":               {"v0:h.B", ""},
		"[id:{header:A};][x:{header:X};]end": {"id:h;end", ""},
		"[{header:A}{header:X}]":             {"", ""},
		"[{json:empty}|]":                    {"|", ""},
		"[plain]":                            {"plain", ""},
		"[]":                                 {"", ""},
		"{{}} [[]]":                          {"{} []", ""},
		"{{{body}}}":                         {"{B}", ""},
		"{body}{header:X}":                   {"B", "header:X is not there"},
		"a\x00\xff{body}":                    {"a\x00\xffB", ""},
	}
	for text, want := range tests {
		template, err := signature.ParseTemplate(text)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		got, err := template.Expand(find)
		said := ""
		if err != nil {
			said = err.Error()
		}
		if got != want.want || said != want.err || template.String() != text {
			t.Errorf("%q: %q, %v; want %+v", text, got, err, want)
		}
	}
	for _, text := range []string{"{", "{body", "}", "]", "[", "[a", "[a[b]]", "{}", "{nothing}", "{body}}", "[{body}", "{bo{dy}", "[[a]"} {
		if template, err := signature.ParseTemplate(text); err == nil {
			t.Errorf("%q is %+v", text, template)
		} else if template.String() != "" {
			t.Errorf("%q: an error and half a template", text)
		}
	}
}

func TestTemplateRefs(t *testing.T) {
	t.Parallel()
	got := text("a{body}[{header:X}b{url}]{body}").Refs()
	if diff := cmp.Diff(in("body", "header:X", "url", "body"), got); diff != "" {
		t.Error(diff)
	}
}

func TestMustPanics(t *testing.T) {
	t.Parallel()
	for name, must := range map[string]func(){"ref": func() { signature.MustRef("x") }, "template": func() { signature.MustTemplate("{x}") }} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("no panic: %s", name)
				}
			}()
			must()
		}()
	}
}
