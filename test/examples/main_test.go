// Package examples runs the examples as a person would: their scripts, and the programs that these
// start.
package examples_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m, func() error { return os.RemoveAll(built.dir) }) }

const module = "github.com/postern-gateway/postern/"

// built are the programs that the scripts start, made once for all of them.
var built struct {
	once sync.Once
	dir  string
	out  []byte
	err  error
}

// programs is the folder with them.
func programs(t *testing.T) string {
	t.Helper()
	built.once.Do(func() {
		if built.dir, built.err = os.MkdirTemp("", "postern-examples-"); built.err != nil {
			return
		}
		built.out, built.err = exec.Command("go", "build", "-o", built.dir, module+"cmd/postern",
			module+"examples/sink", module+"examples/invoices/billing").CombinedOutput()
	})
	if built.err != nil {
		t.Fatalf("build: %v\n%s", built.err, built.out)
	}
	return built.dir
}

// run runs an example's script against a database of the test's, and returns what it said. heard is
// told each line; nil: nobody is.
func run(t *testing.T, db *testkit.DB, example string, heard func(line string)) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join("..", "..", "examples", example, "run.sh"))
	cmd.Env = append(environment(), "EXAMPLE_BIN="+programs(t), "EXAMPLE_DATABASE="+db.URL, "TMPDIR="+t.TempDir())
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // upon which it ends what it started
	cmd.WaitDelay = 30 * time.Second
	var complaints strings.Builder
	cmd.Stderr = &complaints
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var said strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		said.WriteString(lines.Text() + "\n")
		if heard != nil {
			heard(lines.Text())
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s: %v\n%s\n%s", example, err, &said, &complaints)
	}
	return said.String()
}

// environment is ours without what would configure the programs.
func environment() (env []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "POSTERN_") && !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "OTEL_") {
			env = append(env, v)
		}
	}
	return env
}

// agedByKills hears of each kill, and lets the database's clock go ahead, so that what a dead
// process had taken is given back at once and not after most of a minute.
func agedByKills(t *testing.T, db *testkit.DB) func(line string) {
	t.Helper()
	kills := 0
	return func(line string) {
		if line == "killed with kill -9" {
			kills++
			db.Exec(t, fmt.Sprintf(`CREATE OR REPLACE FUNCTION clock_now() RETURNS timestamptz LANGUAGE sql VOLATILE AS
				'SELECT clock_timestamp() + interval ''%d minutes'''`, 2*kills))
		}
	}
}
