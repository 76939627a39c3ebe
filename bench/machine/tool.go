package machine

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

// Ran is what a program took that ran to its end.
type Ran struct {
	Took, CPU time.Duration
	// Peak is the most memory that it had at once, in bytes.
	Peak int64
}

// Tool runs a program to its end: one of ours, by its name, or one that comes with the machine, by
// its path. What it prints goes to out.
func (m *Machine) Tool(ctx context.Context, out io.Writer, program string, args ...string) (ran Ran, err error) {
	path := program
	for _, packages := range builds {
		for _, p := range packages {
			if p == "./cmd/"+program {
				path = m.program(program)
			}
		}
	}
	var errs bytes.Buffer
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.Env, cmd.Stdout, cmd.Stderr = plain(), out, &errs
	began := time.Now()
	if err := cmd.Run(); err != nil {
		return ran, fmt.Errorf("%s %v: %w: %s", program, args, err, lastLines(errs.String()))
	}
	ran.Took, ran.CPU = time.Since(began), cmd.ProcessState.UserTime()+cmd.ProcessState.SystemTime()
	if usage, ok := cmd.ProcessState.SysUsage().(*syscall.Rusage); ok {
		ran.Peak = usage.Maxrss << 10
	}
	return ran, nil
}
