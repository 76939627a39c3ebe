package postgres

import (
	"net"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const tcpUserTimeout = 10 * time.Second

// dialer detects a dead peer within about ten seconds, also with unacknowledged data, which
// keepalive alone does not detect.
func dialer() *net.Dialer {
	return &net.Dialer{
		Timeout:         connectTimeout,
		KeepAliveConfig: net.KeepAliveConfig{Enable: true, Idle: 5 * time.Second, Interval: 2 * time.Second, Count: 3},
		Control:         setUserTimeout,
	}
}

func setUserTimeout(network, _ string, raw syscall.RawConn) error {
	if !strings.HasPrefix(network, "tcp") {
		return nil
	}
	var failed error
	err := raw.Control(func(fd uintptr) {
		failed = unix.SetsockoptInt(int(fd), unix.IPPROTO_TCP, unix.TCP_USER_TIMEOUT,
			int(tcpUserTimeout.Milliseconds()))
	})
	if err != nil {
		return err
	}
	return failed
}
