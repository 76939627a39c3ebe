package site

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// firstPort and ports are a range below the ephemeral ports of the system. No other program gets
// the port of a server by chance while the server is down.
const firstPort, ports = 15_000, 15_000

// randomLoopbackHost returns a loopback address that no other program is likely to use. On the
// common address another program could take the port of a server before its next start.
func randomLoopbackHost() string {
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
}

// freePorts returns ports of a host that are free now.
func freePorts(host string, n int) (free []int, err error) {
	var listeners []net.Listener
	defer func() {
		for _, l := range listeners {
			err = errors.Join(err, l.Close())
		}
	}()
	for tries := 0; len(free) < n; tries++ {
		port := firstPort + rand.IntN(ports)
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		switch {
		case err == nil:
			listeners, free = append(listeners, l), append(free, port)
		case tries > 100*n:
			return nil, err
		}
	}
	return free, nil
}
