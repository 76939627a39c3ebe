// Package deploy proves what deploy/ holds: the image is built, unpacked and run; files are read by the programs they are for, or
// checked against the flags, settings and names that those know.
package deploy_test

import (
	"os"
	"os/exec"
	"path/filepath"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// top is the checkout's folder.
const top = "../.."

// deployed is the path of a file below deploy/.
func deployed(parts ...string) string {
	return filepath.Join(append([]string{top, "deploy"}, parts...)...)
}

func read(t *testing.T, path string) string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// runs runs a program and returns what it said; the test fails if it fails.
func runs(t *testing.T, cmd *exec.Cmd) string {
	t.Helper()
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %v\n%s", cmd.Args, err, out)
	}
	return string(out)
}
