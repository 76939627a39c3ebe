//go:build !linux

package site

import (
	"errors"
	"syscall"
)

func processAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// processTree needs /proc.
func processTree(int) ([]int, error) {
	return nil, errors.New("the processes of PostgreSQL can be listed on Linux only: run this there")
}

func hasExited(int) bool { return true } // there are no processes
