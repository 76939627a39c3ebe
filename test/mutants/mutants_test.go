package main

import (
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestMutants_each_appliesToTheProduct: a mutant whose code has changed is written again, not left out.
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
			t.Errorf("two mutants are called %s", name)
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
	const code = "package p\n\nfunc decide(row *Row, in Input) bool {\n\t// before it\n\tif in.At < row.Seen {\n\t\treturn true\n\t}\n\treturn in.At > row.Seen\n}\n" +
		"const saveSQL = `UPDATE rows SET seen = $1 WHERE seen < $2`\n"
	for name, tt := range map[string]struct {
		old, new string
		places   int
		want     string
	}{
		"as it is":               {"if in.At < row.Seen {", "if in.At <= row.Seen {", 1, "if in.At <= row.Seen {"},
		"renamed":                {"if event.Time < object.Last {", "if event.Time <= object.Last {", 1, "if in.At <= row.Seen {"},
		"over a comment":         {"Input) bool { if a.B < c.D {", "Input) bool { if true {", 1, "Input) bool { if true {"},
		"in SQL":                 {"UPDATE objects SET last = $1 WHERE last < $2", "UPDATE objects SET last = $1", 1, "UPDATE rows SET seen = $1`"},
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
