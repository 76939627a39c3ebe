// Package providerapi calls providers' APIs over HTTP, within the rate budgets that all processes
// share, and measures by how much the APIs' clocks differ from the database's. Package reconcile
// makes its calls through it. It never decides what a response means for the log or the mirror.
package providerapi

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
	// maxRedirects is how many redirects one call follows.
	maxRedirects = 3
	// maxHeaderBytes is the most bytes of a response's headers.
	maxHeaderBytes = 256 << 10

	userAgent = "Postern (+https://github.com/postern-gateway/postern)"
)

// Options configure a Client.
type Options struct {
	Pool *pgxpool.Pool
	// Number is the source's number in the table sources.
	Number int32
	// Source is the source's name. Account is the account that the source is pinned to, if any. It
	// is the key's own account, so both names share one budget.
	Source  string
	Account string
	Reader  provider.Reader
	API     *provider.API
	Metrics *CallMetrics
	Logger  *slog.Logger
}

// Client calls a provider's API for one source. It is safe for concurrent use.
type Client struct {
	Clock

	options Options
	baseURL *url.URL
	http    *http.Client
	mu      sync.Mutex
	budgets map[string]*budget // by account
	// eventDelays holds the difference between the clock that stamps events and the database's
	// clock.
	eventDelays eventDelayCache
}

// Response is the response to a call, or the failure in its place.
type Response struct {
	// Verdict classifies the response. Failure also stands for a missing response: a timeout, a
	// failed connection, or a body that is too large.
	Verdict provider.Verdict
	// Status is the HTTP status; 0 without a response.
	Status int
	Header http.Header
	Body   []byte
	// Date is the provider's time, cut to the second; zero if the response has none.
	Date time.Time
	// Elapsed is the time from the call to the first byte of the response. Date less Elapsed is
	// therefore not after the start of the call.
	Elapsed time.Duration
	// Skew is the least possible lead of Date over the database's clock. Widened is by how much
	// Date and Elapsed were changed, so that they hold by either clock.
	Skew, Widened time.Duration
	// Unmeasured is how far the clock that stamps events may be off, in either direction, if no
	// recent event shows it; else 0.
	Unmeasured time.Duration
}

