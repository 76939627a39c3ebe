package load

import (
	"fmt"
	"syscall"
)

// AllowFiles raises the limit of open files, sockets included, for this process and its children.
func AllowFiles(n uint64) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	// The limit is set even if it is high enough. Otherwise the Go runtime gives child processes
	// the limit that it found at its start.
	limit.Cur, limit.Max = max(limit.Cur, n), max(limit.Max, n)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("%d open files are needed, see ulimit -Hn: %w", n, err)
	}
	return nil
}
