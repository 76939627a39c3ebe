// Package endtoend proves the programs as they are started by a person: real processes, real PostgreSQL, real JetStream.
package endtoend_test

import (
	"testing"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/site"
)

func TestMain(m *testing.M) { testkit.Main(m, programs.Remove) }

// programs are those of cmd/, built when the first test asks for them.
var programs site.Programs

// build returns the folder that the programs are in.
func build(t *testing.T) string {
	t.Helper()
	dir, err := programs.Folder()
	if err != nil {
		t.Fatal(err)
	}
	return dir
}
