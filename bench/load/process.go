package load

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"runtime"
	"strings"
	"syscall"
	"time"
)

// Process is a running program whose standard error goes to a file.
type Process struct {
	Name string
	// Address is the address for deliveries, Admin that for metrics and profiles; "" without one.
	Address, Admin string

	cmd  *exec.Cmd
	log  string
	done chan struct{}
	err  error
}

// readyWithin is how long a program may take until it logs that it is ready.
const readyWithin = time.Minute

// start runs a program.
func (m *Machine) start(name string, env []string, program string, args ...string) (*Process, error) {
	m.started++
	p := &Process{Name: name, log: filepath.Join(m.Dir, fmt.Sprintf("%03d-%s.log", m.started, name)),
		done: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		return nil, err
	}
	defer log.Close() // the child has its own copy
	p.cmd = exec.Command(program, args...)
	p.cmd.Env, p.cmd.Stdout, p.cmd.Stderr = append(plain(), env...), log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGTERM}
	started := make(chan error)
	go p.run(started)
	if err := <-started; err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	m.processes = append(m.processes, p)
	return p, nil
}

// run stays on the thread that started the program, because Linux sends Pdeathsig when that thread
// ends.
func (p *Process) run(started chan<- error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if err := p.cmd.Start(); err != nil {
		started <- err
		return
	}
	started <- nil
	p.err = p.cmd.Wait()
	close(p.done)
}

// plain returns the environment without variables that configure Postern, PostgreSQL or tracing.
func plain() []string {
	var env []string
	for _, v := range os.Environ() {
		if !strings.HasPrefix(v, "POSTERN_") && !strings.HasPrefix(v, "PG") && !strings.HasPrefix(v, "OTEL_") {
			env = append(env, v)
		}
	}
	return env
}

// await waits for a line in the log and returns its submatches.
func (p *Process) await(ctx context.Context, line *regexp.Regexp) ([]string, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, readyWithin, fmt.Errorf("%s not ready within %s", p.Name, readyWithin))
	defer cancel()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for {
		text, err := os.ReadFile(p.log)
		if err != nil {
			return nil, err
		}
		if found := line.FindStringSubmatch(string(text)); found != nil {
			return found, nil
		}
		select {
		case <-tick.C:
		case <-p.done:
			return nil, fmt.Errorf("%s ended before it was ready (%v): %s", p.Name, p.err, lastLines(string(text)))
		case <-ctx.Done():
			return nil, fmt.Errorf("%w: %s", context.Cause(ctx), lastLines(string(text)))
		}
	}
}

func lastLines(text string) string {
	lines := strings.Split(strings.TrimSpace(text), "\n")
	return strings.Join(lines[max(0, len(lines)-5):], "\n")
}

// Log returns the name of the file with the program's output.
func (p *Process) Log() string { return p.log }

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Ended returns an error if the program has ended, and nil while it runs.
func (p *Process) Ended() error {
	select {
	case <-p.done:
		text, err := os.ReadFile(p.log)
		return errors.Join(fmt.Errorf("%s ended (%v): %s", p.Name, p.err, lastLines(string(text))), err)
	default:
		return nil
	}
}

// stopWithin is how long a program may take to stop.
const stopWithin = 20 * time.Second

// Stop sends SIGTERM and waits for the end. It kills a program that does not stop in time and
// returns an error.
func (p *Process) Stop() error {
	_ = p.cmd.Process.Signal(syscall.SIGTERM) // the process may have ended already
	select {
	case <-p.done:
	case <-time.After(stopWithin):
		_ = p.cmd.Process.Kill()
		<-p.done
		return fmt.Errorf("%s did not stop within %s", p.Name, stopWithin)
	}
	var status *exec.ExitError
	if errors.As(p.err, &status) && status.ExitCode() > 0 {
		return fmt.Errorf("%s ended with status %d, see %s", p.Name, status.ExitCode(), p.log)
	}
	return nil
}
