//go:build !linux

package postgres

import (
	"net"
	"time"
)

// dialer detects a dead, idle peer within about ten seconds. TCP_USER_TIMEOUT for unacknowledged
// data exists on Linux only.
func dialer() *net.Dialer {
	return &net.Dialer{
		Timeout:         connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
	}
}
