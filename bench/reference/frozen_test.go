package reference_test

import (
	"crypto/sha256"
	"encoding/hex"
	"flag"
	"fmt"
	"io/fs"
	"os"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "record the hash of the references as they are now")

// recorded has the hash of the references.
const recorded = "frozen.sha256"

// TestReferences_files_areFrozen sees that nobody changes what Postern is compared with: figures of before
// and after would have nothing in common.
func TestReferences_files_areFrozen(t *testing.T) {
	t.Parallel()
	hash, err := hashSources(os.DirFS("."))
	if err != nil {
		t.Fatal(err)
	}
	if *update {
		if err := os.WriteFile(recorded, []byte(hash+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(recorded)
	if err != nil {
		t.Fatal(err)
	}
	if hash != strings.TrimSpace(string(want)) {
		t.Errorf("the references below bench/reference were changed: their hash is %s, recorded is %s.\n"+
			"Every published figure is a ratio to them, so undo the change. If it must be, write a record in "+
			"docs/decisions that says why,\n"+
			"measure everything again, and record the new hash: cd bench && go test ./reference -update",
			hash, strings.TrimSpace(string(want)))
	}
}

// hashSources is over all Go files but tests, by path, so that neither a new file nor a renamed one
// goes unseen.
func hashSources(dir fs.FS) (string, error) {
	h := sha256.New()
	err := fs.WalkDir(dir, ".", func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".go") || strings.HasSuffix(path, "_test.go") {
			return err
		}
		text, err := fs.ReadFile(dir, path)
		if err != nil {
			return err
		}
		fmt.Fprintf(h, "%s %d\n", path, len(text))
		_, err = h.Write(text)
		return err
	})
	return hex.EncodeToString(h.Sum(nil)), err
}
