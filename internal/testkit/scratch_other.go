//go:build !linux

package testkit

import "os"

// scratchDir returns the directory for clusters.
func scratchDir() string { return os.TempDir() }
