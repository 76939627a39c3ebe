package postgres

import "syscall"

// childAttributes makes the server end immediately when this process dies without stopping it. The
// server recovers from its log at the next start.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
}
