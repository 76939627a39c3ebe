package ingest_test

import (
	"bufio"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/testkit"
)

var slowBodyScale = flag.Int("slow.scale", 16,
	"BenchmarkSlowBodies runs this part of its attack; 1 is all of it, which needs 16,100 open files")

// slowClients is an attack by clients that cannot sign: each announces a body, sends a part of it
// and then waits. A client whose connection ends connects again.
type slowClients struct {
	name             string
	clients          int
	announced, sent  int
	chunked          bool
	alive            []atomic.Bool
	address          string
	connections      []net.Conn
	bytes, reconnect int
	connected        chan struct{}
}

// request returns the bytes that one client sends.
func (a *slowClients) request() string {
	head := "POST /webhooks/stripe HTTP/1.1\r\nHost: postern\r\nStripe-Signature: t=1,v1=00\r\n"
	if a.chunked {
		return head + fmt.Sprintf("Transfer-Encoding: chunked\r\n\r\n%x\r\n", a.announced) + strings.Repeat("x", a.sent)
	}
	return head + fmt.Sprintf("Content-Length: %d\r\n\r\n", a.announced) + strings.Repeat("x", a.sent)
}

// run connects all clients, and reconnects those whose connection ended, with that many bytes a
// second, until stop is closed.
func (a *slowClients) run(stop <-chan struct{}, perSecond int) {
	request := a.request()
	a.alive, a.connections = make([]atomic.Bool, a.clients), make([]net.Conn, a.clients)
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	last, next, budget := time.Now(), 0, a.clients*len(request)
	for {
		select {
		case <-stop:
			for _, c := range a.connections {
				if c != nil {
					_ = c.Close()
				}
			}
			return
		case now := <-tick.C:
			budget += int(now.Sub(last).Seconds() * float64(perSecond))
			last = now
		}
		for range a.clients {
			if budget <= 0 {
				break
			}
			if n := next % a.clients; !a.alive[n].Load() && a.connect(n, request) == nil {
				budget -= len(request)
			}
			next++
			if next == a.clients {
				close(a.connected)
			}
		}
	}
}

func (a *slowClients) connect(n int, request string) error {
	if a.connections[n] != nil {
		_ = a.connections[n].Close()
		a.reconnect++
	}
	conn, err := net.Dial("tcp", a.address)
	if err != nil {
		return err
	}
	a.connections[n] = conn
	_ = conn.SetWriteDeadline(time.Now().Add(5 * time.Second))
	sent, err := io.WriteString(conn, request)
	a.bytes += sent
	a.alive[n].Store(true)
	go func() {
		_, _ = io.Copy(io.Discard, conn) // until the gateway or the test ends it
		a.alive[n].Store(false)
	}()
	return err
}

// BenchmarkSlowBodies has the capacity of ingest.queue_bytes and attacks of 10 MiB/s, or the same
// part of both. It fails if less than 98 % of the concurrent deliveries are accepted, so it needs
// an idle machine. TestReadBody_concurrentSlowBodies_isNotRejected checks the same in simulated
// time.
func BenchmarkSlowBodies(b *testing.B) {
	scale := *slowBodyScale
	large := 4 << 20 / scale
	for _, chunked := range []bool{false, true} {
		for _, a := range []slowClients{
			{name: "66 after 512 KiB", clients: 66, sent: large / 8},
			{name: "36 after 2 MiB", clients: 36, sent: large / 2},
			{name: "400 after 32 KiB", clients: 400 / scale, sent: 32 << 10},
			{name: "4200 after 4 KiB", clients: 4200 / scale, sent: 4 << 10},
			{name: "8000 after 4 KiB", clients: 8000 / scale, sent: 4 << 10},
			{name: "8000 after 16 KiB", clients: 8000 / scale, sent: 16 << 10},
		} {
			a.announced, a.chunked = large, chunked // as much as the source accepts, which costs a client nothing
			b.Run(map[bool]string{false: "announced", true: "chunked"}[chunked]+"/"+a.name, func(b *testing.B) {
				for b.Loop() {
					a.deliverDuringAttack(b, slowBodySetup(b, scale), 10<<20/scale)
				}
			})
		}
	}
	for _, first := range []int{0, 513, 2049} {
		b.Run(fmt.Sprint("ended/", first, " bytes"), func(b *testing.B) {
			for b.Loop() {
				deliverDuringEndedBodies(b, first, max(scale, 4)) // each connection uses two open files here
			}
		})
	}
}

// slowBodySetup returns a gateway with that part of the default capacity.
func slowBodySetup(t testing.TB, scale int) *testBundle {
	t.Helper()
	b := setup(t, func(o *ingest.Options) {
		o.Settings.QueueBytes = int64(256<<20) / int64(scale)
		for name, ep := range o.Endpoints {
			ep.MaxBody = int64(4<<20) / int64(scale)
			o.Endpoints[name] = ep
		}
	})
	b.serve(t, time.Minute) // only the gateway ends the attack
	return b
}

