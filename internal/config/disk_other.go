//go:build !linux

package config

import "math"

// diskOf knows nothing of disks here, and so finds nothing wrong.
func diskOf(string) (disk, error) { return disk{free: math.MaxInt64}, nil }
