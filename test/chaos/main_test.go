package main

import (
	"context"
	"errors"
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

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/testkit"
	"github.com/postern-gateway/postern/internal/testkit/site"
)

func TestMain(m *testing.M) { testkit.Main(m) }

// setup starts a site with these settings and prepares a run in it.
func setup(t *testing.T, settings string) *run {
	t.Helper()
	bin, err := testkit.Programs(append(site.Daemons(), site.Tools()...)...)
	must(t, err)
	s, err := site.Start(t.Context(), site.Options{Bin: bin, Settings: settings})
	t.Cleanup(func() {
		if t.Failed() {
			for _, d := range s.Daemons() {
				if d != nil {
					t.Logf("log of %s:\n%s", d.Name, d.LogTail())
				}
			}
		}
		if err := s.Close(); err != nil {
			t.Error(err)
		}
	})
	must(t, err)
	r, err := newRun(s, 1, t.Output())
	must(t, err)
	return r
}

// sending makes clients send new deliveries until stop is called. stop waits until all are
// answered.
func (r *run) sending(t *testing.T, clients int) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 8*time.Minute)
	t.Cleanup(cancel)
	must(t, r.watch(ctx))
	sending, end := context.WithCancel(ctx)
	t.Cleanup(end)
	var group sync.WaitGroup
	group.Go(func() { r.fail(r.traffic.run(sending)) })
	group.Go(func() { r.senders.run(ctx, clients, r.traffic.out) })
	return func() {
		t.Helper()
		end()
		group.Wait()
		if err := errors.Join(r.errors(), r.senders.journal.close()); err != nil {
			t.Error(err)
		}
	}
}

// requirePromises fails the test if a promise was broken.
func (r *run) requirePromises(t *testing.T) {
	t.Helper()
	c, err := r.checkPromises(t.Context(), finishWithin)
	must(t, err)
	r.report(c)
	if err := c.found(); err != nil {
		t.Error(err)
	}
}

// must ends the test if there is an error.
func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// Under load and behind a load balancer that follows readiness, a NATS server is partitioned, all
// daemons are restarted in turn, and then servers fail. No acknowledged event is missing, and all
// are applied.
//
// A message that is lost on its way to a processor is delivered again after 30 seconds. So NATS
// fails first, and these seconds pass while gateways restart and PostgreSQL fails.
func TestSite_serversFailAndDaemonsRestart_keepsPromises(t *testing.T) {
	t.Parallel()
	r := setup(t, strings.Replace(sources, "drain_delay: 1s", "drain_delay: 3s", 1))
	b := balance(t, r.site.Gateways)
	r.senders.urls, r.senders.pause = []string{"http://" + b.listener.Addr().String()}, 20*time.Millisecond
	stop := r.sending(t, 8)
	r.partitionNATSServer(t)
	r.restart(t, b, r.site.Processors)
	var failing sync.WaitGroup
	failing.Go(func() { r.injectFaults(t.Context(), time.Now(), natsFaults(), false) })
	r.restart(t, b, r.site.Gateways)
	if n := r.senders.retries.Load(); n > 0 {
		t.Errorf("%d of %d tries failed: %s", n, r.senders.deliveries.Load(), *r.senders.failure.Load())
	}
	r.injectFaults(t.Context(), time.Now(), postgresFaults(), false)
	failing.Wait()
	r.recover(t)
	stop()
	r.requirePromises(t)
}

// partitionNATSServer partitions the NATS server to which all our processes are connected from the
// two others. They can still reach it, but connect to another one: events that arrive during the
// partition are applied.
func (r *run) partitionNATSServer(t *testing.T) {
	t.Helper()
	pool, err := postgres.Connect(t.Context(), postgres.Options{URL: r.site.Postgres.PrimaryURL(), MaxConns: 1})
	must(t, err)
	defer pool.Close()
	nats := r.site.NATS
	nats.ClientLinks[1].Cut()
	nats.ClientLinks[2].Cut()
	applied(t, pool) // through the only server that can be reached
	nats.Partition(0, true)
	nats.ClientLinks[1].Restore()
	nats.ClientLinks[2].Restore()
	applied(t, pool)
	nats.Rejoin()
}

