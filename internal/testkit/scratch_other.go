//go:build !linux

package testkit

import "os"

// ScratchDir returns the directory for clusters.
func ScratchDir() string { return os.TempDir() }
