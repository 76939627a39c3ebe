// Package examples_test runs the scripts of the examples, as a user would.
package examples_test

import (
	"bufio"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// programs returns the folder of the programs that the scripts start.
func programs(t *testing.T) string {
	t.Helper()
	dir, err := testkit.Programs("cmd/postern", "examples/sink", "examples/invoices/billing",
		"examples/receive/receiver")
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// run runs an example's script with a database of the test and returns its output. onLine, if not
// nil, is called for each line.
func run(t *testing.T, db *testkit.DB, example string, onLine func(line string)) string {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), filepath.Join("..", "..", "examples", example, "run.sh"))
	cmd.Env = append(environment(), "EXAMPLE_BIN="+programs(t), "EXAMPLE_DATABASE="+db.URL, "TMPDIR="+t.TempDir())
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // the script then stops its programs
	cmd.WaitDelay = 30 * time.Second
	var stderr strings.Builder
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var stdout strings.Builder
	for lines := bufio.NewScanner(out); lines.Scan(); {
		stdout.WriteString(lines.Text() + "\n")
		if onLine != nil {
			onLine(lines.Text())
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Fatalf("%s: %v\n%s\n%s", example, err, &stdout, &stderr)
	}
	return stdout.String()
}

// environment returns the environment without variables that configure Postern, PostgreSQL or
// tracing.
func environment() (env []string) {
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "POSTERN_") && !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "OTEL_") {
			env = append(env, v)
		}
	}
	return env
}

// advanceClockAtKills returns a function for run that advances the database's clock at each kill.
// Leases of the killed process then expire at once.
func advanceClockAtKills(t *testing.T, db *testkit.DB) func(line string) {
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
