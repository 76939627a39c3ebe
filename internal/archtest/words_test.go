package archtest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestText_retiredWordsAndWideLines_areFound(t *testing.T) {
	t.Parallel()
	terms, err := readRetired("retired.tsv")
	if err != nil {
		t.Fatal(err)
	}
	files, err := textFiles(root)
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 500 {
		t.Fatalf("found %d files: this is not the module's root", len(files))
	}
	index := indexTerms(terms)
	for _, name := range files {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		found := checkWords(name, text, index)
		if !isGenerated(name, text) {
			found = append(found, checkWidths(name, text)...)
		}
		for _, f := range found {
			t.Errorf("%s:%d: %s", name, f.line, f.message)
		}
	}
}

// The check finds each term of the list in a name, and those of scope all in a comment, a string
// and a document too.
func TestCheckWords_oneOfEachTerm_isFound(t *testing.T) {
	t.Parallel()
	terms, err := readRetired("retired.tsv")
	if err != nil {
		t.Fatal(err)
	}
	if len(terms) < 40 {
		t.Fatalf("the list has %d terms", len(terms))
	}
	for _, term := range terms {
		name := "is"
		for _, word := range term.words {
			name += strings.ToUpper(word[:1]) + word[1:]
		}
		text := strings.Join(term.words, " ")
		sources := map[string]string{
			"a/b.go":  "package b\n\nvar " + name + " int\n",
			"a/b.sql": "SELECT the_" + strings.Join(term.words, "_") + " FROM t;\n",
		}
		if !term.namesOnly {
			sources["a/c.go"] = "package c\n\n// The " + text + " is here.\n"
			sources["a/d.go"] = "package d\n\nconst s = \"the " + text + " is here\"\n"
			sources["a/e.md"] = "The " + strings.ToUpper(text[:1]) + text[1:] + " is here.\n"
		}
		for file, source := range sources {
			found := checkWords(file, source, indexTerms([]retiredTerm{term}))
			if len(found) != 1 || !strings.Contains(found[0].message, text) {
				t.Errorf("%s: %q has %v", text, source, found)
			}
		}
		if len(checkWords("a/b.go", "package b\n\nvar ordinary int // plain\n", indexTerms([]retiredTerm{term}))) > 0 {
			t.Errorf("%s is found where it is not", text)
		}
	}
}

func TestCheckWidths_wideLines_areFound(t *testing.T) {
	t.Parallel()
	wide := func(n int) string { return strings.Repeat("x", n) }
	for name, one := range map[string]struct {
		file, text string
		want       int
	}{
		"code of 120 columns":      {"a.go", wide(120), 0},
		"code of 121 columns":      {"a.go", wide(121), 1},
		"code behind a tab":        {"a.go", "\t" + wide(117), 1},
		"a comment of 100 columns": {"a.go", "// " + wide(97), 0},
		"a comment of 101 columns": {"a.go", "// " + wide(98), 1},
		"a comment of SQL":         {"a.sql", "-- " + wide(98), 1},
		"a comment of a script":    {"a.sh", "# " + wide(99), 1},
		"prose of 101 columns":     {"a.md", wide(101), 1},
		"a table":                  {"a.md", "| " + wide(150), 0},
		"a fenced block":           {"a.md", "```\n" + wide(150) + "\n```\n" + wide(101), 1},
		"a line with an address":   {"a.md", "https://" + wide(150), 0},
		"a struct tag":             {"a.go", "A string `yaml:\"" + wide(150) + "`", 0},
		"results of the benchmark": {"a.md", "<!-- results -->\n" + wide(150) +
			"\n<!-- end of results -->\n" + wide(101), 1},
		"a directive of the go tool": {"a.go", "//go:embed " + wide(100), 0},
	} {
		if got := checkWidths(one.file, one.text); len(got) != one.want {
			t.Errorf("%s: %d findings, want %d", name, len(got), one.want)
		}
	}
}
