package archtest

import (
	"cmp"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// update rewrites the list of files that still have retired words or wide lines.
var update = flag.Bool("update", false, "rewrite pending.tsv")

// pending is how many findings of each rule a file may still have.
type pending struct{ words, widths int }

func readPending(t *testing.T) map[string]pending {
	t.Helper()
	data, err := os.ReadFile("pending.tsv")
	if err != nil {
		t.Fatal(err)
	}
	files := map[string]pending{}
	for line := range strings.Lines(string(data)) {
		if strings.HasPrefix(line, "#") {
			continue
		}
		var name string
		var p pending
		if _, err := fmt.Sscanf(line, "%s\t%d\t%d", &name, &p.words, &p.widths); err != nil {
			t.Fatalf("pending.tsv: %q: %v", line, err)
		}
		files[name] = p
	}
	return files
}

// Every file has at most as many retired words and wide lines as pending.tsv allows it, which is
// none for a file that is not listed.
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
	allowed, actual := readPending(t), map[string]pending{}
	shown := 0
	for _, name := range files {
		data, err := os.ReadFile(filepath.Join(root, name))
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		var words, widths []finding
		words = checkWords(name, text, index)
		if !isGenerated(name, text) {
			widths = checkWidths(name, text)
		}
		actual[name] = pending{len(words), len(widths)}
		for _, rule := range []struct {
			found []finding
			limit int
		}{{words, allowed[name].words}, {widths, allowed[name].widths}} {
			if len(rule.found) <= rule.limit || *update {
				continue
			}
			for _, f := range rule.found {
				if shown++; shown <= 50 {
					t.Errorf("%s:%d: %s (pending.tsv allows the file %d)", name, f.line, f.message, rule.limit)
				}
			}
		}
	}
	if shown > 50 {
		t.Errorf("and %d more", shown-50)
	}
	if *update {
		writePending(t, actual)
	}
}

func writePending(t *testing.T, files map[string]pending) {
	t.Helper()
	var lines []string
	for name, p := range files {
		if p != (pending{}) {
			lines = append(lines, fmt.Sprintf("%s\t%d\t%d\n", name, p.words, p.widths))
		}
	}
	slices.SortFunc(lines, cmp.Compare[string])
	text := "# Files that still have retired words and wide lines, and how many of each. The numbers only go down:\n" +
		"# go test ./internal/archtest -run TestText -update\n" + strings.Join(lines, "")
	if err := os.WriteFile("pending.tsv", []byte(text), 0o644); err != nil {
		t.Fatal(err)
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
		"code of 120 columns":        {"a.go", wide(120), 0},
		"code of 121 columns":        {"a.go", wide(121), 1},
		"code behind a tab":          {"a.go", "\t" + wide(117), 1},
		"a comment of 100 columns":   {"a.go", "// " + wide(97), 0},
		"a comment of 101 columns":   {"a.go", "// " + wide(98), 1},
		"a comment of SQL":           {"a.sql", "-- " + wide(98), 1},
		"a comment of a script":      {"a.sh", "# " + wide(99), 1},
		"prose of 101 columns":       {"a.md", wide(101), 1},
		"a table":                    {"a.md", "| " + wide(150), 0},
		"a fenced block":             {"a.md", "```\n" + wide(150) + "\n```\n" + wide(101), 1},
		"a line with an address":     {"a.md", "https://" + wide(150), 0},
		"a directive of the go tool": {"a.go", "//go:embed " + wide(100), 0},
	} {
		if got := checkWidths(one.file, one.text); len(got) != one.want {
			t.Errorf("%s: %d findings, want %d", name, len(got), one.want)
		}
	}
}