// NewClient makes the client of a source. The caller closes it with Close.
func NewClient(o Options) (*Client, error) {
	base, err := url.Parse(o.API.BaseURL)
	if err != nil {
		return nil, fmt.Errorf("read base_url of source %s: %w", o.Source, err)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.MaxIdleConnsPerHost = o.API.Concurrency
	transport.MaxResponseHeaderBytes = maxHeaderBytes
	// The client follows redirects itself, because each one is a call that the budget counts.
	keepRedirect := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	return &Client{options: o, baseURL: base, http: &http.Client{Transport: transport, CheckRedirect: keepRedirect},
		budgets: map[string]*budget{}}, nil
}

// Close closes idle connections. Calls in progress end normally.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Do waits for the budget of the call's account, makes the call, and records for all processes if
// the provider asks for a pause. A failure of the provider or of the network is a Response with its
// Verdict. The error is a *MonthlyBudgetError, the context's error, or the database's. Neither
// contains the key.
func (c *Client) Do(ctx context.Context, call provider.Call) (*Response, error) {
	at, err := c.callURL(call)
	if err != nil {
		return nil, err
	}
	for hop := 0; ; hop++ {
		r, err := c.callWithinBudget(ctx, call, at)
		if err != nil {
			return nil, err
		}
		next := c.redirectTarget(call, at, r)
		if next == nil || hop == maxRedirects {
			return r, nil
		}
		at = next
	}
}

func (c *Client) callURL(call provider.Call) (*url.URL, error) {
	path, err := url.PathUnescape(call.Path)
	if err != nil || !strings.HasPrefix(path, "/") {
		return nil, fmt.Errorf("call %s of source %s: no path", call.Path, c.options.Source)
	}
	at := *c.baseURL
	at.RawPath = c.baseURL.EscapedPath() + call.Path
	at.Path = c.baseURL.Path + path
	at.RawQuery = call.Query.Encode()
	return &at, nil
}

// redirectTarget returns where a response redirects to. It returns nil without a redirect, and if
// the key must not be sent there: another host, or http after https.
func (c *Client) redirectTarget(call provider.Call, at *url.URL, r *Response) *url.URL {
	if r.Status < 301 || r.Status > 308 || r.Header.Get("Location") == "" ||
		cmp.Or(call.Method, http.MethodGet) != http.MethodGet {
		return nil
	}
	next, err := at.Parse(r.Header.Get("Location"))
	if err != nil || next.Scheme != at.Scheme || next.Host != at.Host || next.User != nil {
		return nil
	}
	return next
}

// callWithinBudget makes one request within the budget.
func (c *Client) callWithinBudget(ctx context.Context, call provider.Call, to *url.URL) (*Response, error) {
	b := c.budgetOf(call.Account)
	requestedAt := time.Now()
	slot, at, err := b.take(ctx, call.Manual)
	if err != nil {
		return nil, fmt.Errorf("call %s of source %s: %w", call.Path, c.options.Source, err)
	}
	c.options.Metrics.observeWait(c.options.Source, time.Since(requestedAt))
	delay, at, err := c.eventDelays.delayAt(ctx, c.options.Pool, c.options.Number, at)
	if err != nil {
		return nil, errors.Join(err, b.release(ctx, slot, provider.Verdict{}))
	}
	r, err := c.request(ctx, call, to, at, delay)
	if err != nil {
		r.Verdict = provider.Verdict{Kind: provider.Failure, Detail: MessageWithoutURL(err)}
	}
	r.Verdict.Detail = c.options.API.Mask(r.Verdict.Detail) // the response may quote the key
	c.options.Metrics.countCall(c.options.Source, r)
	if err := b.release(ctx, slot, r.Verdict); err != nil {
		c.options.Logger.Warn("the budget's slot of a call was not released; it is free again after the lease",
			"source", c.options.Source, "error", err)
	}
	if ctx.Err() != nil && r.Status == 0 {
		return nil, fmt.Errorf("call %s of source %s: %w", call.Path, c.options.Source, context.Cause(ctx))
	}
	return r, nil
}

func (c *Client) budgetOf(account string) *budget {
	if account == c.options.Account {
		account = ""
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	b := c.budgets[account]
	if b == nil {
		b = newBudget(c.options.Pool, c.options.Number, account, c.options.API,
			c.options.Logger.With("source", c.options.Source))
		c.budgets[account] = b
	}
	return b
}

// request makes one request. The Response is never nil; with an error it has what came before the
// failure.
func (c *Client) request(ctx context.Context, call provider.Call, to *url.URL, at clockReading,
	delay eventDelay) (*Response, error) {
	ctx, cancel := lifecycle.WithTimeout(ctx, "read the response", c.options.API.Timeout)
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
	req.Header.Set("Cache-Control", "no-cache") // a cached response would count as current
	c.options.Reader.Authorize(c.options.API, req.Header)
	began := time.Now()
	resp, err := c.http.Do(req)
	if err != nil {
		return r, errors.Join(err, timeoutCause(ctx))
	}
	defer resp.Body.Close()
	now := time.Now()
	r.Elapsed, r.Header = now.Sub(began), resp.Header
	r.Date, _ = http.ParseTime(resp.Header.Get("Date"))
	if r.Body, err = readLimited(resp, c.options.API.MaxBytes+1); err != nil {
		return r, errors.Join(err, timeoutCause(ctx))
	}
	if int64(len(r.Body)) > c.options.API.MaxBytes {
		r.Body = nil
		return r, fmt.Errorf("the response has more than %d bytes: raise the source's api.max_response_bytes, or ask "+
			"for less", c.options.API.MaxBytes)
	}
	r.Status = resp.StatusCode
	r.Verdict = c.options.Reader.Answer(r.Status, r.Header, r.Body)
	// Other responses may come from a proxy, with its own clock and latency.
	if r.Verdict.Kind == provider.Found || r.Verdict.Kind == provider.Missing {
		date := r.Date
		r.widen(at, began, now)
		r.widenForEvents(at, delay, began, now)
		skew, first := c.observe(now, r.Elapsed, date, r.Skew)
		c.reportSkew(r, skew, first)
	}
	return r, nil
}

// readLimited reads the response's body up to a limit. It allocates once if the length is
// announced, because pages are large and many.
func readLimited(resp *http.Response, limit int64) ([]byte, error) {
	var body bytes.Buffer
	if n := min(resp.ContentLength, limit); n > 0 {
		body.Grow(int(n) + bytes.MinRead) // otherwise reading the end would grow the buffer
	}
	_, err := body.ReadFrom(io.LimitReader(resp.Body, limit))
	return body.Bytes(), err
}

// timeoutCause returns which timeout ended the context, nil for none.
func timeoutCause(ctx context.Context) error {
	if ctx.Err() == nil {
		return nil
	}
	return context.Cause(ctx)
}

// MessageWithoutURL removes the URL from an error message, because its query may contain personal
// data.
func MessageWithoutURL(err error) string {
	if timeout := (*lifecycle.Timeout)(nil); errors.As(err, &timeout) {
		return timeout.Error()
	}
	if u := (*url.Error)(nil); errors.As(err, &u) {
		return u.Err.Error()
	}
	return err.Error()
}
