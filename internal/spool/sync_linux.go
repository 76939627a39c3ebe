package spool

import (
	"os"
	"syscall"
)

// syncData makes the data of a file durable. The size of the file does not change, so its metadata
// need not be synced.
func syncData(f *os.File) error {
	for {
		err := syscall.Fdatasync(int(f.Fd()))
		if err != syscall.EINTR { //nolint:errorlint // a system call returns the value itself
			return os.NewSyscallError("fdatasync", err)
		}
	}
}
