package reconcile

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// Download opens a file that the API has named, from a byte on, within the budget of the account. The file may lie on any host: neither the key nor anything else of the source is sent there, no
// redirect is followed, and it must be https, but for an API on this machine. The reader is the caller's to close. Errors: errExpired where the address is not good any more, a *sizeError where the file
// ends before the offset, a *passingError for trouble that may pass; none shows the address, which is good for whoever has it.
func (c *Client) Download(ctx context.Context, account, address string, offset int64) (io.ReadCloser, error) {
	at, err := url.Parse(address)
	if err != nil || !c.mayDownload(at) {
		return nil, c.trouble("named a file that is not fetched: its address must be https")
	}
	b := c.budget(account)
	asked := time.Now()
	name, _, err := b.take(ctx, false)
	if err != nil {
		return nil, fmt.Errorf("download a file of source %s: %w", c.o.Source, err)
	}
	c.o.Metrics.waited(c.o.Source, time.Since(asked))
	d, err := c.open(ctx, at, offset)
	r := &Response{Verdict: provider.Verdict{Kind: provider.Found}, Elapsed: time.Since(asked)}
	if err != nil {
		r.Verdict.Kind = provider.Trouble
	}
	c.o.Metrics.called(c.o.Source, r)
	if err := b.give(ctx, name, provider.Verdict{Kind: provider.Found}); err != nil {
		c.o.Logger.Warn("a download was not given back to its budget, which has it back by itself in a while", "source", c.o.Source, "error", err)
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// trouble is what may pass of a file.
func (c *Client) trouble(text string) error {
	return &passingError{text: fmt.Sprintf("the API of source %s: %s", c.o.Source, text)}
}

func (c *Client) mayDownload(at *url.URL) bool {
	if at.User != nil || at.Hostname() == "" {
		return false
	}
	return at.Scheme == "https" || at.Scheme == "http" && c.base.Scheme == "http" && loopback(c.base.Hostname()) && loopback(at.Hostname())
}

func loopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// open asks for the file and reads up to its offset.
func (c *Client) open(ctx context.Context, at *url.URL, offset int64) (*download, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	d := &download{ctx: ctx, cancel: cancel, within: c.o.API.Timeout}
	d.timer = time.AfterFunc(d.within, func() { cancel(fmt.Errorf("nothing came for %s", d.within)) })
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err == nil {
		req.Header.Set("User-Agent", userAgent)
		req.Header.Set("Accept-Encoding", "identity") // else the offset would be that of other bytes
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
		var resp *http.Response
		if resp, err = c.http.Do(req); err == nil {
			d.body = resp.Body
			err = c.begins(resp, d, offset)
		}
	}
	d.timer.Stop()
	if err == nil {
		return d, nil
	}
	var size *sizeError
	known := errors.Is(err, errExpired) || errors.As(err, &size)
	if stopped := context.Cause(ctx); stopped != nil && !known {
		err = stopped
	}
	_ = d.Close()
	if known {
		return nil, fmt.Errorf("the API of source %s: %w", c.o.Source, err)
	}
	return nil, c.trouble("download from " + at.Hostname() + ": " + cause(err))
}

// begins judges the answer, and passes over what comes before the offset where the whole file was answered.
func (c *Client) begins(resp *http.Response, d *download, offset int64) error {
	coding := resp.Header.Get("Content-Encoding")
	switch {
	case resp.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return &sizeError{strings.TrimPrefix(resp.Header.Get("Content-Range"), "bytes */")}
	case resp.StatusCode >= 400 && resp.StatusCode <= 499 && resp.StatusCode != http.StatusRequestTimeout && resp.StatusCode != http.StatusTooManyRequests:
		host := resp.Request.URL.Hostname()
		return fmt.Errorf("%w: the file's address is not good any more: %s answered %d (where that is the answer of a proxy in between, let the processor reach %s)", errExpired, host, resp.StatusCode, host)
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent:
		return fmt.Errorf("answered %d", resp.StatusCode)
	case coding != "" && coding != "identity":
		return errors.New("answered with a coding that was not asked for")
	case resp.StatusCode == http.StatusOK:
		_, err := io.CopyN(io.Discard, d, offset)
		return err
	case !strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", offset)):
		return errors.New("answered another part of the file than was asked for")
	}
	return nil
}

// sizeError: a file ends before the byte that it was to be read from.
type sizeError struct{ bytes string }

func (e *sizeError) Error() string {
	if _, err := strconv.ParseInt(e.bytes, 10, 64); err != nil {
		return "the file has fewer bytes"
	}
	return "the file has " + e.bytes + " bytes"
}

// download is a file that comes. What reads it may take its time; the server may not.
type download struct {
	ctx    context.Context
	cancel context.CancelCauseFunc
	body   io.ReadCloser
	timer  *time.Timer
	within time.Duration
}

func (d *download) Read(p []byte) (int, error) {
	d.timer.Reset(d.within)
	n, err := d.body.Read(p)
	d.timer.Stop()
	if stopped := context.Cause(d.ctx); err != nil && err != io.EOF && stopped != nil {
		err = stopped
	}
	return n, err
}

func (d *download) Close() error {
	d.timer.Stop()
	d.cancel(nil)
	if d.body == nil {
		return nil
	}
	return d.body.Close()
}