// restart restarts each daemon only after the balancer uses the previous one again, as in any
// rolling restart.
func (r *run) restart(t *testing.T, b *balancer, daemons [2]*site.Daemon) {
	t.Helper()
	for _, d := range daemons {
		before := r.senders.acknowledged.Load()
		testkit.Eventually(t, time.Minute, func() error {
			if n := r.senders.acknowledged.Load() - before; n < 20 {
				return fmt.Errorf("%d more are acknowledged, want 20", n)
			}
			return nil
		})
		if err := d.Restart(); err != nil {
			t.Error(err)
		}
		must(t, d.Ready(t.Context()))
		b.waitForUse(t, d)
	}
}

// natsFaults kills one of three NATS servers, pauses one, and restarts all in turn.
func natsFaults() []fault {
	return []fault{named("NATS server killed", 0, 2*sec), named("NATS server paused", 3*sec, 2*sec),
		named("NATS servers restarted in turn", 6*sec, 0)}
}

// postgresFaults loses the primary of PostgreSQL and promotes its standby, which then rejects
// writes, and then stalls.
func postgresFaults() []fault {
	return []fault{named("primary lost, standby promoted", 0, sec), named("PostgreSQL read-only", 4*sec, 2*sec),
		named("primary paused", 7*sec, 2*sec)}
}

// recover repairs the site. Gateways and processors must have survived its faults.
func (r *run) recover(t *testing.T) {
	t.Helper()
	if len(r.happened) != len(natsFaults())+len(postgresFaults()) {
		t.Errorf("only these faults happened: %v", r.happened)
	}
	must(t, r.supervise())
	must(t, r.site.Recover(t.Context()))
	if ended := r.ended(); len(ended) > 0 {
		t.Errorf("daemons ended by themselves: %v", ended)
	}
	if r.senders.spooled.Load() == 0 {
		t.Error("no delivery was spooled while PostgreSQL rejected writes")
	}
}

// applied waits until 100 events that arrive after the call have an outcome.
func applied(t *testing.T, pool *pgxpool.Pool) {
	t.Helper()
	var newest int64
	must(t, pool.QueryRow(t.Context(), "SELECT coalesce(max(id), 0) FROM events").Scan(&newest))
	began := time.Now()
	testkit.Eventually(t, 3*time.Minute, func() error {
		var n int
		if err := pool.QueryRow(t.Context(), "SELECT count(*) FROM outcomes WHERE event_id > $1",
			newest).Scan(&n); err != nil || n >= 100 {
			return err
		}
		return fmt.Errorf("%d events are applied, want 100", n)
	})
	t.Logf("100 events are applied after %s", time.Since(began).Round(100*time.Millisecond))
}

// balancer is one address in front of two gateways. It polls their readiness and gives new
// connections to the ready ones, in turn.
type balancer struct {
	listener net.Listener
	gateways [2]*site.Daemon
	ready    [2]atomic.Bool
	turn     atomic.Uint64
	group    sync.WaitGroup
}

// probeEvery is the interval between two readiness requests.
const probeEvery = 250 * time.Millisecond

func balance(t *testing.T, gateways [2]*site.Daemon) *balancer {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	must(t, err)
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

// waitForUse waits until new connections go to d too. If d is no gateway, it returns immediately.
func (b *balancer) waitForUse(t *testing.T, d *site.Daemon) {
	t.Helper()
	i := slices.Index(b.gateways[:], d)
	if i < 0 {
		return
	}
	testkit.Eventually(t, time.Minute, func() error {
		if !b.ready[i].Load() {
			return fmt.Errorf("the balancer does not use %s yet", d.Name)
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

// serve connects one client with a ready gateway, or closes the connection if none is ready.
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
