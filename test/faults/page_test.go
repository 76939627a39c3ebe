package faults_test

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
)

// docs/reference/faults.md names tests that exist, and each subtest of the faults of PostgreSQL and
// JetStream.
func TestPage_namedTests_exist(t *testing.T) {
	t.Parallel()
	page, err := os.ReadFile("../../docs/reference/faults.md")
	testkit.Must(t, err)
	subtests := map[string]bool{}
	for name := range storeFaults {
		subtests[strings.ReplaceAll(name, " ", "_")] = false
	}
	for name := range streamFaults {
		subtests[strings.ReplaceAll(name, " ", "_")] = false
	}
	for _, m := range regexp.MustCompile("`/([a-z_-]+)`").FindAllStringSubmatch(string(page), -1) {
		if _, ok := subtests[m[1]]; !ok {
			t.Errorf("the page names the subtest /%s, which does not exist", m[1])
		}
		subtests[m[1]] = true
	}
	for name, named := range subtests {
		if !named {
			t.Errorf("the page does not name the subtest /%s", name)
		}
	}
	tests := regexp.MustCompile("`(?:([a-z]+)\\.)?(Test[A-Za-z0-9_]+)`").FindAllStringSubmatch(string(page), -1)
	if len(tests) < 30 {
		t.Errorf("the page names %d tests", len(tests))
	}
	for _, m := range tests {
		dir := "."
		if m[1] != "" {
			dir = "../../internal/" + m[1]
		}
		if !hasTest(t, dir, m[2]) {
			t.Errorf("%s has no test %s", dir, m[2])
		}
	}
}

func hasTest(t *testing.T, dir, name string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*_test.go"))
	testkit.Must(t, err)
	for _, file := range files {
		text, err := os.ReadFile(file)
		testkit.Must(t, err)
		if strings.Contains(string(text), "func "+name+"(") {
			return true
		}
	}
	return false
}
