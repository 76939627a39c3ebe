package main

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

// receipt is the body of a response to a delivery.
type receipt struct {
	ID       string `json:"id"`
	Conflict bool   `json:"conflict"`
	Spooled  bool   `json:"spooled"`
}

// senders send as providers do: several at once, to either gateway, with retries until a delivery
// is acknowledged.
type senders struct {
	urls []string
	// http has a client that keeps connections open and one that opens a connection per delivery.
	// Senders use one or the other.
	http    [2]*http.Client
	journal *journal
	silence *silence
	// pause follows each delivery of a sender.
	pause time.Duration

	deliveries, acknowledged, spooled, retries, refused atomic.Int64

	// failure describes the first failed attempt.
	failure atomic.Pointer[string]

	mu    sync.Mutex
	wrong []string
}

// retryAfter is the pause between two attempts of one delivery. Providers wait longer.
const retryAfter = 50 * time.Millisecond

func newSenders(urls []string, j *journal) *senders {
	client := func(fresh bool) *http.Client {
		return &http.Client{Timeout: 10 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64,
			DisableKeepAlives: fresh}}
	}
	return &senders{urls: urls, journal: j, silence: newSilence(), http: [2]*http.Client{client(false), client(true)}}
}

// run sends all deliveries with n senders. After the end of ctx it does not retry any more.
func (c *senders) run(ctx context.Context, n int, all <-chan sent) {
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() {
			for s := range all {
				c.deliver(ctx, i, s)
				if c.pause > 0 {
					sleep(ctx, c.pause)
				}
			}
		})
	}
	group.Wait()
	c.http[0].CloseIdleConnections()
}

// deliver retries until the delivery is acknowledged or permanently rejected. It begins with the
// sender's gateway and then uses the gateways in turn, as a load balancer does.
func (c *senders) deliver(ctx context.Context, sender int, s sent) {
	c.deliveries.Add(1)
	e := entry{Source: s.source, Key: s.key, Digest: s.digest, Forged: s.want != accepted}
	c.journal.write(e)
	for try := sender; ctx.Err() == nil; try++ {
		status, body, err := c.post(ctx, c.http[sender/len(c.urls)%2], c.urls[try%len(c.urls)], s)
		if err == nil && c.handleResponse(s, e, status, body) {
			return
		}
		// A server may close a connection while a body that it rejected is still being sent (RFC
		// 9112, 9.6).
		if err == nil || s.want != tooLarge {
			c.retries.Add(1)
			c.failed(fmt.Sprintf("%s %s of %d bytes: status %d: %s (%v)",
				s.source, s.key, len(s.delivery.Body), status, body, err))
		}
		select {
		case <-time.After(retryAfter):
		case <-ctx.Done():
		}
	}
}

// handleResponse records a response. It returns false if the delivery must be retried.
func (c *senders) handleResponse(s sent, e entry, status int, body []byte) bool {
	switch {
	case status/100 == 2:
		c.silence.acknowledged()
		var r receipt
		if err := json.Unmarshal(body, &r); err != nil {
			c.note("%s %s: no receipt: %s (%v)", s.source, s.key, body, err)
		}
		e.Acknowledged, e.ID, e.Spooled, e.Conflict = true, r.ID, r.Spooled, r.Conflict
		c.journal.write(e)
		c.acknowledged.Add(1)
		if r.Spooled {
			c.spooled.Add(1)
		}
	case s.want == forged && status == http.StatusUnauthorized, s.want == tooLarge &&
		status == http.StatusRequestEntityTooLarge:
		c.refused.Add(1)
	case status >= 500, status == http.StatusTooManyRequests:
		return false
	default:
		c.note("%s %s: status %d: %s", s.source, s.key, status, body)
	}
	return true
}

func (c *senders) failed(why string) { c.failure.CompareAndSwap(nil, &why) }

func (c *senders) post(ctx context.Context, client *http.Client, url string, s sent) (int, []byte, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url+"/webhooks/"+s.source,
		bytes.NewReader(s.delivery.Body))
	if err != nil {
		return 0, nil, err
	}
	req.Header = s.delivery.Header.Clone()
	// net/http retries a request only if it has written nothing of it, because an idle connection
	// was closed. All other failures are visible here.
	res, err := client.Do(req)
	if err != nil {
		return 0, nil, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	return res.StatusCode, body, err
}

func (c *senders) note(format string, args ...any) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.wrong = append(c.wrong, fmt.Sprintf(format, args...))
}

// silence records the periods without a 2xx response.
type silence struct {
	mu   sync.Mutex
	last time.Time
	gaps []span
}

// span is a period of time.
type span struct{ from, to time.Time }

// shortest is the shortest recorded silence.
const shortest = 20 * time.Millisecond

func newSilence() *silence { return &silence{last: time.Now()} }

func (s *silence) acknowledged() {
	now := time.Now()
	s.mu.Lock()
	defer s.mu.Unlock()
	if now.Sub(s.last) >= shortest {
		s.gaps = append(s.gaps, span{s.last, now})
	}
	s.last = now
}

// longest returns the longest silence that overlaps a span.
func (s *silence) longest(during span) (most time.Duration) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, g := range s.gaps {
		if g.from.Before(during.to) && during.from.Before(g.to) {
			most = max(most, g.to.Sub(g.from))
		}
	}
	return most
}
