package site

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
)

// NATSCluster is a cluster of three NATS servers. Clients and the other servers reach each server
// through proxies that fail on command.
type NATSCluster struct {
	// Servers are the processes, ClientLinks the proxies for clients.
	Servers     [3]*Process
	ClientLinks [3]*testkit.FaultProxy
	// Routes are the proxies from one server to another. The route of a server to itself is nil.
	Routes [3][3]*testkit.FaultProxy
	// URL names all three client proxies.
	URL string

	stores [3]string
}

const natsConfig = `server_name: n%d
listen: %s:%d
max_payload: 1MB
jetstream { store_dir: %q, max_mem: 64MB, max_file: 8GB }
cluster { name: postern, listen: %s:%d, cluster_advertise: "%s:%d", no_advertise: true, routes: [%s] }
`

// StartNATS starts three servers with their stores below dir. The directory bin contains natsd.
// Close stops them, also after an error.
func StartNATS(bin, dir string) (*NATSCluster, error) {
	t, host := &NATSCluster{}, randomLoopbackHost()
	ports, err := freePorts(host, 7)
	if err != nil {
		return t, err
	}
	if err := t.makeLinks(host, ports); err != nil {
		return t, err
	}
	for i := range t.Servers {
		t.stores[i] = filepath.Join(dir, fmt.Sprintf("nats%d", i+1))
		file := t.stores[i] + ".conf"
		// Servers tell each other the addresses of all servers and would connect past the routes.
		// Each therefore advertises a port without a listener.
		text := fmt.Sprintf(natsConfig, i+1, host, ports[i], t.stores[i], host, ports[3+i], host, ports[6],
			t.routesFrom(i))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return t, err
		}
		t.Servers[i] = &Process{Name: fmt.Sprintf("nats%d", i+1), Log: t.stores[i] + ".log",
			program: filepath.Join(bin, "natsd"), args: []string{"-c", file}}
		if err := t.Servers[i].Start(); err != nil {
			return t, err
		}
	}
	return t, nil
}

// makeLinks makes the proxies. The first three ports are for clients, the next three for servers.
func (t *NATSCluster) makeLinks(host string, ports []int) (err error) {
	address := func(n int) string { return net.JoinHostPort(host, strconv.Itoa(ports[n])) }
	var urls []string
	for i := range t.ClientLinks {
		if t.ClientLinks[i], err = testkit.NewProxy(address(i)); err != nil {
			return err
		}
		urls = append(urls, "nats://"+t.ClientLinks[i].Addr)
		for from := range t.Routes {
			if from == i {
				continue
			}
			if t.Routes[from][i], err = testkit.NewProxy(address(3 + i)); err != nil {
				return err
			}
		}
	}
	t.URL = strings.Join(urls, ",")
	return nil
}

// routesFrom returns the routes of a server in the format of its configuration.
func (t *NATSCluster) routesFrom(from int) string {
	var urls []string
	for _, r := range t.Routes[from] {
		if r != nil {
			urls = append(urls, "nats://"+r.Addr)
		}
	}
	return strings.Join(urls, ", ")
}

// Partition cuts a server off from the other two until Rejoin. Clients still reach it. With silent
// the connections stall instead of ending.
func (t *NATSCluster) Partition(server int, silent bool) {
	for from, ways := range t.Routes {
		for to, r := range ways {
			switch {
			case r == nil || from != server && to != server:
			case silent:
				r.Stall()
			default:
				r.Cut()
			}
		}
	}
}

// Rejoin lets the servers reach each other again.
func (t *NATSCluster) Rejoin() {
	for _, ways := range t.Routes {
		for _, r := range ways {
			if r != nil {
				r.Restore()
			}
		}
	}
}

// natsStopTimeout is how long a server may take to stop. A server with much data to write takes a
// while.
const natsStopTimeout = time.Minute

// Restart stops a server gracefully and starts it again with its store.
func (t *NATSCluster) Restart(i int) error {
	if err := t.Servers[i].Stop(natsStopTimeout); err != nil {
		return err
	}
	return t.Servers[i].Start()
}

// Wipe stops all servers and starts them with empty stores: all streams and consumers are gone.
func (t *NATSCluster) Wipe() error {
	for _, s := range t.Servers {
		s.Kill()
	}
	for i, s := range t.Servers {
		if err := os.RemoveAll(t.stores[i]); err != nil {
			return err
		}
		if err := s.Start(); err != nil {
			return err
		}
	}
	return nil
}

// recover ends all faults.
func (t *NATSCluster) recover() error {
	t.Rejoin()
	for i, s := range t.Servers {
		t.ClientLinks[i].Restore()
		s.Resume()
		if !s.Running() {
			if err := s.Start(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close stops the servers and the proxies.
func (t *NATSCluster) Close() {
	for i, s := range t.Servers {
		if s != nil {
			s.Kill()
		}
		for _, l := range append(t.Routes[i][:], t.ClientLinks[i]) {
			if l != nil {
				l.Close()
			}
		}
	}
}
