package runner

import (
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
)

// Addresses of this machine, of private networks and of what tells machines of themselves are refused in each form in which they can be written, and allowed where the destination names them.
func TestWhichAddressesMayBeCalled(t *testing.T) {
	t.Parallel()
	for address, may := range map[string]bool{
		"8.8.8.8": true, "93.184.216.34": true, "2606:4700:4700::1111": true, "172.32.0.1": true, "::ffff:8.8.8.8": true,
		"127.0.0.1": false, "127.8.8.8": false, "::1": false, "0.0.0.0": false, "::": false, "10.0.0.1": false, "172.16.0.1": false, "192.168.1.1": false, "fd00::1": false,
		"169.254.169.254": false, "fe80::1": false, "fe80::1%eth0": false, "fd00:ec2::254": false, "168.63.129.16": false, "100.100.100.200": false, "224.0.0.1": false, "255.255.255.255": false, "ff02::1": false,
		"::ffff:10.0.0.1": false, "::ffff:127.0.0.1": false, "64:ff9b::a00:1": false, "2002:a00:1::": false, "::a00:1": false, "192.0.2.1": false,
	} {
		err := guarded(nil)("tcp", netip.AddrPortFrom(netip.MustParseAddr(address), 443).String(), nil)
		if may != (err == nil) || !may && !errors.Is(err, errGuarded) {
			t.Errorf("%s: %v, want it called: %t", address, err, may)
		}
		all := []netip.Prefix{netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")}
		if err := guarded(all)("tcp", netip.AddrPortFrom(netip.MustParseAddr(address), 443).String(), nil); err != nil {
			t.Errorf("%s is allowed, and refused: %v", address, err)
		}
	}
}

// A name that leads to this machine is refused before anything is sent, and a redirect is told and not followed.
func TestCallsGoNowhereElse(t *testing.T) {
	t.Parallel()
	var asked atomic.Int64
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		if r.URL.Path == "/" {
			http.Redirect(w, r, "/elsewhere", http.StatusFound)
		}
	}))
	t.Cleanup(server.Close)
	byName := strings.Replace(server.URL, "127.0.0.1", "localhost", 1)
	get := func(allow ...netip.Prefix) (status int, err error) {
		client := newClient(allow, 1)
		defer client.CloseIdleConnections()
		res, err := client.Get(byName)
		if err != nil {
			return 0, err
		}
		return res.StatusCode, res.Body.Close()
	}
	if err := guarded([]netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")})("tcp", "[::ffff:10.0.0.1]:443", nil); err != nil {
		t.Errorf("an address that is allowed, written as one of IPv6: %v", err)
	}
	if _, err := get(netip.MustParsePrefix("10.0.0.0/8")); !errors.Is(err, errGuarded) || asked.Load() != 0 {
		t.Errorf("it was asked %d times: %v", asked.Load(), err)
	}
	status, err := get(netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128"))
	if got := fmt.Sprintf("%d after %d requests, %v", status, asked.Load(), err); got != "302 after 1 requests, <nil>" {
		t.Error(got)
	}
}
