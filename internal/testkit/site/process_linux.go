package site

import (
	"bytes"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
)

// attributes have the program killed when this process dies, and keep it out of the terminal's reach.
func attributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Setpgid: true, Pdeathsig: syscall.SIGKILL}
}

// family is a process and its children, the process first.
func family(pid int) ([]int, error) {
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

// gone tells whether a process has ended, though nobody may have asked yet how.
func gone(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	state := text[bytes.LastIndexByte(text, ')')+1:] // behind its name
	return bytes.HasPrefix(state, []byte(" Z")) || bytes.HasPrefix(state, []byte(" X"))
}
