package main

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"net"
	"net/url"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/stream"
)

// nats says how the instance's JetStream is reached, found as the database is; without a URL where nothing says it.
func (c *cli) nats() (config.NATS, error) {
	var n config.NATS
	named := c.config != "" || os.Getenv(config.EnvName("database", "url")) != ""
	if named || os.Getenv(config.EnvName("nats", "url")) != "" {
		cfg, err := config.LoadBeside(c.config)
		if err != nil {
			return n, err
		}
		n = cfg.NATS
	}
	if (n.URL != "" || named) && !c.dirGiven {
		return n, nil
	}
	in, err := c.readInstance()
	if errors.Is(err, config.ErrNoInstance) {
		return n, nil // whoever needs the database says so
	}
	if err != nil {
		return n, err
	}
	if n.URL != "" && in.NATSURL != "" && !sameServers(string(n.URL), in.NATSURL) {
		return n, usagef("nats.url names other servers than the instance in %s has: leave out --dir, or the setting (%s or --config)",
			c.dir, config.EnvName("nats", "url"))
	}
	if n.URL == "" {
		n.URL = config.URL(in.NATSURL)
	}
	return n, nil
}

// sameServers reports whether two lists of NATS URLs have a server in common, whatever their logins.
func sameServers(a, b string) bool {
	servers := map[string]bool{}
	for address := range strings.SplitSeq(a, ",") {
		servers[serverOf(address)] = true
	}
	return slices.ContainsFunc(strings.Split(b, ","), func(address string) bool { return servers[serverOf(address)] })
}

// serverOf is the host and port of a NATS URL, which may lack its scheme and its port.
func serverOf(address string) string {
	if !strings.Contains(address, "://") {
		address = "nats://" + address
	}
	u, err := url.Parse(strings.TrimSpace(address))
	if err != nil {
		return address
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "4222"))
}

// natsWithin is how long a command waits for a server of NATS.
const natsWithin = 3 * time.Second

// connectStream opens a connection to the instance's JetStream; nil where nothing says how, or no server answers: trouble says why. Whoever calls closes it.
func (c *cli) connectStream(ctx context.Context) (conn *stream.Conn, trouble, err error) {
	n, err := c.nats()
	if err != nil {
		return nil, nil, err
	}
	if n.URL == "" {
		return nil, errors.New("nats.url is not set here: name the configuration with --config FILE, or POSTERN_NATS_URL"), nil
	}
	conn, err = stream.Connect(stream.Options{URL: string(n.URL), Credentials: n.Credentials, CA: n.TLS.CA, Cert: n.TLS.Cert, Key: n.TLS.Key, Name: "postern operator",
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err, nil
	}
	if err := conn.Answers(ctx, natsWithin); err != nil {
		conn.Close()
		return nil, err, nil
	}
	return conn, nil, nil
}
