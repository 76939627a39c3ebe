package runner

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"sync/atomic"
	"syscall"
	"time"
)

// errGuarded: an address may not be called.
var errGuarded = errors.New("may not be called")

// closed are networks that lead to this machine or to others of its owner's, besides those that netip knows.
var closed = func() (all []netip.Prefix) {
	for _, text := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24", "203.0.113.0/24", "240.0.0.0/4",
		"64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "fec0::/10", "::/96", "::ffff:0:0:0/96", "3fff::/20", "5f00::/16", "168.63.129.16/32", "192.88.99.0/24", // those that stand for addresses of IPv4 among them
	} {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}()

// public says whether an address is one that everybody may call.
func public(a netip.Addr) bool {
	return !(a.IsUnspecified() || a.IsLoopback() || a.IsPrivate() || a.IsLinkLocalUnicast() || a.IsMulticast() ||
		slices.ContainsFunc(closed, func(p netip.Prefix) bool { return p.Contains(a) }))
}

// guarded refuses addresses that are not public and not allowed. It is asked for each connection, after names were looked up, so that no name can lead elsewhere.
func guarded(allow []netip.Prefix) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("%s: %w: %w", address, errGuarded, err)
		}
		a := at.Addr().Unmap().WithZone("")
		if public(a) || slices.ContainsFunc(allow, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return nil
		}
		return fmt.Errorf("%s is an address within a private network: it %w unless the destination allows it", a, errGuarded)
	}
}

// named refuses addresses that are not allowed by name, public ones too: what is sent there is not encrypted.
func named(allow []netip.Prefix) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err == nil && slices.ContainsFunc(allow, func(p netip.Prefix) bool { return p.Contains(at.Addr().Unmap().WithZone("")) }) {
			return nil
		}
		return fmt.Errorf("%s is not among what the destination allows: without TLS it %w", address, errGuarded)
	}
}

// dialing makes connections to such addresses of a name as control lets pass. An error is errGuarded where none of them passed: one that did and does not answer may do so later, whichever of them is tried first.
func dialing(dialer net.Dialer, control func(network, address string, _ syscall.RawConn) error) func(ctx context.Context, network, address string) (net.Conn, error) {
	return func(ctx context.Context, network, address string) (net.Conn, error) {
		var passed atomic.Bool
		each := dialer
		each.Timeout, each.Control = dialTimeout, func(network, address string, c syscall.RawConn) error {
			err := control(network, address, c)
			if err == nil {
				passed.Store(true)
			}
			return err
		}
		conn, err := each.DialContext(ctx, network, address)
		if err != nil && passed.Load() && errors.Is(err, errGuarded) {
			err = fmt.Errorf("of the addresses of %s one does not answer and another may not be called: %s", address, err.Error())
		}
		return conn, err
	}
}

const (
	dialTimeout = 10 * time.Second
	idleTimeout = 90 * time.Second
)

// newClient is a client that calls public and allowed addresses alone, by no proxy, and follows no redirect: where an answer points is said, not gone to.
func newClient(allow []netip.Prefix, most int) *http.Client {
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{DialContext: dialing(net.Dialer{}, guarded(allow)), ForceAttemptHTTP2: true, MaxIdleConnsPerHost: most, MaxConnsPerHost: most, IdleConnTimeout: idleTimeout,
			TLSHandshakeTimeout: dialTimeout, MaxResponseHeaderBytes: 64 << 10},
	}
}
