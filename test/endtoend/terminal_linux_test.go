package endtoend_test

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/testkit"
)

// SIGHUP reloads an instance in a terminal too. But when the terminal closes, the instance stops in
// order.
func TestDev_terminalCloses_stops(t *testing.T) {
	t.Parallel()
	program := filepath.Join(build(t), "postern")
	file, dir := filepath.Join(t.TempDir(), "postern.yaml"), t.TempDir()
	put(t, file, settings(t))
	window := newTerminal(t, 80, 24)
	cmd := window.command(program, "dev", "--config", file, "--dir", dir)
	var said bytes.Buffer
	cmd.Stdout, cmd.Stderr = &said, &said
	testkit.Must(t, cmd.Start())
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	t.Cleanup(func() { _ = cmd.Process.Kill() }) // the process may have ended already
	var in *config.Instance
	testkit.Eventually(t, readyWithin, func() (err error) {
		in, err = config.ReadInstance(dir)
		return err
	})
	testkit.Must(t, cmd.Process.Signal(syscall.SIGHUP))
	testkit.Eventually(t, time.Minute, func() error { return counted(t, in.AdminURL, 1) })
	_ = window.master.Close() // closes the window
	select {
	case err := <-ended:
		if err != nil {
			t.Errorf("ended with %v\n%s", err, &said)
		}
	case <-time.After(endWithin):
		t.Errorf("dev still runs %s after its terminal closed", endWithin)
	}
}

// Each program must write to a terminal through the package terminal. The test of top does the
// same for standard output.
func TestTerminal_standardErrorOfEachProgram_isEscaped(t *testing.T) {
	t.Parallel()
	bin := build(t)
	const obeyed, want = "\u009b\u202e", `\u009b\u202e`
	// No spool is kept in /tmp: a log line says so and names the folder. Nothing listens at port 1,
	// so the program ends.
	dir, err := os.MkdirTemp("/tmp", "postern-"+obeyed)
	testkit.Must(t, err)
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
			cmd := c.command(filepath.Join(bin, program), args...)
			cmd.Env = append(cmd.Env, "POSTERN_LOG_FORMAT=json")
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

// terminal is a pseudo terminal. The test types at master and reads there what a program shows.
type terminal struct {
	master, slave *os.File
	mu            sync.Mutex
	shown         strings.Builder
}

func newTerminal(t *testing.T, width, height uint16) *terminal {
	t.Helper()
	master, err := os.OpenFile("/dev/ptmx", os.O_RDWR|syscall.O_NOCTTY, 0)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = master.Close() })
	fd := int(master.Fd())
	testkit.Must(t, unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0))
	n, err := unix.IoctlGetInt(fd, unix.TIOCGPTN)
	testkit.Must(t, err)
	testkit.Must(t, unix.IoctlSetWinsize(fd, unix.TIOCSWINSZ, &unix.Winsize{Col: width, Row: height}))
	slave, err := os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), os.O_RDWR|syscall.O_NOCTTY, 0)
	testkit.Must(t, err)
	t.Cleanup(func() { _ = slave.Close() })
	return &terminal{master: master, slave: slave}
}

// command runs a program in the terminal.
func (c *terminal) command(program string, args ...string) *exec.Cmd {
	cmd := exec.Command(program, args...)
	cmd.Env, cmd.Stdin, cmd.Stdout, cmd.Stderr = environment(), c.slave, c.slave, c.slave
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true, Setctty: true}
	return cmd
}

// watch stores what is shown until the terminal is closed on both sides.
func (c *terminal) watch() {
	b := make([]byte, 4096)
	for {
		n, err := c.master.Read(b)
		c.mu.Lock()
		c.shown.Write(b[:n])
		c.mu.Unlock()
		if err != nil {
			return
		}
	}
}

func (c *terminal) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.shown.String()
}

func (c *terminal) settings(t *testing.T) *unix.Termios {
	t.Helper()
	s, err := unix.IoctlGetTermios(int(c.slave.Fd()), unix.TCGETS)
	testkit.Must(t, err)
	return s
}

// On a terminal, top uses the whole screen and restores it, however it ends.
func TestTop_terminal_restoresScreen(t *testing.T) {
	t.Parallel()
	program := filepath.Join(build(t), "postern")
	for name, end := range map[string]func(*terminal, *os.Process) error{
		"q":       func(c *terminal, _ *os.Process) error { _, err := c.master.WriteString("q"); return err },
		"ctrl-c":  func(c *terminal, _ *os.Process) error { _, err := c.master.WriteString("\x03"); return err },
		"SIGTERM": func(_ *terminal, p *os.Process) error { return p.Signal(syscall.SIGTERM) },
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			at := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				fmt.Fprintf(w, "postern_build_info 1\n"+
					"postern_deliveries_total{source=\"stripe-with-a-name-as-long-as-it-may-be\","+
					"result=\"accepted\"} 7\n")
			}))
			t.Cleanup(at.Close)
			c := newTerminal(t, 60, 20)
			before := c.settings(t)
			cmd := c.command(program, "top", "--from", at.URL, "--every", "100ms")
			testkit.Must(t, cmd.Start())
			ended := make(chan error, 1)
			go func() { ended <- cmd.Wait() }()
			go c.watch()
			testkit.Eventually(t, time.Minute, func() error {
				if text := c.text(); strings.Count(text, "\x1b[H") < 3 || !strings.Contains(text, "stripe-with") {
					return fmt.Errorf("shown: %q", text)
				}
				return nil
			})
			if cmp.Equal(before, c.settings(t)) {
				t.Error("the terminal still buffers lines")
			}
			testkit.Must(t, end(c, cmd.Process))
			select {
			case err := <-ended:
				if err != nil {
					t.Error(err)
				}
			case <-time.After(time.Minute):
				_ = cmd.Process.Kill()
				t.Fatalf("top did not end: %v", <-ended)
			}
			if diff := cmp.Diff(before, c.settings(t)); diff != "" {
				t.Errorf("the terminal's settings are not restored: %s", diff)
			}
			testkit.Eventually(t, time.Minute, func() error {
				if text := c.text(); !strings.HasPrefix(text, "\x1b[?1049h\x1b[?25l") ||
					!strings.HasSuffix(text, "\x1b[?25h\x1b[?1049l") {
					return fmt.Errorf("the screen is not restored: %q", text)
				}
				return nil
			})
			for line := range strings.SplitSeq(c.text(), "\r\n") {
				if _, line, _ = strings.Cut(line,
					"\x1b[H"); len([]rune(strings.NewReplacer("\x1b[K", "", "\x1b[J", "").Replace(line))) > 60 {
					t.Errorf("wider than the terminal: %q", line)
				}
			}
		})
	}
}
