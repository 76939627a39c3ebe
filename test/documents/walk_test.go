package documents_test

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
)

const (
	// outputWithin is how long a command that only reads is repeated until it prints what is shown,
	// and how long a background command has to print it.
	outputWithin = 5 * time.Minute
	// commandWithin is how long a command may take.
	commandWithin = 2 * time.Minute
)

// walker runs the steps of one page in an empty folder, as a reader does.
type walker struct {
	ctx    context.Context
	logf   func(format string, args ...any)
	folder string
	// session has the variables and the folder that the last foreground command left.
	session string
	env     []string
	// ids has the id that a command printed for each id of the page.
	ids map[string]string
	// ports has a free port for each port of the page that is not one of the instance.
	ports     map[string]string
	terminals map[int]*terminal
	// outputs are those of the commands so far.
	outputs []output
}

type output struct{ command, text string }

// newWalker makes a folder. At the end of the test, all processes of the walker end and the folder
// is removed.
func newWalker(t *testing.T, programs string) *walker {
	t.Helper()
	folder, err := os.MkdirTemp(testkit.ScratchDir(), "postern-test-page-") // testkit removes what a killed test left
	if err == nil {
		err = os.Chmod(folder, 0o711) // PostgreSQL's account must be able to enter if this is root
	}
	checkout, absErr := filepath.Abs(root)
	if err := errors.Join(err, absErr); err != nil {
		t.Fatal(err)
	}
	w := &walker{ctx: t.Context(), logf: t.Logf, folder: folder, session: filepath.Join(t.TempDir(), "session"),
		ids: map[string]string{}, ports: map[string]string{}, terminals: map[int]*terminal{}, env: append(environment(),
			"PATH="+programs+string(os.PathListSeparator)+os.Getenv("PATH"), "CHECKOUT="+checkout)}
	t.Cleanup(func() {
		for _, terminal := range w.terminals {
			terminal.close()
			if t.Failed() {
				t.Logf("output of %s:\n%s", terminal.command, terminal.output())
			}
		}
		for _, dir := range []string{".postern", ".playground"} {
			if cluster := w.clusterDir(t, dir); !strings.HasPrefix(cluster, folder) {
				_ = os.RemoveAll(cluster)
			}
		}
		if err := os.RemoveAll(folder); err != nil {
			t.Error(err)
		}
	})
	return w
}

// clusterDir returns the directory of the PostgreSQL of an instance in a folder of the page.
func (w *walker) clusterDir(t *testing.T, folder string) string {
	t.Helper()
	dir, _, err := postgres.ClusterDir(filepath.Join(w.folder, folder, "postgres"))
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// environment returns the environment without variables that configure Postern, PostgreSQL or
// tracing.
func environment() []string {
	return slices.DeleteFunc(os.Environ(), func(v string) bool {
		return strings.HasPrefix(v, "POSTERN_") || strings.HasPrefix(v, "PG") || strings.HasPrefix(v, "OTEL_") ||
			strings.HasPrefix(v, "PATH=")
	})
}

// walk executes steps up to the first whose result is not what the page says.
func (w *walker) walk(steps []step) error {
	for _, s := range steps {
		began := time.Now()
		if err := w.step(s); err != nil {
			return fmt.Errorf("line %d: %s: %w", s.line, s.command, err)
		}
		w.logf("%s for line %d: %s", time.Since(began).Round(10*time.Millisecond), s.line, s.command)
	}
	return nil
}

func (w *walker) step(s step) error {
	switch {
	case s.file != "":
		return os.WriteFile(filepath.Join(w.folder, s.file), []byte(w.real(strings.Join(s.shown, "\n"))+"\n"), 0o600)
	case s.terminal > 0:
		return w.background(s)
	}
	if err := checkInstalled(s.command); err != nil {
		return err
	}
	command, deadline := w.real(s.command), time.Now().Add(outputWithin)
	for pause := 20 * time.Millisecond; ; pause = min(2*pause, 200*time.Millisecond) {
		text, runErr := w.run(command)
		err := runErr
		if (err != nil) != s.fails {
			err = fmt.Errorf("ended with %v, want an error: %t\n%s", err, s.fails, text)
		} else if err = nil; len(s.shown) > 0 {
			err = compareOutput(s.shown, text, w.ids)
		}
		isLast := !onlyReads.MatchString(command) || isFinal(runErr) || time.Now().After(deadline) || w.ctx.Err() != nil
		if err == nil || isLast {
			w.outputs = append(w.outputs, output{s.command, text})
			return err
		}
		select {
		case <-w.ctx.Done():
		case <-time.After(pause):
		}
	}
}

// isFinal reports whether a command is wrong or does not exist, so that it cannot succeed later.
func isFinal(err error) bool {
	var status *exec.ExitError
	return errors.As(err, &status) && (status.ExitCode() == 2 || status.ExitCode() == 127)
}

// onlyReads matches commands that may be repeated until they print what is shown.
var onlyReads = regexp.MustCompile(`^(curl( -\S+)* http\S+|jq|cat|psql)\b|` +
	`^postern( --?\w+ \S+)* (verify|doctor|health|\w+ (list|show|report|status|pending))\b`)

// checkInstalled returns an error if the package that a command needs is missing. Only the consumer
// in Node needs one.
func checkInstalled(command string) error {
	if !strings.HasPrefix(command, "node ") {
		return nil
	}
	if _, err := os.Stat(filepath.Join(root, "examples", "consume-node", "node_modules")); err != nil {
		return fmt.Errorf("run make prerequisites, which installs the client for Node: %w", err)
	}
	return nil
}

var (
	devCommand = regexp.MustCompile(`\bpostern (dev|serve)\b`)
	localPort  = regexp.MustCompile(`\b(127\.0\.0\.1|localhost):([1-9]\d*)\b`)
	// made are the targets of make that start a program.
	made = strings.NewReplacer("make playground", "playground", "make dev", "postern dev")
)

// real returns a command of a page, or the content of a file, as it is used: with the ids that were
// printed, with the addresses of the instance, and otherwise with free ports.
func (w *walker) real(text string) string {
	for _, id := range slices.Sorted(maps.Keys(w.ids)) {
		text = regexp.MustCompile(`\b`+regexp.QuoteMeta(id)+`\b`).ReplaceAllString(text, w.ids[id])
	}
	own := map[string]string{}
	if instance, err := config.ReadInstance(filepath.Join(w.folder, ".postern")); err == nil {
		own["8080"] = strings.TrimPrefix(instance.IngestURL, "http://")
		own["8081"] = strings.TrimPrefix(instance.AdminURL, "http://")
	}
	text = localPort.ReplaceAllStringFunc(text, func(address string) string {
		port := localPort.FindStringSubmatch(address)[2]
		if own[port] != "" {
			return own[port]
		}
		if w.ports[port] == "" {
			w.ports[port] = freePort()
		}
		return "127.0.0.1:" + w.ports[port]
	})
	return devCommand.ReplaceAllString(made.Replace(text), "$0 --listen 127.0.0.1:0 --admin 127.0.0.1:0")
}

// freePort returns a port that nothing uses now; 0 if there is none.
func freePort() string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "0"
	}
	defer l.Close()
	_, port, _ := net.SplitHostPort(l.Addr().String()) // a listener's address has a port
	return port
}

