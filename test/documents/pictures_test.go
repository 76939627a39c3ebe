package documents_test

import (
	"crypto/sha256"
	"encoding/hex"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const pictures = "../../docs/explanation/pictures"

// Each picture has the digest of the text that it was drawn from, so that this test needs no
// Graphviz.
func TestPictures_digests_fitTheirText(t *testing.T) {
	t.Parallel()
	style, err := os.ReadFile(filepath.Join(pictures, "style.css"))
	if err != nil {
		t.Fatal(err)
	}
	drawn, err := filepath.Glob(filepath.Join(pictures, "*.svg"))
	if err != nil || len(drawn) < 4 {
		t.Fatalf("found %d pictures, want at least 4 (%v)", len(drawn), err)
	}
	sources, err := filepath.Glob(filepath.Join(pictures, "*.dot"))
	if err != nil || len(sources) != len(drawn) {
		t.Errorf("%d texts and %d pictures: run make pictures, and delete pictures without text (%v)", len(sources),
			len(drawn), err)
	}
	for _, name := range sources {
		text, err := os.ReadFile(name)
		if err != nil {
			t.Fatal(err)
		}
		digest := sha256.Sum256(append(text, style...))
		picture, err := os.ReadFile(strings.TrimSuffix(name, ".dot") + ".svg")
		if err != nil {
			t.Errorf("%s has no picture: run make pictures (%v)", name, err)
			continue
		}
		if !strings.Contains(string(picture), hex.EncodeToString(digest[:])) {
			t.Errorf("the picture of %s was drawn from another text: run make pictures", name)
		}
	}
}
