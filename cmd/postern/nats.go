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

// natsConfig returns the connection settings of the instance's JetStream, found in the same way as
// the database. The URL is empty if nothing names one.
func (c *cli) natsConfig() (config.NATS, error) {
	var n config.NATS
	named := c.config != "" || os.Getenv(config.EnvName("database", "url")) != ""
	if named || os.Getenv(config.EnvName("nats", "url")) != "" {
		cfg, err := config.LoadWithInstance(c.config)
		if err != nil {
			return n, err
		}
		n = cfg.NATS
	}
	if (n.URL != "" || named) && !c.dirGiven {
		return n, nil
	}
	in, err := c.readInstanceFile()
	if errors.Is(err, config.ErrNoInstance) {
		return n, nil // the database connection reports the missing instance
	}
	if err != nil {
		return n, err
	}
	if n.URL != "" && in.NATSURL != "" && !sameServers(string(n.URL), in.NATSURL) {
		return n, usagef("nats.url names other servers than the instance in %s has: omit --dir, or the setting (%s "+
			"or --config)", c.dir, config.EnvName("nats", "url"))
	}
	if n.URL == "" {
		n.URL = config.URL(in.NATSURL)
	}
	return n, nil
}

// sameServers reports whether two lists of NATS URLs have a server in common, ignoring their
// credentials.
func sameServers(a, b string) bool {
	servers := map[string]bool{}
	for address := range strings.SplitSeq(a, ",") {
		servers[hostAndPort(address)] = true
	}
	return slices.ContainsFunc(strings.Split(b, ","),
		func(address string) bool { return servers[hostAndPort(address)] })
}

// hostAndPort returns host and port of a NATS URL, in which scheme and port are optional.
func hostAndPort(address string) string {
	if !strings.Contains(address, "://") {
		address = "nats://" + address
	}
	u, err := url.Parse(strings.TrimSpace(address))
	if err != nil {
		return address
	}
	return net.JoinHostPort(u.Hostname(), cmp.Or(u.Port(), "4222"))
}

// natsTimeout is how long a command waits for a NATS server.
const natsTimeout = 3 * time.Second

// connectStream opens a connection to the instance's JetStream. The connection is nil, with the
// reason in failure, if no URL is configured or no server responds. The caller closes it.
func (c *cli) connectStream(ctx context.Context) (conn *stream.Conn, failure, err error) {
	n, err := c.natsConfig()
	if err != nil {
		return nil, nil, err
	}
	if n.URL == "" {
		return nil, errors.New(
			"nats.url is not set here: name the configuration with --config FILE, or POSTERN_NATS_URL"), nil
	}
	conn, err = stream.Connect(stream.Options{URL: string(n.URL), Credentials: n.Credentials, CA: n.TLS.CA,
		Cert: n.TLS.Cert, Key: n.TLS.Key, Name: "postern operator",
		Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err, nil
	}
	if err := conn.AwaitConnection(ctx, natsTimeout); err != nil {
		conn.Close()
		return nil, err, nil
	}
	return conn, nil, nil
}
