package doctor

import "syscall"

// openFiles is how many files this process may have open, as far as it may raise that by itself: Go does so at the start.
func openFiles() (uint64, bool) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, false
	}
	return limit.Max, true
}
