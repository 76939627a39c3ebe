//go:build !linux

package site

import (
	"errors"
	"syscall"
)

func attributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{Setpgid: true} }

// family needs /proc.
func family(int) ([]int, error) {
	return nil, errors.New("PostgreSQL's processes are only known on Linux: run this there")
}

func gone(int) bool { return true } // there is nobody
