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

// Process is a program that can be started repeatedly. Its methods are for one goroutine.
type Process struct {
	Name string
	// Log is the file with the output of all its starts.
	Log string

	program  string
	args     []string
	env      []string
	logStart int64 // offset in Log of the last start
	cmd      *exec.Cmd
	done     chan struct{}
	err      error // how it ended; readable after done
}

// Start runs the program, which must not be running. The program is killed if this process ends
// first.
func (p *Process) Start() error {
	log, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() // the child has its own descriptor
	if p.logStart, err = log.Seek(0, io.SeekEnd); err != nil {
		return err
	}
	p.cmd = exec.Command(p.program, p.args...)
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr, p.cmd.SysProcAttr = append(cleanEnv(), p.env...), log, log,
		processAttributes()
	p.done = make(chan struct{})
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return fmt.Errorf("start %s: %w", p.Name, err)
	}
	return nil
}

// run keeps the thread that started the program, because the signal at the death of this process is
// tied to that thread.
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

// Running reports whether the program was started and has not ended.
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

// Kill ends the program without cleanup and waits until it is gone.
func (p *Process) Kill() {
	if p.Running() {
		_ = p.cmd.Process.Kill() // it may have ended
		<-p.done
	}
}

// Pause stops the program until Resume or Kill.
func (p *Process) Pause() { p.signal(syscall.SIGSTOP) }

// Resume continues a paused program.
func (p *Process) Resume() { p.signal(syscall.SIGCONT) }

func (p *Process) signal(s syscall.Signal) {
	if p.Running() {
		_ = p.cmd.Process.Signal(s) // it may have ended
	}
}

// Stop asks the program to stop and waits. It kills a program that takes longer and returns an
// error, also for a status other than 0.
func (p *Process) Stop(within time.Duration) error {
	if !p.Running() {
		return fmt.Errorf("%s has ended before it was stopped: %w\n%s", p.Name, p.err, p.LogTail())
	}
	p.signal(syscall.SIGTERM)
	patience := time.NewTimer(within)
	defer patience.Stop()
	select {
	case <-p.done:
	case <-patience.C:
		p.Kill()
		return fmt.Errorf("%s did not stop within %s\n%s", p.Name, within, p.LogTail())
	}
	var status *exec.ExitError
	// SIGTERM ends a program that has not installed its handler yet
	if errors.As(p.err, &status) && status.Sys().(syscall.WaitStatus).Signal() != syscall.SIGTERM {
		return fmt.Errorf("%s ended with %w\n%s", p.Name, p.err, p.LogTail())
	}
	return nil
}

// maxExitLog limits the output in ExitReport.
const maxExitLog = 256 << 10

// ExitReport returns how the program ended with the output of its last start, or the last 256 KiB
// of it. It returns nil while the program runs.
func (p *Process) ExitReport() error {
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
	text = text[min(p.logStart, int64(len(text))):]
	return fmt.Errorf("%s has ended, %s, with the output:\n%s", p.Name, how, text[max(0, len(text)-maxExitLog):])
}

// LogTail returns the end of the output.
func (p *Process) LogTail() string {
	text, err := os.ReadFile(p.Log)
	if err != nil {
		return err.Error()
	}
	const most = 3000
	return string(text[max(0, len(text)-most):])
}

// cleanEnv returns the environment without variables that would configure our programs.
func cleanEnv() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "POSTERN_") && !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "OTEL_") {
			env = append(env, v)
		}
	}
	return env
}
