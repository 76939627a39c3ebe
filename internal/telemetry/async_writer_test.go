package telemetry_test

import (
	"bytes"
	"context"
	"fmt"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/postern-gateway/postern/internal/telemetry"
)

// blockingWriter lets writes through one by one.
type blockingWriter struct {
	mu     sync.Mutex
	out    bytes.Buffer
	writes int
	open   chan struct{}
}

func (g *blockingWriter) Write(p []byte) (int, error) {
	<-g.open
	g.mu.Lock()
	defer g.mu.Unlock()
	g.writes++
	return g.out.Write(p)
}

// Every line is written once and complete, in each writer's order, with far fewer writes than
// lines.
func TestAsyncWriter_concurrentWrites_keepLines(t *testing.T) {
	t.Parallel()
	g := &blockingWriter{open: make(chan struct{})}
	l := telemetry.NewAsyncWriter(t.Context(), g)
	const writers, lines = 8, 200
	var wg sync.WaitGroup
	for w := range writers {
		wg.Go(func() {
			for n := range lines {
				if _, err := fmt.Fprintf(l, "%d %d\n", w, n); err != nil {
					t.Error(err)
				}
			}
		})
	}
	wg.Wait() // no writer waited for the blocked output
	close(g.open)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	next := make([]int, writers)
	for _, line := range strings.Split(strings.TrimSuffix(g.out.String(), "\n"), "\n") {
		var w, n int
		if _, err := fmt.Sscanf(line, "%d %d", &w, &n); err != nil || next[w] != n {
			t.Fatalf("line %q, want number %d", line, next[w])
		}
		next[w]++
	}
	for w, n := range next {
		if n != lines {
			t.Errorf("writer %d: %d lines of %d", w, n, lines)
		}
	}
	if g.writes > 10 {
		t.Errorf("%d writes for %d lines", g.writes, writers*lines)
	}
	if _, err := fmt.Fprint(l, "late\n"); err != nil || !strings.HasSuffix(g.out.String(), "late\n") {
		t.Error("a line after Close is not written")
	}
}

// Writers block when the output is too slow.
func TestAsyncWriter_slowReader_blocksWriters(t *testing.T) {
	t.Parallel()
	g := &blockingWriter{open: make(chan struct{})}
	l := telemetry.NewAsyncWriter(t.Context(), g)
	long := bytes.Repeat([]byte("x"), 512<<10)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range 16 {
			if _, err := l.Write(long); err != nil {
				t.Error(err)
			}
		}
	}()
	for range 2 { // at most a megabyte and the last line are pending
		g.open <- struct{}{}
	}
	select {
	case <-done:
		t.Error("the writers do not block")
	default:
	}
	close(g.open)
	<-done
	if err := l.Close(); err != nil || g.out.Len() != 16*len(long) {
		t.Errorf("%d bytes, %v", g.out.Len(), err)
	}
}

// A stop does not wait for an output without a reader: neither the writers nor Close block. A later
// reader gets everything.
func TestAsyncWriter_stalledReader_doesNotBlockClose(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		g := &blockingWriter{open: make(chan struct{})}
		ctx, stop := context.WithCancel(t.Context())
		l := telemetry.NewAsyncWriter(ctx, g)
		const writers = 8
		long := bytes.Repeat([]byte("x"), 512<<10)
		var wg sync.WaitGroup
		for range writers {
			wg.Go(func() {
				if _, err := l.Write(long); err != nil {
					t.Error(err)
				}
			})
		}
		synctest.Wait() // some of them are blocked
		stop()
		wg.Wait()
		began := time.Now()
		if err := l.Close(); err == nil || time.Since(began) != time.Second {
			t.Errorf("after %s: %v, want an error after a second", time.Since(began), err)
		}
		if _, err := fmt.Fprint(l, "late\n"); err != nil {
			t.Error(err)
		}
		close(g.open)
		if err := l.Close(); err != nil || g.out.Len() != writers*len(long)+len("late\n") {
			t.Errorf("%d bytes, %v", g.out.Len(), err)
		}
	})
}
