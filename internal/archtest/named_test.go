package archtest

import (
	"os"
	"path"
	"regexp"
	"testing"
)

// The tests that SECURITY.md, the list of invariants and the checklists name are there, in the package that they name, so that what they promise can be checked.
func TestNamedTestsExist(t *testing.T) {
	t.Parallel()
	known := map[string]bool{}
	for _, f := range tree(t) {
		for _, fn := range f.functions {
			known[fn.name] = known[fn.name] || f.test
			known[path.Base(f.pkg)+"."+fn.name] = known[path.Base(f.pkg)+"."+fn.name] || f.test
		}
	}
	for _, page := range []string{"SECURITY.md", "docs/architecture.md", "docs/checklists.md"} {
		text, err := os.ReadFile("../../" + page)
		if err != nil {
			t.Fatal(err)
		}
		named := regexp.MustCompile("`((?:[a-z/_]+\\.)?Test[A-Za-z0-9]+)`").FindAllStringSubmatch(string(text), -1)
		if len(named) < 10 {
			t.Errorf("%s names %d tests", page, len(named))
		}
		for _, m := range named {
			if !known[path.Base(m[1])] {
				t.Errorf("%s names %s, which is no test", page, m[1])
			}
		}
	}
}
