package ingest_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/postern-gateway/postern/internal/ingest"
	"github.com/postern-gateway/postern/internal/testkit"
)

// What nobody waits for any more takes no part of a commit, nor of the memory and the queue.
func TestRefusedDeliveriesAreNotCommitted(t *testing.T) {
	t.Parallel()
	const queue = 10
	b := setupIdle(t, testkit.Database(t), func(o *ingest.Options) {
		o.Settings.Deadline, o.Settings.Queue, o.Settings.Writers = 300*time.Millisecond, queue, 1
		o.Endpoints = map[string]ingest.Endpoint{"many": o.Endpoints["many"]}
	})
	var group sync.WaitGroup
	for n := range queue {
		group.Go(func() {
			if status := serve(b.server.Handler(), "many", b.sign(t, "many", line(fmt.Sprint(n)))); status != 503 {
				t.Errorf("status %d", status)
			}
		})
	}
	group.Wait()
	if n := b.counter(t, "postern_deliveries_total", "result=unavailable"); n != queue {
		t.Errorf("%v have waited in vain", n)
	}
	b.waits(t, "many", 0)
	b.run(t)
	testkit.Eventually(t, time.Minute, func() error { // the deadline is short
		if status := serve(b.server.Handler(), "many", b.sign(t, "many", line("after"))); status != 200 {
			return fmt.Errorf("status %d", status)
		}
		return nil
	})
	if n := b.count(t, `SELECT count(*) FROM events`); n != 1 {
		t.Errorf("%d events", n)
	}
}

// What is kept in the spool is not appended by the queue as well, but for what was under way.
func TestSpooledDeliveriesLeaveTheQueue(t *testing.T) {
	t.Parallel()
	const writers, sent = 2, 30
	b := setupSpool(t, func(o *ingest.Options) {
		o.Settings.Writers, o.Settings.BatchMax, o.Settings.StallAfter = writers, 1, 5*time.Second
	})
	b.post(t, "many", b.sign(t, "many", line("before"))).receipt(t)
	b.store.Stall()
	var group sync.WaitGroup
	for n := range sent {
		group.Go(func() {
			key := fmt.Sprint("during ", n)
			a, err := b.try(t.Context(), "many", b.sign(t, "many", line(key)))
			if err != nil {
				t.Error(err)
				return
			}
			a.kept(t, key)
		})
	}
	testkit.Eventually(t, 30*time.Second, func() error { // all but two do, as a rule; on a busy machine some have left already when the last come
		if b.gauge(t, "postern_queue_deliveries", "many") == 0 {
			return errors.New("none waits")
		}
		return nil
	})
	group.Wait()
	b.waits(t, "many", 0) // though no writer has come back
	b.store.Restore()
	testkit.Eventually(t, time.Minute, func() error {
		if n := b.count(t, `SELECT count(*) FROM events`); n != 1+sent || b.spool.Stats().Records != 0 {
			return fmt.Errorf("%d events, kept %+v", n, b.spool.Stats())
		}
		return nil
	})
	b.waits(t, "many", 0)
	if n := b.counter(t, "postern_events_total", "result=duplicate"); n > writers {
		t.Errorf("%v were appended twice", n)
	}
}

// While the writers hang, what nobody waits for any more holds no memory: only what they have in hand does, however much comes. So those who send meanwhile are refused for the store's sake and not
// for want of memory, and bodies together stay below their bound.
func TestBodiesThatAreLeftHoldNoMemory(t *testing.T) {
	const writers, size, most, rounds, atOnce = 2, 60_000, 4 << 20, 4, 50
	b := setup(t, func(o *ingest.Options) {
		o.Settings.Writers, o.Settings.QueueBytes = writers, most
		o.Settings.Deadline, o.Settings.StallAfter = 2*time.Second, time.Hour
		o.Endpoints = map[string]ingest.Endpoint{"many": o.Endpoints["many"]}
	})
	release := b.hold(t)
	handler := b.server.Handler()
	var group sync.WaitGroup
	send := func(key string, spaces int) {
		group.Go(func() {
			if status := serve(handler, "many", b.sign(t, "many", line(key+strings.Repeat(" ", spaces)))); status != 503 {
				t.Errorf("%s: status %d", key, status)
			}
		})
	}
	for n := range writers {
		send(fmt.Sprint("under way ", n), 0)
		b.blocked(t, n+1)
	}
	group.Wait()
	held := func() float64 { return b.gauge(t, "postern_held_bytes", "") }
	underWay, before := held(), heap()
	for round := range rounds {
		for n := range atOnce {
			send(fmt.Sprintf("%d of round %d", n, round), size)
		}
		group.Wait()
		if now := held(); now != underWay || now == 0 || now > most {
			t.Fatalf("round %d: %v bytes are held, with %v under way", round, now, underWay)
		}
	}
	if grown := int64(heap()) - int64(before); grown > most {
		t.Errorf("%d MiB are held of %d MiB that were sent", grown>>20, rounds*atOnce*size>>20)
	}
	if n := b.counter(t, "postern_deliveries_total", "result=unavailable"); n != writers+rounds*atOnce {
		t.Errorf("%v of %d were refused for the store's sake", n, writers+rounds*atOnce)
	}
	release()
	testkit.Eventually(t, time.Minute, func() error {
		if n := held(); n != 0 {
			return fmt.Errorf("%v bytes are held", n)
		}
		return nil
	})
	if n := b.count(t, `SELECT count(*) FROM events`); n != writers {
		t.Errorf("%d events, want those that were under way", n)
	}
}

// A writer that finds only what nobody waits for any more goes on waiting: otherwise each outage would end some, and the last one all.
func TestWriterOutlivesWhatIsLeft(t *testing.T) {
	t.Parallel()
	b := ingest.NewBatches(1, 64)
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	b.PushLeft(100)
	got := make(chan int, 2)
	go func() {
		got <- b.Next(ctx, 0)
		b.End(0, 1)
		got <- b.Next(ctx, 0)
	}()
	testkit.Eventually(t, 30*time.Second, func() error {
		if n := b.Waiting(); n != 0 {
			return fmt.Errorf("%d wait", n)
		}
		return nil
	})
	b.Push(1)
	if n := <-got; n != 1 {
		t.Errorf("a batch of %d", n)
	}
	b.PushLeft(1)
	cancel()
	if n := <-got; n != 0 {
		t.Errorf("a batch of %d at the end", n)
	}
}
