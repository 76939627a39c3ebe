package machine

import (
	"fmt"
	"syscall"
)

// AllowFiles lets this process, and those that it starts, have so many files open at once, sockets
// included.
func AllowFiles(n uint64) error {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("read the limit of open files: %w", err)
	}
	// Set even where it is high enough: the runtime gives children the limit that it found, unless
	// the program has set one.
	limit.Cur, limit.Max = max(limit.Cur, n), max(limit.Max, n)
	if err := syscall.Setrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return fmt.Errorf("%d open files are needed, see ulimit -Hn: %w", n, err)
	}
	return nil
}
