package site

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
)

// firstPort and ports are a range below the one that systems give to connections and to listeners on port 0, so that nobody
// gets a server's port by chance while it is away.
const firstPort, ports = 15_000, 15_000

// ownHost is an address of loopback that hardly anybody else uses: between the end of a server and its next start somebody else could take its port on the common one.
func ownHost() string {
	return fmt.Sprintf("127.%d.%d.%d", 1+rand.IntN(254), rand.IntN(256), 1+rand.IntN(254))
}

// freePorts are ports of a host that nobody listens on now.
func freePorts(host string, n int) (free []int, err error) {
	var held []net.Listener
	defer func() {
		for _, l := range held {
			err = errors.Join(err, l.Close())
		}
	}()
	for tries := 0; len(free) < n; tries++ {
		port := firstPort + rand.IntN(ports)
		l, err := net.Listen("tcp", net.JoinHostPort(host, strconv.Itoa(port)))
		switch {
		case err == nil:
			held, free = append(held, l), append(free, port)
		case tries > 100*n:
			return nil, err
		}
	}
	return free, nil
}
