package site

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// processAttributes makes the kernel kill the program when this process dies. The program gets its
// own process group, out of reach of the terminal.
func processAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// processTree returns the ids of a process and its children, the process first.
func processTree(pid int) ([]int, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/task/%d/children", pid, pid))
	if err != nil {
		return nil, fmt.Errorf("list children of %d: %w", pid, err)
	}
	all := []int{pid}
	for _, field := range strings.Fields(string(text)) {
		child, err := strconv.Atoi(field)
		if err != nil {
			return nil, fmt.Errorf("list children of %d: %w", pid, err)
		}
		all = append(all, child)
	}
	return all, nil
}

// hasExited reports whether a process has ended, even if no parent has waited for it yet.
func hasExited(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	state := text[bytes.LastIndexByte(text, ')')+1:] // after the name
	return bytes.HasPrefix(state, []byte(" Z")) || bytes.HasPrefix(state, []byte(" X"))
}
