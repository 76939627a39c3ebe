package runner

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"testing"

	"golang.org/x/net/dns/dnsmessage"
)

// names answers what addresses names have, in their order.
func names(t *testing.T, all map[string][][4]byte) *net.Resolver {
	t.Helper()
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	t.Cleanup(func() { server.Close(); <-done })
	go func() {
		defer close(done)
		question := make([]byte, 1500)
		for {
			n, from, err := server.ReadFrom(question)
			if err != nil {
				return
			}
			var m dnsmessage.Message
			if m.Unpack(question[:n]) != nil {
				continue
			}
			m.Response, m.Additionals = true, nil
			if q := m.Questions[0]; q.Type == dnsmessage.TypeA {
				for _, a := range all[q.Name.String()] {
					m.Answers = append(m.Answers, dnsmessage.Resource{Header: dnsmessage.ResourceHeader{Name: q.Name, Type: q.Type, Class: q.Class}, Body: &dnsmessage.AResource{A: a}})
				}
			}
			if answer, err := m.Pack(); err == nil {
				_, _ = server.WriteTo(answer, from)
			}
		}
	}()
	return &net.Resolver{PreferGo: true, Dial: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return new(net.Dialer).DialContext(ctx, "udp", server.LocalAddr().String())
	}}
}

// Of a name with several addresses each one that may be called is; that another may not is the reason where none may, and not where one does not answer.
func TestANameWithSeveralAddresses(t *testing.T) {
	t.Parallel()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	_, port, err := net.SplitHostPort(l.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	open, away, closed, other := [4]byte{127, 0, 0, 1}, [4]byte{127, 0, 0, 3}, [4]byte{127, 0, 0, 2}, [4]byte{127, 0, 0, 4}
	resolver := names(t, map[string][][4]byte{"up.example.": {closed, open}, "down.example.": {closed, away}, "gone.example.": {away, closed}, "closed.example.": {closed, other}})
	dial := dialing(net.Dialer{Resolver: resolver}, guarded([]netip.Prefix{netip.PrefixFrom(netip.AddrFrom4(open), 32), netip.PrefixFrom(netip.AddrFrom4(away), 32)}))
	for name, want := range map[string]struct{ connects, guarded bool }{"up.example": {true, false}, "down.example": {false, false}, "gone.example": {false, false}, "closed.example": {false, true}} {
		conn, err := dial(t.Context(), "tcp", net.JoinHostPort(name, port))
		if err == nil {
			conn.Close()
		}
		if (err == nil) != want.connects || errors.Is(err, errGuarded) != want.guarded {
			t.Errorf("%s: %v", name, err)
		}
	}
}
