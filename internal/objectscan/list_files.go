package objectscan

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
)

const (
	// maxLineBytes is the most bytes of a line of a file.
	maxLineBytes = 64 << 10
	// linesPerPage is how many lines make a page.
	linesPerPage = compareBatch
)

// maxWaitInRun is how long a run waits for a list at most. For a longer wait the run scans the
// other types first, and then yields to other runs.
const maxWaitInRun = 5 * time.Second

// listNotReady begins the detail of a run that waits for a file.
const listNotReady = "the list is not there yet: "

// notReadyError: the provider is still preparing the list.
type notReadyError struct {
	reason string
	// wait is how long to wait before the next request.
	wait time.Duration
}

func (e *notReadyError) Error() string { return e.reason }

// recordWaiting records in the run what it waits for.
func (s *objectScan) recordWaiting(ctx context.Context, w *notReadyError) error {
	s.waitRecorded = true
	return s.Lease.SetDetail(ctx, listNotReady+w.reason)
}

// sooner returns the one of two whose next request is first. w may be nil.
func (w *notReadyError) sooner(other *notReadyError) *notReadyError {
	if w == nil || other.wait < w.wait {
		return other
	}
	return w
}

// clearWaiting removes the record of recordWaiting.
func (s *objectScan) clearWaiting(ctx context.Context) error {
	if !s.waitRecorded {
		return nil
	}
	s.waitRecorded = false
	return s.Lease.SetDetail(ctx, "")
}

// listFile returns the file that a response to a list names, nil if the response is a page.
func (s *objectScan) listFile(cursor string, a *providerapi.Response) (*provider.File, error) {
	in, ok := s.lister.(provider.FileLister)
	if !ok {
		return nil, nil
	}
	f, ok, err := in.ObjectFile(s.objectType, cursor, a.Header, a.Body)
	if err != nil {
		return nil, &listError{fmt.Errorf("source %s, list of type %s: %w", s.Source.Name, s.objectType,
			s.MaskError(err))}
	}
	if !ok {
		return nil, nil
	}
	return &f, nil
}

// fileList reads a list that is a file.
type fileList struct {
	*objectScan
	in   provider.FileLister
	send func(*listPage) bool
	// failures is how often in a row reading the file failed, and expirations how often its URL was
	// no longer valid.
	failures, expirations int
}

// next sends the part of the file after the position, and advances the position. It returns the
// list's last page, or nil if the API must be called again.
func (l *fileList) next(ctx context.Context, f *provider.File, position *listPosition) (last *listPage) {
	defer func() {
		if r := recover(); r != nil { // Execute recovers its own goroutine only
			last = &listPage{err: &listError{refetch.PanicError(r)}}
		}
	}()
	_, offset, started := provider.FileCursor(position.cursor)
	if f.Name != "" && !started { // from now on every attempt waits for this file
		position.cursor = f.Cursor(0)
		if !l.send(&listPage{next: position.cursor}) {
			return nil
		}
	}
	switch {
	case !f.Ready:
		if l.send(&listPage{notReady: &notReadyError{f.Reason, f.Wait}}) {
			runs.Sleep(ctx, min(f.Wait, l.MaxPollDelay))
		}
		return nil
	case f.URL == "":
		return &listPage{}
	}
	from := offset
	last, err := l.lines(ctx, f, &offset, position)
	var temporary *providerapi.TemporaryError
	switch {
	case err == nil:
		return last
	case offset > from:
		l.failures, l.expirations = 0, 0
	}
	// perhaps only the URL has expired: the API then returns a new one
	if errors.Is(err, providerapi.ErrExpired) && l.expirations == 0 {
		l.expirations++
		return nil
	}
	if !errors.As(err, &temporary) {
		return &listPage{err: err}
	}
	if l.failures++; l.failures == maxCallAttempts && !temporary.Throttled {
		return &listPage{err: &listError{err}}
	} else if l.failures == maxCallAttempts {
		return &listPage{err: err}
	}
	runs.Sleep(ctx, l.RetryDelay<<l.failures)
	return nil
}

// lines sends the lines after an offset, page by page, and advances the offset and the position.
// Without an error it returns the last page. Its memory does not grow with the file.
func (l *fileList) lines(ctx context.Context, f *provider.File, offset *int64, position *listPosition) (last *listPage,
	err error) {
	if f.Size > 0 && *offset == f.Size {
		return &listPage{}, nil
	}
	body, err := l.Source.Caller.Download(ctx, l.Params.Account, f.URL, *offset)
	var sizeErr *providerapi.SizeError
	switch pastEnd := errors.As(err, &sizeErr); {
	case pastEnd && f.Size > 0:
		return nil, l.sizeMismatch(f, sizeErr.Error())
	case pastEnd && sizeErr.Bytes == strconv.FormatInt(*offset, 10): // the file was read to its end
		return &listPage{}, nil
	case pastEnd:
		return nil, fmt.Errorf("the API of source %s: %w: %s", l.Source.Name, providerapi.ErrExpired, sizeErr.Error())
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	r, p := bufio.NewReaderSize(body, maxLineBytes), &listPage{}
	for {
		line, err := r.ReadSlice('\n')
		end := *offset + int64(len(line))
		if f.Size > 0 && end > f.Size {
			return nil, l.sizeMismatch(f, "the file has more bytes")
		}
		// without the announced end, the file is incomplete and its last line is not used
		if err == io.EOF && f.Size > 0 && end != f.Size {
			err = io.ErrUnexpectedEOF
		}
		if err == nil || err == io.EOF {
			if err := l.addLine(p, line); err != nil {
				return nil, err
			}
			*offset = end
		}
		if err == io.EOF {
			return p, nil
		}
		if p.next = f.Cursor(*offset); err != nil || len(p.items) == linesPerPage {
			position.cursor = p.next
			if !l.send(p) {
				return nil, context.Cause(ctx)
			}
			p = &listPage{}
		}
		if err != nil {
			return nil, l.readError(f, end, err)
		}
	}
}

// sizeMismatch is the error of a file whose size differs from the announced one. It is then unknown
// which part is the list.
func (l *fileList) sizeMismatch(f *provider.File, has string) error {
	return runs.Permanent(&refetch.RejectedError{Text: fmt.Sprintf(
		"the API of source %s, file of type %s: %s, and the API "+
			"announced %d: remove the type from api.bulk", l.Source.Name, l.objectType, has, f.Size)})
}

// addLine adds the object of a line.
func (l *fileList) addLine(p *listPage, line []byte) error {
	if len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	one, ok, err := l.in.ObjectLine(l.objectType, line)
	if err != nil {
		return &listError{fmt.Errorf("source %s, file of type %s: %w", l.Source.Name, l.objectType, l.MaskError(err))}
	}
	if ok {
		p.items = append(p.items, &item{id: one.ObjectID, at: one.At, hasAt: one.HasAt, listed: one.LocateState})
	}
	return nil
}

// readError returns why a file could not be read to its end.
func (l *fileList) readError(f *provider.File, at int64, err error) error {
	if err == bufio.ErrBufferFull {
		return &listError{fmt.Errorf("source %s, file of type %s: a line has more than %d bytes", l.Source.Name,
			l.objectType, maxLineBytes)}
	}
	return &providerapi.TemporaryError{Text: fmt.Sprintf("the API of source %s: the file of type %s broke off at "+
		"byte %d of %d: %s", l.Source.Name, l.objectType, at, f.Size, providerapi.MessageWithoutURL(err))}
}
