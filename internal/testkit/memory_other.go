//go:build !linux

package testkit

import "os"

// scratch is where clusters lie.
func scratch() string { return os.TempDir() }