// deliverDuringAttack runs the attack with that many bytes a second, and checks that concurrent
// deliveries are accepted.
func (a *slowClients) deliverDuringAttack(t *testing.B, b *testBundle, perSecond int) {
	t.Helper()
	a.sent++ // the gateway has more capacity
	a.address = strings.TrimPrefix(b.url, "http://")
	a.connected = make(chan struct{})
	stop := make(chan struct{})
	var running sync.WaitGroup
	running.Go(func() { a.run(stop, perSecond) })
	<-a.connected
	testkit.Eventually(t, 20*time.Second, func() error { // all clients are new, so none can be evicted yet
		for n := range 5 {
			if d, err := b.try(t.Context(), "stripe", b.invoice(t, 1+n)); err != nil || d.status != http.StatusOK {
				return fmt.Errorf("delivery %d: status %d, %v", n, d.status, err)
			}
		}
		return nil
	})
	delivered, sent := b.deliverDuring(t, 3*time.Second, 20*time.Millisecond)
	close(stop)
	running.Wait()
	t.ReportMetric(b.counter(t, "postern_deliveries_total", "result=too_slow"), "evicted")
	wantDelivered(t, delivered, sent, a.clients)
}

// deliverDuringEndedBodies has clients that start a chunked body, wait for as long as none is
// evicted, and end it. They start the next body on the same connection. The attack has as many
// connections as ingest.max_connections allows, and sends at most 10 MiB/s, or the same part of
// both.
func deliverDuringEndedBodies(t *testing.B, first, scale int) {
	t.Helper()
	const hold = 900 * time.Millisecond
	b := slowBodySetup(t, scale)
	begin := "POST /webhooks/stripe HTTP/1.1\r\nHost: postern\r\nTransfer-Encoding: chunked\r\n\r\n"
	if first > 0 {
		begin += fmt.Sprintf("%x\r\n%s\r\n", first, strings.Repeat("x", first))
	}
	clients := min(20_000/scale, int(hold.Seconds()*(10<<20))/scale/(len(begin)+len(lastChunk)))
	stop := make(chan struct{})
	var running sync.WaitGroup
	var requests atomic.Int64
	for range clients {
		running.Go(func() { holdBodies(strings.TrimPrefix(b.url, "http://"), begin, hold, stop, &requests) })
	}
	delivered, sent := b.deliverDuring(t, 4*time.Second, 20*time.Millisecond)
	close(stop)
	running.Wait()
	if requests.Load() < int64(2*clients) {
		t.Errorf("only %d requests of %d clients", requests.Load(), clients)
	}
	wantDelivered(t, delivered, sent, clients)
}

// wantDelivered reports the counts, and fails if too few deliveries were accepted.
func wantDelivered(b *testing.B, delivered, sent, clients int) {
	b.Helper()
	b.ReportMetric(float64(delivered), "taken")
	b.ReportMetric(float64(sent), "sent")
	b.ReportMetric(float64(clients), "clients")
	if delivered*100 < sent*98 {
		b.Errorf("%d of %d deliveries accepted during an attack of %d clients, want at least 98 %%", delivered, sent,
			clients)
	}
}

// lastChunk ends a chunked body.
const lastChunk = "0\r\n\r\n"

// holdBodies sends one request after the other over a connection, and waits before it ends each.
func holdBodies(address, begin string, hold time.Duration, stop <-chan struct{}, requests *atomic.Int64) {
	conn, err := net.Dial("tcp", address)
	if err != nil {
		return
	}
	defer func() { _ = conn.Close() }()
	responses, tick := bufio.NewReader(conn), time.NewTicker(hold)
	defer tick.Stop()
	for {
		if _, err := io.WriteString(conn, begin); err != nil {
			return
		}
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		if _, err := io.WriteString(conn, lastChunk); err != nil {
			return
		}
		res, err := http.ReadResponse(responses, nil)
		if err != nil {
			return
		}
		_, _ = io.Copy(io.Discard, res.Body)
		_ = res.Body.Close()
		requests.Add(1)
	}
}

// deliverDuring sends signed deliveries at an interval, and returns how many were accepted and how
// many sent.
func (b *testBundle) deliverDuring(t testing.TB, during, every time.Duration) (delivered, sent int) {
	t.Helper()
	tick := time.NewTicker(every)
	defer tick.Stop()
	var group sync.WaitGroup
	var accepted atomic.Int64
	for ; sent < int(during/every); sent++ {
		<-tick.C
		d := b.invoice(t, 1+sent)
		group.Go(func() {
			if a, err := b.try(t.Context(), "stripe", d); err == nil && a.status == http.StatusOK {
				accepted.Add(1)
			}
		})
	}
	group.Wait()
	return int(accepted.Load()), sent
}
