package postgres

import "syscall"

// childAttributes make the server end (at once; its log recovers it) when this process dies without stopping it.
func childAttributes() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGQUIT}
}
