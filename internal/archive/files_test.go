package archive_test

import (
	"bytes"
	"encoding/csv"
	"encoding/json"
	"slices"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/archive"
)

// Whatever a file holds, reading it comes to an end, and of lines and rows nothing is left out: what is no event is an entry that says why.
func FuzzFile(f *testing.F) {
	for _, text := range []string{"{\"id\":1}\n\n[2]\r\n", "a,b\n1,\"x\"\"\ny\"\n1\n\"z\"y,2", "[{\"a\":\"]\\\"\"}, 1 ,{]", `{"object":"list","data":[{"id":1}],"x":{"data":[0]}} [2]`,
		"\x1f\x8b\x08", "\x28\xb5\x2f\xfd", "{\"postern\":1}\n"} {
		for i := range archive.Formats {
			f.Add([]byte(text), i)
		}
	}
	f.Fuzz(func(t *testing.T, text []byte, n int) {
		format := archive.Formats[uint(n)%uint(len(archive.Formats))]
		raws, errs, err := archive.Entries(text, format, nil)
		if err != nil || bytes.HasPrefix(text, []byte{0x1f, 0x8b}) || bytes.HasPrefix(text, []byte{0x28, 0xb5, 0x2f, 0xfd}) {
			return
		}
		if len(raws) != len(errs) || len(raws) > len(text)+1 {
			t.Fatalf("%d entries, %d errors", len(raws), len(errs))
		}
		switch format {
		case archive.Postern, archive.Events, archive.CSV:
			got, want := solid(bytes.Join(raws, nil)), solid(text)
			if !bytes.HasSuffix(want, got) || format != archive.CSV && len(got) != len(want) {
				t.Fatalf("%s: entries %q of %q", format, got, want)
			}
		}
	})
}

// solid is text without the ends of lines, as which blank lines are passed over.
func solid(text []byte) []byte {
	var out []byte
	for line := range bytes.Lines(text) {
		if len(bytes.TrimSpace(line)) > 0 {
			out = append(out, bytes.Trim(line, "\r\n")...)
		}
	}
	return out
}

// Rows are read as encoding/csv reads what it wrote, but for ends of lines inside quotes, which stay.
func TestRowsAreRead(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		cell := rapid.Map(rapid.StringOf(rapid.SampledFrom([]rune("ab,\"\n\r ä\\"))), func(s string) string { return "x" + s })
		want := rapid.SliceOfN(rapid.SliceOfN(cell, 3, 3), 1, 5).Draw(t, "rows")
		var text bytes.Buffer
		w := csv.NewWriter(&text)
		if err := w.WriteAll(append([][]string{{"a", "b", "c"}}, want...)); err != nil {
			t.Fatal(err)
		}
		raws, errs, err := archive.Entries(text.Bytes(), archive.CSV, nil)
		if err != nil || slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
			t.Fatal(err, errs)
		}
		got := archive.Rows(text.Bytes())
		if len(raws) != len(want) || !slices.EqualFunc(got, want, slices.Equal[[]string]) {
			t.Fatalf("got %q, want %q", got, want)
		}
	})
}

// Of a list of values each is read with its exact bytes, whatever is in it, and however it is laid out.
func TestListsAreRead(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		texts := rapid.SliceOf(rapid.StringOf(rapid.SampledFrom([]rune(`{}[],:"\ data`)))).Draw(t, "texts")
		var values []string
		for i, text := range texts {
			value, err := json.Marshal([]any{text, map[string]any{"data": []any{text}, text: i}, i, nil, true}[i%5])
			if err != nil {
				t.Fatal(err)
			}
			values = append(values, string(value))
		}
		space := rapid.SampledFrom([]string{"", " ", "\n", "\r\n\t"}).Draw(t, "space")
		list := space + "[" + space + strings.Join(values, space+","+space) + space + "]" + space
		page := `{"has_more":[1,{"data":[2]}],"object":"list",` + space + `"data"` + space + ":" + list + `,"url":"]}"}`
		for _, file := range []string{list, page, list + page + list} {
			raws, errs, err := archive.Entries([]byte(file), archive.List, nil)
			if err != nil || slices.ContainsFunc(errs, func(err error) bool { return err != nil }) {
				t.Fatal(err, errs)
			}
			want := strings.Join(values, "\n")
			got := strings.TrimSuffix(string(bytes.Join(raws, nil)), "\n")
			if file != list && file != page {
				want = strings.Trim(strings.Repeat(want+"\n", 3), "\n")
			}
			if len(values) > 0 && got != want {
				t.Fatalf("%s: got %q, want %q", file, got, want)
			}
		}
	})
}
