package runner

import (
	"bytes"
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/url"
	"strconv"
	"strings"
	"sync/atomic"
	"time"
	"unicode/utf8"
)

const userAgent = "Postern (+https://github.com/postern-gateway/postern)"

// send sends a request once. The HTTP transport silently repeats a request that it considers
// repeatable if a kept connection ends. A request with a body, or one that must not be repeated, is
// therefore passed with a body that can be read only once.
func (d *destination) send(ctx context.Context, c *call) (a response) {
	ctx, cancel := context.WithTimeout(ctx, c.step.Timeout)
	defer cancel()
	var began atomic.Bool
	address := d.config.URL + c.request.Path
	ctx = httptrace.WithClientTrace(ctx, beforeFirstByte(address, func() { began.Store(true) }))
	req, err := http.NewRequestWithContext(ctx, c.request.Method, address, http.NoBody)
	if err != nil {
		return response{err: err, notSent: true}
	}
	if c.request.Body != "" || c.step.NeverRepeat && !c.check {
		req.Body, req.ContentLength, req.GetBody = io.NopCloser(strings.NewReader(c.request.Body)),
			int64(len(c.request.Body)), nil
	}
	for name, values := range d.config.Headers {
		req.Header[name] = values
	}
	for name, value := range c.request.Headers {
		req.Header.Set(name, value)
	}
	req.Header.Set("User-Agent", userAgent)
	d.sign(req.Header, c.data.StepKey, c.request.Body, time.Now())
	res, err := d.client.Do(req)
	if err != nil {
		return response{err: withoutURL(err), notSent: !began.Load()}
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, d.config.MaxResponse+1))
	a = response{status: res.StatusCode, header: res.Header, body: body, complete: err == nil &&
		int64(len(body)) <= d.config.MaxResponse}
	if int64(len(body)) > d.config.MaxResponse {
		a.body = body[:d.config.MaxResponse]
	}
	a.body = []byte(d.maskSecrets(string(a.body)))
	return a
}

// longAddress is less than the transport's buffer of 4 KiB, in bytes. A request line with a shorter
// address stays in the buffer until WroteHeaderField was called.
const longAddress = 2 << 10

// beforeFirstByte returns a trace that calls begin before the first byte of a request can leave.
// WroteHeaders is too late: HTTP/2 calls it after the headers are sent, and a call that ends in
// between may have been received. HTTP/1 calls WroteHeaderField after the request line, which
// leaves separately where it fills the buffer. GotConn is early enough for each request, but after
// it a request can still wait for its turn on an HTTP/2 connection without being sent.
func beforeFirstByte(address string, begin func()) *httptrace.ClientTrace {
	if len(address) > longAddress {
		return &httptrace.ClientTrace{GotConn: func(httptrace.GotConnInfo) { begin() }}
	}
	return &httptrace.ClientTrace{WroteHeaderField: func(string, []string) { begin() }}
}

// sign signs a call according to Standard Webhooks. The id is the same for each attempt; for a step
// it is its key. The timestamp is that of the attempt.
func (d *destination) sign(h http.Header, id, body string, now time.Time) {
	if d.config.SigningKey == nil {
		return
	}
	at := strconv.FormatInt(now.Unix(), 10)
	mac := hmac.New(sha256.New, d.config.SigningKey)
	fmt.Fprintf(mac, "%s.%s.%s", id, at, body)
	h.Set("Webhook-Id", id)
	h.Set("Webhook-Timestamp", at)
	h.Set("Webhook-Signature", "v1,"+base64.StdEncoding.EncodeToString(mac.Sum(nil)))
}

// withoutURL removes the URL from an error, because its query may hold secrets that must not be in
// the ledger.
func withoutURL(err error) error {
	var u *url.Error
	if errors.As(err, &u) {
		return u.Err
	}
	return err
}

// maskSecrets replaces the destination's secrets in a text.
func (d *destination) maskSecrets(text string) string {
	for _, secret := range d.config.Secrets {
		text = strings.ReplaceAll(text, secret, "***")
	}
	return strings.ToValidUTF8(strings.ReplaceAll(text, "\x00", ""), "")
}

// excerpt returns the beginning of a response in one line.
func excerpt(body []byte) string {
	if json.Valid(body) {
		var b bytes.Buffer
		if json.Compact(&b, body) == nil {
			body = b.Bytes()
		}
	}
	text := strings.Join(strings.Fields(string(body)), " ")
	if len(text) <= maxExcerpt {
		return text
	}
	text = text[:maxExcerpt]
	for !utf8.ValidString(text) && len(text) > maxExcerpt-utf8.UTFMax {
		text = text[:len(text)-1]
	}
	return text + "..."
}

// retryAfter returns the pause that the destination requests; zero if it requests none.
func retryAfter(h http.Header, now time.Time) time.Duration {
	text := h.Get("Retry-After")
	if seconds, err := strconv.ParseInt(text, 10, 32); err == nil && seconds >= 0 {
		return min(time.Duration(seconds)*time.Second, maxRetryAfter)
	}
	at, err := http.ParseTime(text)
	if err != nil {
		return 0
	}
	return min(max(at.Sub(now), 0), maxRetryAfter)
}
