package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/postern-gateway/postern/internal/settings"
)

// parseNetwork reads an address or a network. It rejects IPv4 addresses in IPv6 form, because
// request addresses are never compared in that form.
func parseNetwork(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		a, err := netip.ParseAddr(text)
		switch {
		case err != nil:
			return netip.Prefix{}, fmt.Errorf("%q is not an address: write e.g. 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32",
				text)
		case a.Zone() != "":
			return netip.Prefix{}, fmt.Errorf("%s names a network interface, which is not supported: write %s", text,
				a.WithZone(""))
		case a.Is4In6():
			return netip.Prefix{}, fmt.Errorf("%s is an IPv4 address: write %s", text, a.Unmap())
		}
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("%q is not a network: write e.g. 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32",
			text)
	case p.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("%s is an IPv4 network: write %s/%d", text, p.Addr().Unmap(),
			max(0, p.Bits()-96))
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("%s is an address inside a network: write %s for the network, or %s for "+
			"the address alone", text, p.Masked(), p.Addr())
	}
	return p, nil
}

// networks parses texts that were checked before.
func networks(texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		if p, err := parseNetwork(text); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// Proxies returns the networks of trusted proxies. Use it for a Config from Load, LoadDev or Parse,
// which have checked them.
func (i Ingest) Proxies() []netip.Prefix { return networks(i.TrustedProxies) }

// withDefaults sets the default of the burst.
func (r RateLimit) withDefaults() RateLimit {
	if r.PerSecond > 0 {
		r.Burst = cmp.Or(r.Burst, r.PerSecond)
	}
	return r
}

// checkRateLimits rejects a burst without a rate.
func checkRateLimits(c *Config) error {
	var bad []error
	for _, name := range sortedKeys(c.Sources) {
		if r := c.Sources[name].RateLimit; r.Burst != 0 && r.PerSecond == 0 {
			bad = append(bad, &settings.Problem{Path: "sources." + name + ".rate_limit.burst",
				Msg: "is set, but per_second is not, so there is no limit: set rate_limit.per_second, or leave this " +
					"out"})
		}
	}
	return errors.Join(bad...)
}
