// Package golden compares generated files with their expected content, for tests. The flag -update
// writes the files instead.
package golden

import (
	"flag"
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var update = flag.Bool("update", false, "write the files that the tests compare with")

// Update reports whether the tests write the files that they compare with.
func Update() bool { return *update }

// Page compares a generated file with its expected content. It writes the file with the flag
// -update.
func Page(t *testing.T, file, want string) {
	t.Helper()
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	have, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, string(have)); diff != "" {
		t.Errorf("%s is not current (run with -update if the change is right):\n%s", file, diff)
	}
}
