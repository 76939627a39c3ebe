package reconcile

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/provider"
)

const (
	// maxHops is how many redirects one call follows.
	maxHops = 3
	// maxHeader is the most bytes of an answer's headers.
	maxHeader = 256 << 10

	userAgent = "Postern (+https://github.com/postern-gateway/postern)"
)

// Options are what a Client needs.
type Options struct {
	Pool *pgxpool.Pool
	// Number is the source's, of the table sources.
	Number int32
	// Source is the source's name, and Account the one that it is pinned to, if any: it is the key's own, and has one budget under whichever name.
	Source  string
	Account string
	Reader  provider.Reader
	API     *provider.API
	Metrics *Metrics
	Logger  *slog.Logger
}

// Client calls a provider's API for one source. It is for any number of goroutines.
type Client struct {
	Clock

	o     Options
	base  *url.URL
	http  *http.Client
	mu    sync.Mutex
	spend map[string]*budget // by account
	// delays tells how the clock that stamps events differs from the database's.
	delays delays
}

// Response is an answer, or what there is in its place.
type Response struct {
	// Verdict is what the answer comes to. Trouble is also no answer at all: a timeout, a connection that could not be made, an answer too large.
	Verdict provider.Verdict
	// Status is HTTP's; 0 where no answer came.
	Status int
	Header http.Header
	Body   []byte
	// Date is the provider's time, cut to the second; zero where the answer did not tell it.
	Date time.Time
	// Elapsed is how long the answer took to begin, so that Date less Elapsed is not after the call began.
	Elapsed time.Duration
	// Skew is how far Date was ahead of the database's clock, at least, and Widened what Date and Elapsed were changed by for it, so that they hold by either clock.
	Skew, Widened time.Duration
	// Unmeasured is how far the clock that stamps events may be off, either way, where no event of late tells it; else 0.
	Unmeasured time.Duration
}

