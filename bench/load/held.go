package load

import (
	"context"
	"fmt"
	"net"
	"sync"

	"golang.org/x/sys/unix"
)

// Held are connections that are kept open.
type Held struct {
	links []*link
}

// parallelHolds is how many connections are opened, or send, at the same time.
const parallelHolds = 64

// Hold opens n connections. If d is not nil, it sends one delivery over each as soon as it is open,
// and any response but 2xx is an error.
func Hold(ctx context.Context, address string, n int, d *Deliveries) (*Held, error) {
	h := &Held{links: make([]*link, n)}
	err := h.each(func(i int) (err error) {
		if h.links[i], err = dial(ctx, address); err != nil {
			return fmt.Errorf("connect %d of %d: %w", i+1, n, err)
		}
		if d == nil {
			return nil
		}
		status, err := h.links[i].post(ctx, d.put(nil, i))
		if err == nil && status/100 != 2 {
			err = fmt.Errorf("answered %d", status)
		}
		if err != nil {
			err = fmt.Errorf("send delivery %d: %w", i, err)
		}
		return err
	})
	if err != nil {
		h.Close()
		return nil, err
	}
	return h, nil
}

// each calls do for every connection, several in parallel, and returns one of the errors.
func (h *Held) each(do func(i int) error) (first error) {
	var wg sync.WaitGroup
	var mu sync.Mutex
	for w := range parallelHolds {
		wg.Go(func() {
			for i := w; i < len(h.links); i += parallelHolds {
				if err := do(i); err != nil {
					mu.Lock()
					first = err
					mu.Unlock()
					return
				}
			}
		})
	}
	wg.Wait()
	return first
}

// Open is how many connections the server has not closed.
func (h *Held) Open() int {
	open := 0
	for _, l := range h.links {
		if alive(l.c) {
			open++
		}
	}
	return open
}

// alive reports, without waiting, whether the peer has not closed the connection.
func alive(c net.Conn) bool {
	raw, err := c.(*net.TCPConn).SyscallConn()
	if err != nil {
		return false
	}
	var one [1]byte
	open := false
	err = raw.Read(func(fd uintptr) bool {
		n, _, err := unix.Recvfrom(int(fd), one[:], unix.MSG_PEEK|unix.MSG_DONTWAIT)
		open = n > 0 || err == unix.EAGAIN
		return true
	})
	return err == nil && open
}

// Close closes all.
func (h *Held) Close() {
	for _, l := range h.links {
		if l != nil {
			l.close()
		}
	}
}
