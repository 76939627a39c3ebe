package site

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Process is a program that can be started again and again. Its methods are for one goroutine.
type Process struct {
	Name string
	// Log is the file with what it said, of all its lives.
	Log string

	program string
	args    []string
	env     []string
	since   int64 // where in Log its last life begins
	cmd     *exec.Cmd
	done    chan struct{}
	err     error // how it ended; readable after done
}

// Start runs the program; it must not be running. It is killed should this process end before it.
func (p *Process) Start() error {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own
	if p.since, err = log.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	p.cmd = exec.Command(p.program, p.args...)
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = append(plain(), p.env...), log, log, attributes()
	p.done = make(chan struct{})
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	return nil
}

// run keeps the thread that started the program: the signal at this process's death is tied to it.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	defer close(p.done)
	if p.err = p.cmd.Start(); p.err != nil {
		started <- p.err
		return
	}
	started <- nil
	p.err = p.cmd.Wait()
}

// Running tells whether the program was started and has not ended.
func (p *Process) Running() bool {
	if p.done == nil {
		return false
	}
	select {
	case <-p.done:
		return false
	default:
		return true
	}
}

// Kill ends the program without a chance to do anything more, and waits until it is gone.
func (p *Process) Kill() {
	if p.Running() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.done
	}
}

// Pause stops the program where it is, until Resume or Kill.
func (p *Process) Pause() { p.signal(syscall.SIGSTOP) }

// Resume lets a paused program go on.
func (p *Process) Resume() { p.signal(syscall.SIGCONT) }

func (p *Process) signal(s syscall.Signal) {
	if p.Running() {
		_ = p.cmd.Process.Signal(s) // it may have ended
	}
}

// Stop asks the program to stop and waits for it. One that takes longer is killed, which is an error, as is another status than 0.
func (p *Process) Stop(within time.Duration) error {
	if !p.Running() {
		return fmt.Errorf("%s has ended by itself: %w\n%s", p.Name, p.err, p.Said())
	}
	p.signal(syscall.SIGTERM)
	patience := time.NewTimer(within)
	defer patience.Stop()
	select {
	case <-p.done:
	case <-patience.C:
		p.Kill()
		return fmt.Errorf("%s did not stop within %s\n%s", p.Name, within, p.Said())
	}
	var status *exec.ExitError
	if errors.As(p.err, &status) && status.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM { // which ends a program that has not got to its first line
		return fmt.Errorf("%s ended with %w\n%s", p.Name, p.err, p.Said())
	}
	return nil
}

// mostOfLife bounds what Ended tells.
const mostOfLife = 256 << 10

// Ended says how the program has ended and all that it said in its last life, or of more than 256 KiB the end; nil while it runs.
func (p *Process) Ended() error {
	if p.done == nil || p.Running() {
		return nil
	}
	how := "with status 0"
	if p.err != nil {
		how = p.err.Error()
	}
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return err
	}
	text = text[min(p.since, int64(len(text))):]
	return fmt.Errorf("%s has ended by itself, %s, and said:\n%s", p.Name, how, text[max(0, len(text)-mostOfLife):])
}

// Said is the end of what the program said.
func (p *Process) Said() string {
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	const most = 3000
	return string(text[max(0, len(text)-most):])
}

// plain is the environment without what would configure a program of ours.
func plain() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "POSTERN_") && !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "OTEL_") {
			env = append(env, v)
		}
	}
	return env
}
