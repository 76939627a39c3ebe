package load

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os/exec"
	"syscall"
	"time"
)

// Ran has what a finished program used.
type Ran struct {
	Took, CPU time.Duration
	// Peak is the largest resident memory in bytes.
	Peak int64
}

// Tool runs a program to its end and copies its output to out. The program is the name of one of
// ours or the path of another.
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
