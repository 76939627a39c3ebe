package config

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// parseNetwork reads an address or a network. Addresses of IPv4 that are written as IPv6 are refused: no request's address is compared in that form.
func parseNetwork(text string) (netip.Prefix, error) {
	if !strings.Contains(text, "/") {
		a, err := netip.ParseAddr(text)
		switch {
		case err != nil:
			return netip.Prefix{}, fmt.Errorf("%q is no address: write e.g. 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32", text)
		case a.Zone() != "":
			return netip.Prefix{}, fmt.Errorf("%s names an interface, which is not compared: write %s", text, a.WithZone(""))
		case a.Is4In6():
			return netip.Prefix{}, fmt.Errorf("%s is an address of IPv4: write %s", text, a.Unmap())
		}
		return netip.PrefixFrom(a, a.BitLen()), nil
	}
	p, err := netip.ParsePrefix(text)
	switch {
	case err != nil:
		return netip.Prefix{}, fmt.Errorf("%q is no network: write e.g. 192.0.2.7, 10.0.0.0/8 or 2001:db8::/32", text)
	case p.Addr().Is4In6():
		return netip.Prefix{}, fmt.Errorf("%s is a network of IPv4: write %s/%d", text, p.Addr().Unmap(), max(0, p.Bits()-96))
	case p != p.Masked():
		return netip.Prefix{}, fmt.Errorf("%s is an address within a network: write %s for the network, or %s for the address alone", text, p.Masked(), p.Addr())
	}
	return p, nil
}

// networks are of texts that were checked.
func networks(texts []string) []netip.Prefix {
	var out []netip.Prefix
	for _, text := range texts {
		if p, err := parseNetwork(text); err == nil {
			out = append(out, p)
		}
	}
	return out
}

// Proxies are the trusted proxies' networks. It is for a Config from Load, LoadDev or Parse, which have checked them.
func (i Ingest) Proxies() []netip.Prefix { return networks(i.TrustedProxies) }

// complete fills the burst.
func (r RateLimit) complete() RateLimit {
	if r.PerSecond > 0 {
		r.Burst = cmp.Or(r.Burst, r.PerSecond)
	}
	return r
}

// checkRates refuses a burst that bounds nothing.
func checkRates(c *Config) error {
	var bad []error
	for _, name := range sortedKeys(c.Sources) {
		if r := c.Sources[name].RateLimit; r.Burst != 0 && r.PerSecond == 0 {
			bad = append(bad, &Problem{Path: "sources." + name + ".rate_limit.burst", Msg: "is set, but per_second is not, so there is no limit: set rate_limit.per_second, or leave this out"})
		}
	}
	return errors.Join(bad...)
}
