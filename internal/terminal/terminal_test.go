package terminal_test

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/postern-gateway/postern/internal/terminal"
)

func TestEscape(t *testing.T) {
	t.Parallel()
	for text, want := range map[string]string{
		"": "",
		"plain\n\tGrüße 日本 👩\u200d💻\u00a0": "plain\n\tGrüße 日本 👩\u200d💻\u00a0",
		"\x00\a\b\r\x1b[2J\x7f":            `\u0000\u0007\u0008\u000d\u001b[2J\u007f`,
		"\u0080\u009b31m\u009f":            `\u0080\u009b31m\u009f`,
		"\u061c\u200e\u200f\u202a\u202e":   `\u061c\u200e\u200f\u202a\u202e`,
		"\u2066\u2069":                     `\u2066\u2069`,
		"a\x9b31m\xc3":                     `a\x9b31m\xc3`,
		"\ufffd":                           "\ufffd",
	} {
		if got := terminal.Escape(text); got != want {
			t.Errorf("%+q: %+q, want %+q", text, got, want)
		}
	}
}

// Every character that is shown as an escape must keep the value of a JSON text.
func TestScreen_json_keepsItsValue(t *testing.T) {
	t.Parallel()
	var all []rune
	for r := rune(0); r < 0x3000; r++ {
		all = append(all, r)
	}
	before, err := json.Marshal(string(all))
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	if n, err := terminal.New(&out).Write(before); n != len(before) || err != nil {
		t.Fatalf("%d of %d bytes, %v", n, len(before), err)
	}
	var after string
	if bytes.ContainsAny(out.Bytes(), "\x7f\u0080\u202e") {
		t.Error("control characters reach the terminal")
	}
	if err := json.Unmarshal(out.Bytes(), &after); err != nil || after != string(all) {
		t.Errorf("another value: %v", err)
	}
}

func TestScreen_progressLine_isEscapedBetweenSequences(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	if err := terminal.New(&out).Line("run 1: \x1b[2J"); err != nil || out.String() != "\r"+`run 1: \u001b[2J`+
		"\x1b[K" {
		t.Errorf("%q, %v", out.String(), err)
	}
}

func TestWriter_file_isTheFileItself(t *testing.T) {
	t.Parallel()
	f, err := os.Create(filepath.Join(t.TempDir(), "out"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if w := terminal.Writer(f); w != f {
		t.Errorf("%T", w)
	}
}
