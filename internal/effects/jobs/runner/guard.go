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

// errAddressNotAllowed means that the destination's rules forbid a call to an address. It completes
// sentences that name the address.
var errAddressNotAllowed = errors.New("may not be called")

// privateNetworks lead to this machine or to others of its owner, in addition to those that netip
// knows.
var privateNetworks = func() (all []netip.Prefix) {
	// some networks of IPv6 stand for addresses of IPv4
	for _, text := range []string{
		"0.0.0.0/8", "100.64.0.0/10", "192.0.0.0/24", "192.0.2.0/24", "198.18.0.0/15", "198.51.100.0/24",
		"203.0.113.0/24", "240.0.0.0/4",
		"64:ff9b::/96", "64:ff9b:1::/48", "100::/64", "2001::/23", "2001:db8::/32", "2002::/16", "fec0::/10", "::/96",
		"::ffff:0:0:0/96", "3fff::/20", "5f00::/16", "168.63.129.16/32", "192.88.99.0/24",
	} {
		all = append(all, netip.MustParsePrefix(text))
	}
	return all
}()

// isPublic reports whether an address belongs to the public internet.
func isPublic(a netip.Addr) bool {
	return !(a.IsUnspecified() || a.IsLoopback() || a.IsPrivate() || a.IsLinkLocalUnicast() || a.IsMulticast() ||
		slices.ContainsFunc(privateNetworks, func(p netip.Prefix) bool { return p.Contains(a) }))
}

// requirePublic returns a dialer control that rejects addresses that are neither public nor
// allowed. It runs for each connection, after the name lookup, so that no name can lead elsewhere.
func requirePublic(allow []netip.Prefix) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err != nil {
			return fmt.Errorf("%s: %w: %w", address, errAddressNotAllowed, err)
		}
		a := at.Addr().Unmap().WithZone("")
		if isPublic(a) || slices.ContainsFunc(allow, func(p netip.Prefix) bool { return p.Contains(a) }) {
			return nil
		}
		return fmt.Errorf("%s is an address of a private network: it %w unless the setting allow of its destination "+
			"or forward lists it", a, errAddressNotAllowed)
	}
}

// requireListed returns a dialer control that rejects all addresses that are not listed, public
// ones too, because the connection is not encrypted.
func requireListed(allow []netip.Prefix) func(network, address string, _ syscall.RawConn) error {
	return func(_, address string, _ syscall.RawConn) error {
		at, err := netip.ParseAddrPort(address)
		if err == nil && slices.ContainsFunc(allow,
			func(p netip.Prefix) bool { return p.Contains(at.Addr().Unmap().WithZone("")) }) {
			return nil
		}
		return fmt.Errorf("%s is not in the list that the destination allows: without TLS it %w", address,
			errAddressNotAllowed)
	}
}

// dialFunc returns a dial function that tries the addresses of a name that control accepts. The
// error is errAddressNotAllowed only if control accepted none of them. An accepted address that
// does not respond now may respond later, whichever address is tried first.
func dialFunc(dialer net.Dialer, control func(network, address string, _ syscall.RawConn) error) func(
	ctx context.Context, network, address string) (net.Conn, error) {
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
		if err != nil && passed.Load() && errors.Is(err, errAddressNotAllowed) {
			err = fmt.Errorf("one address of %s does not respond and another may not be called: %s", address,
				err.Error())
		}
		return conn, err
	}
}

const (
	dialTimeout = 10 * time.Second
	idleTimeout = 90 * time.Second
)

// newClient returns a client that calls only public and allowed addresses, uses no proxy, and
// follows no redirect.
func newClient(allow []netip.Prefix, most int) *http.Client {
	return newGuardedClient(requirePublic(allow), most)
}

// newGuardedClient returns a client that calls only addresses that control accepts.
func newGuardedClient(control func(network, address string, _ syscall.RawConn) error, most int) *http.Client {
	return &http.Client{
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
		Transport: &http.Transport{DialContext: dialFunc(net.Dialer{}, control), ForceAttemptHTTP2: true,
			MaxIdleConnsPerHost: most, MaxConnsPerHost: most, IdleConnTimeout: idleTimeout,
			TLSHandshakeTimeout: dialTimeout, MaxResponseHeaderBytes: 64 << 10},
	}
}
