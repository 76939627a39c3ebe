package endtoend_test

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"sync/atomic"
	"time"
)

// receipt is what a sender was promised.
type receipt struct {
	EventID   string `json:"event_id"`
	ID        string `json:"id"`
	Duplicate bool   `json:"duplicate"`
	Conflict  bool   `json:"conflict"`
	// Spooled: it is durable on the gateway's disk, and nobody knows yet what the log says of it.
	Spooled bool `json:"spooled"`
}

// promise is a receipt and the delivery it was given for.
type promise struct {
	sent
	receipt
}

// clients send a mixture like providers do: several at once, and again what was not acknowledged.
type clients struct {
	url  atomic.Pointer[string]
	http *http.Client
	next chan sent
	// answered counts deliveries that are through, one way or the other.
	answered atomic.Int64

	mu       sync.Mutex
	promises []promise
	wrong    []string
	retries  int
}

// retryAfter spaces the tries of one delivery; a provider waits longer.
const retryAfter = 25 * time.Millisecond

func newClients(all []sent) *clients {
	c := &clients{http: &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 16}}, next: make(chan sent, len(all))}
	for _, s := range all {
		c.next <- s
	}
	close(c.next)
	return c
}

// send works the deliveries off with n clients at once and returns when all are through.
func (c *clients) send(ctx context.Context, n int) {
	var group sync.WaitGroup
	for range n {
		group.Go(func() {
			for s := range c.next {
				c.deliver(ctx, s)
				c.answered.Add(1)
			}
		})
	}
	group.Wait()
	c.http.CloseIdleConnections()
}

// deliver tries until the delivery is acknowledged or refused for good.
func (c *clients) deliver(ctx context.Context, s sent) {
	for ctx.Err() == nil {
		status, body, err := c.post(ctx, s)
		switch {
		case err == nil && status == http.StatusOK:
			var r receipt
			if err := json.Unmarshal(body, &r); err != nil || s.refused {
				c.note("a delivery that must be refused, or no receipt: %s (%v)", body, err)
			}
			c.mu.Lock()
			c.promises = append(c.promises, promise{s, r})
			c.mu.Unlock()
			return
		case err == nil && status == http.StatusUnauthorized && s.refused:
			return
		case err == nil && status < 500:
			c.note("status %d to %s: %s", status, s.source, body)
			return
		}
		c.mu.Lock()
		c.retries++
		c.mu.Unlock()
		select {
		case <-time.After(retryAfter):
		case <-ctx.Done():
		}
	}
}

func (c *clients) post(ctx context.Context, s sent) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, *c.url.Load()+"/webhooks/"+s.source, bytes.NewReader(s.delivery.Body))
	if err != nil {
		return 0, nil, err
	}
	req.Header = s.delivery.Header.Clone()
	res, err := c.http.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, body, err
}

func (c *clients) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}
