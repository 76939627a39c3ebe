package doctor

import "syscall"

// openFileLimit returns how many files this process may open. Go raises the soft limit at the
// start.
func openFileLimit() (uint64, bool) {
	var limit syscall.Rlimit
	if err := syscall.Getrlimit(syscall.RLIMIT_NOFILE, &limit); err != nil {
		return 0, false
	}
	return limit.Max, true
}
