package endtoend_test

import (
	"errors"
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

// Each program must write to a terminal through the package terminal.
// TestTopOnATerminal does the same for standard output.
func TestTerminal_standardErrorOfEachProgram_isEscaped(t *testing.T) {
	t.Parallel()
	bin := build(t)
	const obeyed, want = "\u009b\u202e", `\u009b\u202e`
	// No spool is kept in /tmp: a log line says so and names the folder. Nothing listens at port 1,
	// so the program ends.
	dir, err := os.MkdirTemp("/tmp", "postern-"+obeyed)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	for program, args := range map[string][]string{
		"postern": {"dev", "--dir", dir, "--database", "postgres://127.0.0.1:1/none",
			"--listen", "127.0.0.1:0", "--admin", "127.0.0.1:0"},
		"gateway":   {"--unknown" + obeyed},
		"processor": {"--unknown" + obeyed},
	} {
		t.Run(program, func(t *testing.T) {
			t.Parallel()
			c := newTerminal(t, 200, 20)
			go c.watch()
			cmd := exec.CommandContext(t.Context(), filepath.Join(bin, program), args...)
			cmd.Env = append(environment(), "POSTERN_LOG_FORMAT=json")
			cmd.Stdin, cmd.Stdout, cmd.Stderr = c.slave, c.slave, c.slave
			cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
			var status *exec.ExitError
			if err := cmd.Run(); !errors.As(err, &status) {
				t.Errorf("want an error: %v", err)
			}
			testkit.Eventually(t, time.Minute, func() error {
				if text := c.text(); !strings.Contains(text, want) || strings.ContainsAny(text, obeyed) {
					return fmt.Errorf("shown: %q, want %q in it", text, want)
				}
				return nil
			})
		})
	}
}
