package providerapi

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
)

// Download opens a file that the API has named, starting at a byte, within the account's budget.
// The file may be on any host, so neither the key nor any other data of the source is sent there.
// Redirects are not followed, and the URL must be https unless the API is on this machine. The
// caller closes the reader. Errors: ErrExpired if the URL is no longer valid, a *SizeError if the
// file ends before the offset, a *TemporaryError for a temporary failure. None contains the URL,
// because everyone who has it can read the file.
func (c *Client) Download(ctx context.Context, account, address string, offset int64) (io.ReadCloser, error) {
	at, err := url.Parse(address)
	if err != nil || !c.isDownloadAllowed(at) {
		return nil, c.newTemporaryError("named a file that is not fetched: its URL must be https")
	}
	b := c.budgetOf(account)
	requestedAt := time.Now()
	slot, _, err := b.take(ctx, false)
	if err != nil {
		return nil, fmt.Errorf("download a file of source %s: %w", c.options.Source, err)
	}
	c.options.Metrics.observeWait(c.options.Source, time.Since(requestedAt))
	d, err := c.openDownload(ctx, at, offset)
	r := &Response{Verdict: provider.Verdict{Kind: provider.Found}, Elapsed: time.Since(requestedAt)}
	if err != nil {
		r.Verdict.Kind = provider.Failure
	}
	c.options.Metrics.countCall(c.options.Source, r)
	if err := b.release(ctx, slot, provider.Verdict{Kind: provider.Found}); err != nil {
		c.options.Logger.Warn("the budget's slot of a download was not released; it is free again after the lease",
			"source", c.options.Source, "error", err)
	}
	if err != nil {
		return nil, err
	}
	return d, nil
}

// newTemporaryError returns the error of a temporary failure of a file.
func (c *Client) newTemporaryError(text string) error {
	return &TemporaryError{Text: fmt.Sprintf("the API of source %s: %s", c.options.Source, text)}
}

func (c *Client) isDownloadAllowed(at *url.URL) bool {
	if at.User != nil || at.Hostname() == "" {
		return false
	}
	return at.Scheme == "https" || at.Scheme == "http" && c.baseURL.Scheme == "http" &&
		isLoopback(c.baseURL.Hostname()) && isLoopback(at.Hostname())
}

func isLoopback(host string) bool {
	ip := net.ParseIP(host)
	return host == "localhost" || ip != nil && ip.IsLoopback()
}

// openDownload requests the file and reads up to its offset.
func (c *Client) openDownload(ctx context.Context, at *url.URL, offset int64) (*download, error) {
	ctx, cancel := context.WithCancelCause(ctx)
	d := &download{ctx: ctx, cancel: cancel, timeout: c.options.API.Timeout}
	d.timer = time.AfterFunc(d.timeout, func() { cancel(fmt.Errorf("no data arrived for %s", d.timeout)) })
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, at.String(), nil)
	if err == nil {
		req.Header.Set("User-Agent", userAgent)
		req.Header.Set("Accept-Encoding", "identity") // otherwise the offset would count other bytes
		req.Header.Set("Range", fmt.Sprintf("bytes=%d-", offset))
		var resp *http.Response
		if resp, err = c.http.Do(req); err == nil {
			d.body = resp.Body
			err = c.checkDownload(resp, d, offset)
		}
	}
	d.timer.Stop()
	if err == nil {
		return d, nil
	}
	var size *SizeError
	final := errors.Is(err, ErrExpired) || errors.As(err, &size)
	if stopped := context.Cause(ctx); stopped != nil && !final {
		err = stopped
	}
	_ = d.Close()
	if final {
		return nil, fmt.Errorf("the API of source %s: %w", c.options.Source, err)
	}
	return nil, c.newTemporaryError("download from " + at.Hostname() + ": " + MessageWithoutURL(err))
}

// checkDownload checks the response. If the response has the whole file, it discards the bytes
// before the offset.
func (c *Client) checkDownload(resp *http.Response, d *download, offset int64) error {
	coding := resp.Header.Get("Content-Encoding")
	switch {
	case resp.StatusCode == http.StatusRequestedRangeNotSatisfiable:
		return &SizeError{strings.TrimPrefix(resp.Header.Get("Content-Range"), "bytes */")}
	case resp.StatusCode >= 400 && resp.StatusCode <= 499 && resp.StatusCode != http.StatusRequestTimeout &&
		resp.StatusCode != http.StatusTooManyRequests:
		host := resp.Request.URL.Hostname()
		return fmt.Errorf("%w: the file's URL is no longer valid: %s answered %d (if that is the response of "+
			"a proxy in between, let the processor reach %s)", ErrExpired, host, resp.StatusCode, host)
	case resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusPartialContent:
		return fmt.Errorf("answered %d", resp.StatusCode)
	case coding != "" && coding != "identity":
		return errors.New("answered with a content encoding that was not requested")
	case resp.StatusCode == http.StatusOK:
		_, err := io.CopyN(io.Discard, d, offset)
		return err
	case !strings.HasPrefix(resp.Header.Get("Content-Range"), fmt.Sprintf("bytes %d-", offset)):
		return errors.New("answered another part of the file than was requested")
	}
	return nil
}

// download is a file that is being read. The timeout applies to the server, not to the reader.
type download struct {
	ctx     context.Context
	cancel  context.CancelCauseFunc
	body    io.ReadCloser
	timer   *time.Timer
	timeout time.Duration
}

func (d *download) Read(p []byte) (int, error) {
	d.timer.Reset(d.timeout)
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
