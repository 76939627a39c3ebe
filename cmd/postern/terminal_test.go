package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"reflect"
	"slices"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/terminal"
)

// obeyed are characters that a terminal obeys: stored data with them must not reach one.
const obeyed = "\x1b\a\r\x7f\u0080\u009b\u009f\u061c\u200e\u202e\u2066"

func TestTerminal_storedControlCharacters_areEscaped(t *testing.T) {
	t.Parallel()
	b := setup(t)
	inJSON := strings.NewReplacer("\x1b", `\u001b`, "\a", `\u0007`, "\r", `\u000d`).Replace(obeyed)
	body := fmt.Sprintf(`{"id": "evt_1", "%s": "%s"}`+"\r\n\x1b[2J", inJSON, inJSON)
	id := fmt.Sprint(b.append(t, "stripe", "evt_1"+obeyed, body))
	b.append(t, "stripe", "evt_1"+obeyed, `{}`)
	for _, args := range [][]string{
		{"events", "list"}, {"events", "list", "-o", "json"},
		{"events", "show", id}, {"events", "show", id, "-o", "json"}, {"events", "show", id, "--raw"},
		{"conflicts", "list"}, {"conflicts", "list", "-o", "json"},
		{"conflicts", "show", "1"}, {"conflicts", "show", "1", "-o", "json"},
		{"events", "show", "none" + obeyed}, {"export", "-", "-o", "json"}, {"bogus" + obeyed},
	} {
		piped := b.run(t, args...)
		var out, errs bytes.Buffer
		line := append([]string{"--dir", b.dir}, args...)
		status := run(t.Context(), line, strings.NewReader(""), terminal.New(&out), terminal.New(&errs))
		if got := out.String() + errs.String(); status != piped.status || len(got) == 0 || strings.ContainsAny(got, obeyed) {
			t.Errorf("%q: status %d, %q", args, status, got)
		}
		switch {
		case slices.Contains(args, "--raw"):
			if piped.out != body {
				t.Errorf("%q in a pipe: %q, want %q", args, piped.out, body)
			}
		case slices.Contains(args, "json"):
			got, want := jsonOf(t, out.String()), jsonOf(t, piped.out)
			if !strings.ContainsAny(piped.out, obeyed) || !reflect.DeepEqual(got, want) {
				t.Errorf("%q: another value\n%s\nin a pipe\n%s", args, out.String(), piped.out)
			}
		}
	}
}

// jsonOf reads all values of a text.
func jsonOf(t *testing.T, text string) (all []any) {
	t.Helper()
	for d := json.NewDecoder(strings.NewReader(text)); ; {
		var v any
		if err := d.Decode(&v); err == io.EOF {
			return all
		} else if err != nil {
			t.Fatalf("%v: %s", err, text)
		}
		all = append(all, v)
	}
}
