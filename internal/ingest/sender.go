package ingest

import (
	"net/http"
	"net/netip"
	"slices"
	"strings"
)

// senderAddress returns the address of a request's sender. This is the peer of the connection,
// unless the peer is a trusted proxy. Then it is the last address in X-Forwarded-For that is not a
// trusted proxy. A sender can forge the addresses before it. The zero address means that a trusted
// proxy sent an address that cannot be read. The Forwarded header (RFC 7239) is ignored, because
// proxies pass it on unchanged.
func (s *Server) senderAddress(req *http.Request) netip.Addr {
	addr := parseAddress(req.RemoteAddr)
	if !inNetworks(s.TrustedProxies, addr) {
		return addr
	}
	for _, rest := range slices.Backward(req.Header["X-Forwarded-For"]) {
		for more := true; more; {
			last := rest
			at := strings.LastIndexByte(rest, ',')
			if more = at >= 0; more {
				rest, last = rest[:at], rest[at+1:]
			}
			if addr = parseAddress(strings.TrimSpace(last)); !inNetworks(s.TrustedProxies, addr) {
				return addr
			}
		}
	}
	return addr
}

// remoteName returns the sender's address for logs and rejections; the peer's address if the
// sender's is unknown.
func (s *Server) remoteName(req *http.Request, sender netip.Addr) string {
	if !sender.IsValid() {
		sender = parseAddress(req.RemoteAddr)
	}
	if !sender.IsValid() {
		return req.RemoteAddr
	}
	name := sender.AppendTo(make([]byte, 0, len("255.255.255.255")))
	if peer := strings.TrimPrefix(req.RemoteAddr, "["); strings.HasPrefix(peer, string(name)) {
		return peer[:len(name)] // reuse the existing string
	}
	return string(name)
}

// parseAddress parses an address with or without a port. It converts IPv4-mapped addresses to IPv4
// and removes the zone, so that networks match. It returns the zero address for anything else.
func parseAddress(text string) netip.Addr {
	both, err := netip.ParseAddrPort(text) // first, because net/http gives the peer in this form
	addr := both.Addr()
	if err != nil {
		addr, _ = netip.ParseAddr(strings.TrimSuffix(strings.TrimPrefix(text, "["), "]"))
	}
	return addr.Unmap().WithZone("")
}

// inNetworks returns true if an address is in one of the networks.
func inNetworks(networks []netip.Prefix, addr netip.Addr) bool {
	return slices.ContainsFunc(networks, func(p netip.Prefix) bool { return p.Contains(addr) })
}
