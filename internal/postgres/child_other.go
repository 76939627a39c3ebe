//go:build !linux

package postgres

import "syscall"

// childAttributes is empty: only Linux can end a child with its parent. If a server outlives a
// killed parent, the next start's error names it.
func childAttributes() *syscall.SysProcAttr { return &syscall.SysProcAttr{} }
