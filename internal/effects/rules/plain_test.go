package rules_test

import (
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/postern-gateway/postern/internal/effects/rules"
)

func text(t *testing.T, s string) *rules.Text {
	t.Helper()
	c, err := rules.CompileText(s, change)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// What the ledger cannot keep as it is sent is not sent: its repetition would be other bytes.
func TestRequestsThatCannotBeKept(t *testing.T) {
	t.Parallel()
	f := facts(t, ``, `{"nul":"YQBi","name":"Zoë"}`)
	request := func() rules.Request { return rules.Request{Method: "POST", Path: text(t, "/x")} }
	for what, broken := range map[string]string{"NUL": `{{ fromBase64(new.nul) }}`, "UTF-8": `{{ new.name[:3] }}`} {
		tree, err := rules.CompileTree(map[string]any{"a": broken, "b": "x " + broken}, change)
		if err != nil {
			t.Fatal(err)
		}
		all := map[string]rules.Request{}
		for _, part := range []string{"path", "headers", "text", "form", "json"} {
			r := request()
			switch part {
			case "path":
				r.Path = text(t, "/x/"+broken)
			case "headers":
				r.Headers = map[string]*rules.Text{"X-A": text(t, broken)}
			case "text":
				r.Text = text(t, "a"+broken)
			case "form":
				r.Form = map[string]*rules.Text{"a": text(t, broken)}
			case "json":
				r.JSON = tree
			}
			all[part] = r
		}
		for part, r := range all {
			if got, err := r.Render(f, "k"); err == nil || !strings.Contains(err.Error(), part) || !strings.Contains(err.Error(), what) {
				t.Errorf("%s in %s: %+v, %v", what, part, got, err)
			}
		}
	}
	literal := request()
	literal.Text = text(t, "a\x00b")
	if got, err := literal.Render(f, "k"); err == nil {
		t.Errorf("NUL as it is written: %+v", got)
	}
	whole := request()
	whole.Text = text(t, "{{ new.name }}")
	if got, err := whole.Render(f, "k"); err != nil || got.Body != "Zoë" {
		t.Errorf("%+v, %v", got, err)
	}
}

// An error that holds a value is short and can be kept.
func TestErrorsArePlain(t *testing.T) {
	t.Parallel()
	f := facts(t, ``, `{"nul":"YQBi","text":"`+strings.Repeat("é", 9000)+`"}`)
	for _, of := range []string{`{{ date(fromBase64(new.nul)) }}`, `{{ date(new.text) }}`, `{{ date(new.text[:3]) }}`} {
		_, err := text(t, of).Render(f)
		if err == nil || strings.ContainsRune(err.Error(), 0) || !utf8.ValidString(err.Error()) || len(err.Error()) > 600 || !strings.Contains(err.Error(), "invalid date") {
			t.Errorf("%s: %.700q", of, err)
		}
	}
}
