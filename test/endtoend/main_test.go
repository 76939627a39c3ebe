// Package endtoend proves the programs as they are started by a person: real processes, real PostgreSQL, real JetStream.
package endtoend_test

import (
	"os/exec"
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// build makes programs of cmd/ and returns the folder they are in.
func build(t *testing.T, programs ...string) string {
	t.Helper()
	dir := t.TempDir()
	args := []string{"build", "-o", dir}
	for _, p := range programs {
		args = append(args, "github.com/postern-gateway/postern/cmd/"+p)
	}
	if out, err := exec.CommandContext(t.Context(), "go", args...).CombinedOutput(); err != nil {
		t.Fatalf("build %v: %v\n%s", programs, err, out)
	}
	return dir
}
