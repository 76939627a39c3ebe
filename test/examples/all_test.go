package examples_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A test runs each example with a script, and the pages list it.
func TestExamples_everyScript_isTestedAndListed(t *testing.T) {
	t.Parallel()
	scripts, err := filepath.Glob("../../examples/*/run.sh")
	if err != nil || len(scripts) < 4 {
		t.Fatalf("%d scripts, %v", len(scripts), err)
	}
	tests, err := filepath.Glob("*_test.go")
	if err != nil {
		t.Fatal(err)
	}
	var code strings.Builder
	for _, file := range tests {
		code.WriteString(read(t, file))
	}
	for _, script := range scripts {
		name := filepath.Base(filepath.Dir(script))
		if _, isFlow := flows[name]; !isFlow && !strings.Contains(code.String(), `run(t, db, "`+name+`"`) {
			t.Errorf("no test runs examples/%s", name)
		}
		if !strings.Contains(read(t, "../../examples/README.md"), name+"](") {
			t.Errorf("examples/README.md does not list %s", name)
		}
		if !strings.Contains(read(t, filepath.Join(filepath.Dir(script), "README.md")), "examples/"+name+"/run.sh") {
			t.Errorf("the README of %s does not say how to run it", name)
		}
	}
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
