package spool

import (
	"os"
	"syscall"
)

// syncData makes a file's bytes durable. Its size does not change while it is written to, so nothing else needs to be.
func syncData(f *os.File) error {
	for {
		if err := syscall.Fdatasync(int(f.Fd())); err != syscall.EINTR { //nolint:errorlint // a system call returns the value itself
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
