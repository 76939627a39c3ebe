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

// Trio is a cluster of three NATS servers. Clients reach each through a link that fails on command, and so do the servers reach each other.
type Trio struct {
	// Servers are the processes, Links the way of clients to each.
	Servers [3]*Process
	Links   [3]*testkit.FaultProxy
	// Routes are the ways from a server to another, nil from one to itself.
	Routes [3][3]*testkit.FaultProxy
	// URL names all three links.
	URL string

	stores [3]string
}

const natsText = `server_name: n%d
listen: %s:%d
max_payload: 1MB
jetstream { store_dir: %q, max_mem: 64MB, max_file: 8GB }
cluster { name: postern, listen: %s:%d, cluster_advertise: "%s:%d", no_advertise: true, routes: [%s] }
`

// StartTrio starts three servers that find each other, with what they store below dir; bin has natsd. Close ends them, also after an error.
func StartTrio(bin, dir string) (*Trio, error) {
	t, host := &Trio{}, ownHost()
	ports, err := freePorts(host, 7)
	if err != nil {
		return t, err
	}
	if err := t.link(host, ports); err != nil {
		return t, err
	}
	for i := range t.Servers {
		t.stores[i] = filepath.Join(dir, fmt.Sprintf("nats%d", i+1))
		file := t.stores[i] + ".conf"
		// Servers tell each other where every one is found, and would go there past the routes: each names a port at which nobody listens.
		text := fmt.Sprintf(natsText, i+1, host, ports[i], t.stores[i], host, ports[3+i], host, ports[6], t.routes(i))
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			return t, err
		}
		t.Servers[i] = &Process{Name: fmt.Sprintf("nats%d", i+1), Log: t.stores[i] + ".log", program: filepath.Join(bin, "natsd"), args: []string{"-c", file}}
		if err := t.Servers[i].Start(); err != nil {
			return t, err
		}
	}
	return t, nil
}

// link makes the ways to the servers: the first three ports are for clients, the next for servers.
func (t *Trio) link(host string, ports []int) (err error) {
	address := func(n int) string { return net.JoinHostPort(host, strconv.Itoa(ports[n])) }
	var urls []string
	for i := range t.Links {
		if t.Links[i], err = testkit.NewProxy(address(i)); err != nil {
			return err
		}
		urls = append(urls, "nats://"+t.Links[i].Addr)
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

// routes are the ways from a server to the others, as its configuration has them.
func (t *Trio) routes(from int) string {
	var urls []string
	for _, r := range t.Routes[from] {
		if r != nil {
			urls = append(urls, "nats://"+r.Addr)
		}
	}
	return strings.Join(urls, ", ")
}

// Partition cuts a server off from the two others, until Rejoin; clients still reach it. silent: what is on its way stays there, and no end is told.
func (t *Trio) Partition(server int, silent bool) {
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
func (t *Trio) Rejoin() {
	for _, ways := range t.Routes {
		for _, r := range ways {
			if r != nil {
				r.Restore()
			}
		}
	}
}

// natsStop is how long a server may take to stop; one that has much to write down takes a while.
const natsStop = time.Minute

// Restart ends a server in order and starts it again with what it had stored.
func (t *Trio) Restart(i int) error {
	if err := t.Servers[i].Stop(natsStop); err != nil {
		return err
	}
	return t.Servers[i].Start()
}

// Wipe ends all servers and starts them with empty stores: every stream and consumer is gone.
func (t *Trio) Wipe() error {
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

// heal ends every fault.
func (t *Trio) heal() error {
	t.Rejoin()
	for i, s := range t.Servers {
		t.Links[i].Restore()
		s.Resume()
		if !s.Running() {
			if err := s.Start(); err != nil {
				return err
			}
		}
	}
	return nil
}

// Close ends the servers and the links.
func (t *Trio) Close() {
	for i, s := range t.Servers {
		if s != nil {
			s.Kill()
		}
		for _, l := range append(t.Routes[i][:], t.Links[i]) {
			if l != nil {
				l.Close()
			}
		}
	}
}
