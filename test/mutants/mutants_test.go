package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Each mutant must match the product. When the code has changed, the mutant must be written again.
func TestMutants_each_appliesToTheProduct(t *testing.T) {
	t.Parallel()
	in, err := sources(filepath.Join("..", ".."))
	if err != nil {
		t.Fatal(err)
	}
	seen := map[string]bool{}
	for _, m := range mutants() {
		name := m.group + ": " + m.name
		if seen[name] {
			t.Errorf("two mutants have the name %s", name)
		}
		seen[name] = true
		changed, err := m.apply(in)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		for path, text := range changed {
			if _, err := parser.ParseFile(token.NewFileSet(), path, text, 0); err != nil {
				t.Errorf("%s: %v", name, err)
			}
			if before, err := os.ReadFile(path); err != nil || string(before) == text {
				t.Errorf("%s changes nothing in %s (%v)", name, path, err)
			}
		}
		for _, tests := range m.tests {
			pkg, _, _ := strings.Cut(tests, " ")
			if files, err := filepath.Glob(filepath.Join("..", "..", pkg, "*_test.go")); err != nil || len(files) == 0 {
				t.Errorf("%s: %s has no tests", name, pkg)
			}
		}
	}
}

func TestFind_renamedCode_hasTheSameShape(t *testing.T) {
	t.Parallel()
	const code = "package p\n\nfunc decide(row *Row, in Input) bool {\n\t// before it\n\tif in.At < row.Seen " +
		"{\n\t\treturn true\n\t}\n\treturn in.At > row.Seen\n}\n" +
		"const saveSQL = `UPDATE rows SET seen = $1 WHERE seen < $2`\n"
	for name, tt := range map[string]struct {
		old, new string
		places   int
		want     string
	}{
		"unchanged": {"if in.At < row.Seen {", "if in.At <= row.Seen {", 1, "if in.At <= row.Seen {"},
		"renamed": {"if event.Time < object.Last {", "if event.Time <= object.Last {", 1,
			"if in.At <= row.Seen {"},
		"over a comment": {"Input) bool { if a.B < c.D {", "Input) bool { if true {", 1,
			"Input) bool { if true {"},
		"in SQL": {"UPDATE objects SET last = $1 WHERE last < $2", "UPDATE objects SET last = $1", 1,
			"UPDATE rows SET seen = $1`"},
		"another operator":       {"if in.At >= row.Seen {", "", 0, ""},
		"two names that are one": {"UPDATE objects SET last = $1 WHERE other < $2", "", 0, ""},
		"one name that is two":   {"if a.B < a.D {", "", 0, ""},
		"another keyword":        {"for in.At < row.Seen {", "", 0, ""},
		"twice":                  {"in.At", "", 2, ""},
	} {
		in := []*source{newSource("p.go", []byte(code))}
		found := find(tt.old, in)
		if name == "twice" {
			if len(found) < 2 {
				t.Errorf("%s: %d places", name, len(found))
			}
			continue
		}
		if len(found) != tt.places {
			t.Errorf("%s: %d places, want %d", name, len(found), tt.places)
			continue
		}
		if tt.places == 0 {
			continue
		}
		changed, err := mutant{edits: []edit{{tt.old, tt.new}}}.apply(in)
		if err != nil || !strings.Contains(changed["p.go"], tt.want) {
			t.Errorf("%s: %v\n%s", name, err, changed["p.go"])
		}
	}
}

// docs/reference/mutants.md has a row for each mutant with the test that noticed it, and no other
// rows.
func TestPage_everyMutant_hasItsRow(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile(filepath.Join("..", "..", "docs", "reference", "mutants.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := map[string]bool{}
	for line := range strings.Lines(string(page)) {
		cells := strings.Split(line, " | ")
		if strings.HasPrefix(line, "| ") && len(cells) == 4 {
			rows[strings.TrimPrefix(cells[0], "| ")+": "+cells[1]] = strings.Contains(cells[3], ": Test")
		}
	}
	for _, m := range mutants() {
		name := m.group + ": " + m.name
		if !rows[name] {
			t.Errorf("docs/reference/mutants.md does not say which test noticed %q: go run ./test/mutants -only %q "+
				"-o FILE", name, m.name)
		}
		delete(rows, name)
	}
	for name, row := range rows {
		if row {
			t.Errorf("docs/reference/mutants.md has %q, which is no mutant", name)
		}
	}
}
