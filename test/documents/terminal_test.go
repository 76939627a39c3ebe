package documents_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"sync"
	"syscall"
	"time"
)

// endWithin is how long a background command may take to end after Ctrl-C or a kill. The programs
// limit their stop themselves; this is longer.
const endWithin = 40 * time.Second

// terminal is a command that runs in the background.
type terminal struct {
	command string
	cmd     *exec.Cmd
	// ended is closed after the command has ended with err.
	ended chan struct{}
	err   error

	mu  sync.Mutex
	out bytes.Buffer
	// changed gets a value after output.
	changed chan struct{}
	// seen is how much of out was compared already.
	seen int
}

// Write keeps output of the command.
func (t *terminal) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	select {
	case t.changed <- struct{}{}:
	default:
	}
	return t.out.Write(p)
}

func (t *terminal) output() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.out.String()
}

// startTerminal starts a command of a page in the background.
func startTerminal(w *walker, command string) (*terminal, error) {
	t := &terminal{command: command, ended: make(chan struct{}), changed: make(chan struct{}, 1)}
	// The shell becomes the program, which gets the signals.
	t.cmd = exec.Command("bash", "-c", "exec "+w.real(command))
	t.cmd.Dir, t.cmd.Env, t.cmd.Stdout, t.cmd.Stderr = w.folder, w.env, t, t
	t.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	t.cmd.WaitDelay = 10 * time.Second // a child of a killed program may keep the output open
	if err := t.cmd.Start(); err != nil {
		return nil, err
	}
	go func() {
		t.err = t.cmd.Wait()
		close(t.ended)
	}()
	return t, nil
}

// await waits until the command has printed the shown lines, in this order, after those that were
// awaited before. Other lines may be between them, such as those of a log.
func (t *terminal) await(shown []string, ids map[string]string) error {
	pattern := []string{anyLines}
	for _, line := range shown {
		pattern = append(pattern, line, anyLines)
	}
	deadline := time.NewTimer(outputWithin)
	defer deadline.Stop()
	for last := false; ; {
		text := t.output()
		err := compareOutput(pattern, text[t.seen:], ids)
		if err == nil {
			t.seen = len(text)
			return nil
		}
		if last {
			return err
		}
		select {
		case <-t.changed:
		case <-t.ended:
			last = true
		case <-deadline.C:
			last = true
		}
	}
}

// awaitEnd waits until the command has ended.
func (t *terminal) awaitEnd() error {
	select {
	case <-t.ended:
		return nil
	case <-time.After(endWithin):
		return fmt.Errorf("%s still runs in this terminal", t.command)
	}
}

// interrupt ends the command as Ctrl-C does. It must end with status 0, or because of the signal.
func (t *terminal) interrupt() error {
	if err := t.cmd.Process.Signal(os.Interrupt); err != nil {
		return fmt.Errorf("%s has ended before it was interrupted: %w", t.command, err)
	}
	if err := t.awaitEnd(); err != nil {
		return err
	}
	var status *exec.ExitError
	if errors.As(t.err, &status) && status.Sys().(syscall.WaitStatus).Signal() == syscall.SIGINT {
		return nil
	}
	if t.err != nil {
		return fmt.Errorf("%s ended with %w:\n%s", t.command, t.err, strings.TrimSpace(t.output()))
	}
	return nil
}

// close ends the command, which may have ended.
func (t *terminal) close() {
	if t.interrupt() != nil {
		_ = syscall.Kill(-t.cmd.Process.Pid, syscall.SIGKILL) // the whole group; it may have ended
		<-t.ended
	}
}