// session runs $1 with the variables and in the folder that the last command left, and keeps both.
const sessionScript = `if [ -f "$0" ]; then . "$0"; fi
eval "$1"
status=$?
{ export -p; printf 'cd %q\n' "$PWD"; } > "$0"
exit $status`

// run runs a command in the foreground and returns what it prints on both outputs.
func (w *walker) run(command string) (string, error) {
	ctx, cancel := context.WithTimeout(w.ctx, commandWithin)
	defer cancel()
	cmd := exec.CommandContext(ctx, "bash", "-c", sessionScript, w.session, command)
	cmd.Dir, cmd.Env, cmd.SysProcAttr = w.folder, w.env, &syscall.SysProcAttr{Setpgid: true}
	cmd.Cancel = func() error { return syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }
	cmd.WaitDelay = 10 * time.Second
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	err := cmd.Run()
	return out.String(), err
}

// background executes a step of a terminal.
func (w *walker) background(s step) error {
	before := w.terminals[s.terminal]
	switch {
	case s.interrupts:
		if before == nil {
			return errors.New("no command runs in this terminal")
		}
		return before.interrupt()
	case s.command != "":
		if err := checkInstalled(s.command); err != nil {
			return err
		}
		if before != nil {
			if err := before.awaitEnd(); err != nil {
				return err
			}
		}
		started, err := startTerminal(w, s.command)
		if err != nil {
			return err
		}
		w.terminals[s.terminal] = started
	case before == nil:
		return nil // its command is not installed
	}
	return w.terminals[s.terminal].await(s.shown, w.ids)
}

// A page whose command prints something else, fails or prints nothing is reported.
func TestWalk_pageDiffersFromOutput_isReported(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct{ page, want string }{
		"as shown":       {"$ export A=evt_3 && echo b > f\n$ echo $A $(cat f)\nevt_1 b\n$ echo evt_1\nevt_1", ""},
		"other output":   {"$ echo a\nb", "line 2: echo a: the page shows\n  b\nand the output has\n  a"},
		"fails":          {"$ echo no >&2; false\n", "ended with exit status 1, want an error: false\nno"},
		"fails, as said": {"$ false  # fails\n", ""},
		"does not fail":  {"$ true  # fails\n", "want an error: true"},
		"other id":       {"$ echo evt_3 evt_4\nevt_1 evt_1", "the page shows"},
	} {
		err := newWalker(t, t.TempDir()).walk(parsePage("```console\n" + c.page + "\n```\n"))
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v, want %q", name, err, c.want)
		}
	}
	const terminal = "```console terminal=1\n"
	page := parsePage(terminal + "$ bash -c 'echo first; exec sleep 60'\nfirst\n```\n" + terminal + "second\n```\n")
	w := newWalker(t, t.TempDir())
	if err := w.walk(page[:1]); err != nil {
		t.Error(err)
	}
	w.terminals[1].close()
	if err := w.walk(page[1:]); err == nil || !strings.Contains(err.Error(), "second") {
		t.Errorf("a background command that ended without its second line: %v", err)
	}
}

func TestOnlyReads_commands(t *testing.T) {
	t.Parallel()
	for command, want := range map[string]bool{
		"postern objects list":                        true,
		"postern --dir .playground drift report 1":    true,
		"postern verify":                              true,
		"psql \"$DB\" -c 'SELECT 1'":                  true,
		"curl -s http://127.0.0.1:8081/api/v1/events": true,
		"curl -d x http://127.0.0.1:8081/api":         false,
		"postern send stripe invoice.paid":            false,
		"postern reconcile stripe":                    false,
		"postern replay --source stripe --yes":        false,
	} {
		if got := onlyReads.MatchString(command); got != want {
			t.Errorf("%s: %t, want %t", command, got, want)
		}
	}
}
