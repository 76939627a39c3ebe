package main

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/site"
)

// balancer is one address before two gateways. It asks each whether it is ready, and gives new connections to those that are, in turn.
type balancer struct {
	listener net.Listener
	gateways [2]*site.Daemon
	ready    [2]atomic.Bool
	turn     atomic.Uint64
	group    sync.WaitGroup
}

// probeEvery is how often a gateway is asked.
const probeEvery = time.Second

func balance(t *testing.T, gateways [2]*site.Daemon) *balancer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &balancer{listener: l, gateways: gateways}
	ctx, stop := context.WithCancel(context.Background())
	for i := range gateways {
		b.ready[i].Store(true)
		b.group.Go(func() { b.probe(ctx, i) })
	}
	b.group.Go(b.accept)
	t.Cleanup(func() {
		stop()
		_ = l.Close()
		b.group.Wait()
	})
	return b
}

func (b *balancer) probe(ctx context.Context, i int) {
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	for sleep(ctx, probeEvery) {
		res, err := client.Get(b.gateways[i].Health)
		if err == nil {
			_ = res.Body.Close()
		}
		b.ready[i].Store(err == nil && res.StatusCode == http.StatusOK)
	}
}

// sees waits until new connections go to d, too. A d that is no gateway has none.
func (b *balancer) sees(t *testing.T, d *site.Daemon) {
	t.Helper()
	i := slices.Index(b.gateways[:], d)
	if i < 0 {
		return
	}
	testkit.Eventually(t, time.Minute, func() error {
		if !b.ready[i].Load() {
			return fmt.Errorf("the address does not send to %s yet", d.Name)
		}
		return nil
	})
}

func (b *balancer) accept() {
	for {
		conn, err := b.listener.Accept()
		if err != nil {
			return // closed
		}
		b.group.Go(func() { b.serve(conn) })
	}
}

// serve connects one client with a gateway that is ready; where none is, the client finds out.
func (b *balancer) serve(client net.Conn) {
	defer client.Close()
	for range b.gateways {
		i := b.turn.Add(1) % uint64(len(b.gateways))
		if !b.ready[i].Load() {
			continue
		}
		server, err := net.Dial("tcp", strings.TrimPrefix(b.gateways[i].URL, "http://"))
		if err != nil {
			return
		}
		defer server.Close()
		var both sync.WaitGroup
		both.Go(func() { _, _ = io.Copy(server, client); _ = server.(*net.TCPConn).CloseWrite() })
		both.Go(func() { _, _ = io.Copy(client, server); _ = client.(*net.TCPConn).CloseWrite() })
		both.Wait()
		return
	}
}
