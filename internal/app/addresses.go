package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/postern-gateway/postern/internal/config"
)

// checkAddresses reports an address that is already in use before anything starts, with the flag
// that chooses another. It binds each address of the process and releases it again. gateway is true
// if there is an ingest address.
func checkAddresses(ctx context.Context, cfg *config.Config, gateway bool, adminListen string) error {
	listeners := [][3]string{{"admin", cfg.Admin.ListenOr(adminListen), "--admin"}}
	if gateway {
		listeners = append([][3]string{{"ingest", cfg.Ingest.Listen, "--listen"}}, listeners...)
	}
	if cfg.Admin.MetricsListen != "" {
		listeners = append(listeners, [3]string{"metrics", cfg.Admin.MetricsListen, "--metrics"})
	}
	for _, listener := range listeners {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", listener[1])
		if err != nil {
			return fmt.Errorf("listen for %s on %s: %w; choose another address with %s (port 0 picks a free one)",
				listener[0], listener[1], systemError(err), listener[2])
		}
		defer l.Close() // open until all are checked, so that two listeners with the same address conflict
	}
	return nil
}

// systemError returns the system's error without the address, which the message already names.
func systemError(err error) error {
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return errno
	}
	return err
}

// isPortTaken reports whether a port on 127.0.0.1 cannot be bound now.
func isPortTaken(ctx context.Context, port string) bool {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return true
	}
	_ = l.Close() // there are no connections
	return false
}
