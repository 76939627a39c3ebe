//go:build !linux

package postgres

import "syscall"

// childAttributes are none: only Linux can tie a child to its parent's life. A server that outlives a killed parent is
// named by the next start's error.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