// NewClient makes the client of a source. Close ends it.
func NewClient(o Options) (*Client, error) {
	base, err := url.Parse(o.API.BaseURL)
	if err != nil {
		return nil, fmt.Errorf("read base_url of source %s: %w", o.Source, err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = o.API.Concurrency
	transport.MaxResponseHeaderBytes = maxHeader
	// Redirects are followed here, since each is a call that the budget must know of.
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{o: o, base: base, http: &http.Client{Transport: transport, CheckRedirect: stay}, spend: map[string]*budget{}}, nil
}

// Close closes idle connections. Calls under way end by themselves.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Do waits for the budget of the call's account, calls, and tells all processes where the provider wants to be left alone. What fails on the provider's
// side, or on the way there, is a Response with its Verdict. The error is of this side: a *spentError, the context's, or the database's. Neither shows the key.
func (c *Client) Do(ctx context.Context, call provider.Call) (*Response, error) {
	at, err := c.address(call)
	if err != nil {
		return nil, err
	}
	for hop := 0; ; hop++ {
		r, err := c.spent(ctx, call, at)
		if err != nil {
			return nil, err
		}
		next := c.redirect(call, at, r)
		if next == nil || hop == maxHops {
			return r, nil
		}
		at = next
	}
}

func (c *Client) address(call provider.Call) (*url.URL, error) {
	path, err := url.PathUnescape(call.Path)
	if err != nil || !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("call %s of source %s: no path", call.Path, c.o.Source)
	}
	at := *c.base
	at.RawPath = c.base.EscapedPath() + call.Path
	at.Path = c.base.Path + path
	at.RawQuery = call.Query.Encode()
	return &at, nil
}

// redirect is where an answer leads, nil where nowhere or where the key must not go: to another host, or from https to http.
func (c *Client) redirect(call provider.Call, at *url.URL, r *Response) *url.URL {
	if r.Status < 301 || r.Status > 308 || r.Header.Get("Location") == "" || cmp.Or(call.Method, http.MethodGet) != http.MethodGet {
		return nil
	}
	next, err := at.Parse(r.Header.Get("Location"))
	if err != nil || next.Scheme != at.Scheme || next.Host != at.Host || next.User != nil {
		return nil
	}
	return next
}

// spent makes one request within the budget.
func (c *Client) spent(ctx context.Context, call provider.Call, to *url.URL) (*Response, error) {
	b := c.budget(call.Account)
	asked := time.Now()
	name, at, err := b.take(ctx, call.Asked)
	if err != nil {
		return nil, fmt.Errorf("call %s of source %s: %w", call.Path, c.o.Source, err)
	}
	c.o.Metrics.waited(c.o.Source, time.Since(asked))
	delay, at, err := c.delays.of(ctx, c.o.Pool, c.o.Number, at)
	if err != nil {
		return nil, errors.Join(err, b.give(ctx, name, provider.Verdict{}))
	}
	r, err := c.request(ctx, call, to, at, delay)
	if err != nil {
		r.Verdict = provider.Verdict{Kind: provider.Trouble, Detail: cause(err)}
	}
	r.Verdict.Detail = c.o.API.Hide(r.Verdict.Detail) // what a server sends back may be quoted
	c.o.Metrics.called(c.o.Source, r)
	if err := b.give(ctx, name, r.Verdict); err != nil {
		c.o.Logger.Warn("a call was not given back to its budget, which has it back by itself in a while", "source", c.o.Source, "error", err)
	}
	if ctx.Err() != nil && r.Status == 0 {
		return nil, fmt.Errorf("call %s of source %s: %w", call.Path, c.o.Source, context.Cause(ctx))
	}
	return r, nil
}

func (c *Client) budget(account string) *budget {
	if account == c.o.Account {
		account = ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.spend[account]
	if b == nil {
		b = newBudget(c.o.Pool, c.o.Number, account, c.o.API, c.o.Logger.With("source", c.o.Source))
		c.spend[account] = b
	}
	return b
}

// request makes one request. The Response is never nil; with an error it has what came before.
func (c *Client) request(ctx context.Context, call provider.Call, to *url.URL, at reading, delay eventDelay) (*Response, error) {
	ctx, cancel := lifecycle.WithTimeout(ctx, "answer", c.o.API.Timeout)
	defer cancel()
	r := &Response{}
	req, err := http.NewRequestWithContext(ctx, call.Method, to.String(), bytes.NewReader(call.Body))
	if err != nil {
		return r, err
	}
	for name, values := range call.Header {
		req.Header[name] = values
	}
	req.Header.Set("User-Agent", userAgent)
	req.Header.Set("Cache-Control", "no-cache") // an old answer would be believed to be of now
	c.o.Reader.Authorize(c.o.API, req.Header)
	began := time.Now()
	resp, err := c.http.Do(req)
	if err != nil {
		return r, errors.Join(err, timeoutOf(ctx))
	}
	defer resp.Body.Close()
	now := time.Now()
	r.Elapsed, r.Header = now.Sub(began), resp.Header
	r.Date, _ = http.ParseTime(resp.Header.Get("Date"))
	if r.Body, err = readAtMost(resp, c.o.API.MaxBytes+1); err != nil {
		return r, errors.Join(err, timeoutOf(ctx))
	}
	if int64(len(r.Body)) > c.o.API.MaxBytes {
		r.Body = nil
		return r, fmt.Errorf("the answer has more than %d bytes: raise the source's api.max_answer_bytes, or ask for less", c.o.API.MaxBytes)
	}
	r.Status = resp.StatusCode
	r.Verdict = c.o.Reader.Answer(r.Status, r.Header, r.Body)
	// What else answers may stand in front of the provider, with a clock and a pace of its own.
	if r.Verdict.Kind == provider.Found || r.Verdict.Kind == provider.Missing {
		date := r.Date
		r.widen(at, began, now)
		r.holdForEvents(at, delay, began, now)
		skew, first := c.told(now, r.Elapsed, date, r.Skew)
		c.noted(r, skew, first)
	}
	return r, nil
}

// readAtMost reads the answer's body, or so much of it. A body whose length is told takes memory once: pages are large, and there are many.
func readAtMost(resp *http.Response, most int64) ([]byte, error) {
	var body bytes.Buffer
	if n := min(resp.ContentLength, most); n > 0 {
		body.Grow(int(n) + bytes.MinRead) // else the end of it would make it grow
	}
	_, err := body.ReadFrom(io.LimitReader(resp.Body, most))
	return body.Bytes(), err
}

// timeoutOf says what ran out of time, nil where nothing did.
func timeoutOf(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

// cause leaves the address out of an error: it is the call's, whose query may name a person.
func cause(err error) string {
	if timeout := (*lifecycle.Timeout)(nil); errors.As(err, &timeout) {
		return timeout.Error()
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err.Error()
	}
	return err.Error()
}
