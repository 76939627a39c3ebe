package ingest

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// sender is the address of who sent a request: who connects, or, where that is a trusted proxy, the last address in X-Forwarded-For that is none. What
// stands before it there a sender may have written. The zero address: a trusted proxy named none that can be read. Forwarded (RFC 7239) is not read: proxies
// pass it on as it came.
func (s *Server) sender(req *http.Request) netip.Addr {
	addr := address(req.RemoteAddr)
	if !among(s.TrustedProxies, addr) {
		return addr
	}
	for _, rest := range slices.Backward(req.Header["X-Forwarded-For"]) {
		for more := true; more; {
			last := rest
			at := strings.LastIndexByte(rest, ',')
			if more = at >= 0; more {
				rest, last = rest[:at], rest[at+1:]
			}
			if addr = address(strings.TrimSpace(last)); !among(s.TrustedProxies, addr) {
				return addr
			}
		}
	}
	return addr
}

// remote is a sender as logs and rejections name it; one whom nobody can tell is named by who connects.
func (s *Server) remote(req *http.Request, sender netip.Addr) string {
	if !sender.IsValid() {
		sender = address(req.RemoteAddr)
	}
	if !sender.IsValid() {
		return req.RemoteAddr
	}
	name := sender.AppendTo(make([]byte, 0, len("255.255.255.255")))
	if connects := strings.TrimPrefix(req.RemoteAddr, "["); strings.HasPrefix(connects, string(name)) {
		return connects[:len(name)] // the text is there already
	}
	return string(name)
}

// address reads an address, with a port or without, as networks are compared with it: of IPv4 in its own form, and without a zone. The zero address: it is none.
func address(text string) netip.Addr {
	both, err := netip.ParseAddrPort(text) // first, since that is how net/http names who connects
	addr := both.Addr()
	if err != nil {
		addr, _ = netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	}
	return addr.Unmap().WithZone("")
}

// among tells whether an address is in one of the networks.
func among(networks []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(addr) })
}
