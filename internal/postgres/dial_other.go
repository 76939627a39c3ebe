//go:build !linux

package postgres

import (
	"net"
	"time"
)

// dialer notices a dead, idle peer within about ten seconds; TCP_USER_TIMEOUT for data in flight is Linux's alone.
func dialer() *net.Dialer {
	return &net.Dialer{
		Timeout:         connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
	}
}
