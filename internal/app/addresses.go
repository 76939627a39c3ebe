package app

import (
	"context"
	"errors"
	"fmt"
	"net"
	"syscall"

	"github.com/postern-gateway/postern/internal/config"
)

// checkAddresses binds what a process will listen on and lets go of it again, so that a taken address is told before anything
// is started, and with the flag that chooses another. gateway: there is an ingest address.
func checkAddresses(ctx context.Context, cfg *config.Config, gateway bool, adminListen string) error {
	wanted := [][3]string{{"admin", cfg.Admin.ListenOr(adminListen), "--admin"}}
	if gateway {
		wanted = append([][3]string{{"ingest", cfg.Ingest.Listen, "--listen"}}, wanted...)
	}
	if cfg.Admin.MetricsListen != "" {
		wanted = append(wanted, [3]string{"metrics", cfg.Admin.MetricsListen, "--metrics"})
	}
	for _, w := range wanted {
		l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", w[1])
		if err != nil {
			return fmt.Errorf("listen for %s on %s: %w; choose another address with %s (port 0 picks a free one)", w[0], w[1], cause(err), w[2])
		}
		defer l.Close() // held until the end, so that two on one address are found
	}
	return nil
}

// cause is the system's word for it, without what the sentence around it says already.
func cause(err error) error {
	if errno := syscall.Errno(0); errors.As(err, &errno) {
		return errno
	}
	return err
}

// taken tells whether a port on 127.0.0.1 can not be bound now.
func taken(ctx context.Context, port string) bool {
	l, err := (&net.ListenConfig{}).Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", port))
	if err != nil {
		return true
	}
	_ = l.Close() // nobody connected
	return false
}
