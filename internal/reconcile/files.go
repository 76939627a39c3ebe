package reconcile

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
	"github.com/postern-gateway/postern/internal/runs"
)

const (
	// longestLine is the most bytes that a line of a file may have.
	longestLine = 64 << 10
	// linesAtOnce are a page.
	linesAtOnce = compareAtOnce
)

// staysFor is how long a run that waits for a list keeps its place at most: for longer, the other types are swept meanwhile, and then other runs have it.
const staysFor = 5 * time.Second

// notYet begins what a run says while it waits for a file.
const notYet = "the list is not there yet: "

// waitsError is what a list that is still being made waits for.
type waitsError struct {
	why string
	// wait is how long to wait before it is asked for again.
	wait time.Duration
}

func (e *waitsError) Error() string { return e.why }

// awaits says what the run waits for.
func (s *sweep) awaits(ctx context.Context, w *waitsError) error {
	s.waiting = true
	return s.note(ctx, notYet+w.why)
}

// soonest is what is to be asked for first of two that are waited for.
func (w *waitsError) soonest(other *waitsError) *waitsError {
	if w == nil || other.wait < w.wait {
		return other
	}
	return w
}

// awaited takes that back.
func (s *sweep) awaited(ctx context.Context) error {
	if !s.waiting {
		return nil
	}
	s.waiting = false
	return s.note(ctx, "")
}

// file is the file that an answer to a list tells of, nil where it is a page.
func (s *sweep) file(cursor string, a *Response) (*provider.File, error) {
	in, ok := s.lister.(provider.FileLister)
	if !ok {
		return nil, nil
	}
	f, ok, err := in.ObjectFile(s.objectType, cursor, a.Header, a.Body)
	if err != nil {
		return nil, fmt.Errorf("source %s, list of type %s: %w", s.source.Name, s.objectType, s.hide(err))
	}
	if !ok {
		return nil, nil
	}
	return &f, nil
}

// fileList reads a list that comes as a file.
type fileList struct {
	*sweep
	in   provider.FileLister
	send func(*listPage) bool
	// broken is how often in a row the file has come to nothing, and gone how often its address was not good any more.
	broken, gone int
}

// next sends what there is of the file behind the place, and moves the place on. It returns the list's last page, or nil where the API is to be asked again.
func (l *fileList) next(ctx context.Context, f *provider.File, at *asking) (last *listPage) {
	defer func() {
		if r := recover(); r != nil { // Carry recovers its own goroutine alone
			last = &listPage{err: runs.Refuse(panicked(r))}
		}
	}()
	_, offset, known := provider.FileCursor(at.cursor)
	if f.Name != "" && !known { // from now on whoever goes on waits for this one
		at.cursor = f.Cursor(0)
		if !l.send(&listPage{next: at.cursor}) {
			return nil
		}
	}
	switch {
	case !f.Ready:
		if l.send(&listPage{waits: &waitsError{f.Why, f.Wait}}) {
			runs.Pause(ctx, min(f.Wait, l.Settings.Poll))
		}
		return nil
	case f.URL == "":
		return &listPage{}
	}
	from := offset
	last, err := l.lines(ctx, f, &offset, at)
	var passing *passingError
	switch {
	case err == nil:
		return last
	case offset > from:
		l.broken, l.gone = 0, 0
	}
	if errors.Is(err, errExpired) && l.gone == 0 { // the address alone may have expired: the API tells a fresh one
		l.gone++
		return nil
	}
	if !errors.As(err, &passing) {
		return &listPage{err: err}
	}
	if l.broken++; l.broken == patience {
		return &listPage{err: err}
	}
	runs.Pause(ctx, l.Settings.Again<<l.broken)
	return nil
}

// lines sends the lines behind an offset, page by page, and moves the offset and the place on. Without an error it returns the last page. The memory that it takes does not grow with the file.
func (l *fileList) lines(ctx context.Context, f *provider.File, offset *int64, at *asking) (last *listPage, err error) {
	if f.Size > 0 && *offset == f.Size {
		return &listPage{}, nil
	}
	body, err := l.source.Caller.Download(ctx, l.order.Account, f.URL, *offset)
	var size *sizeError
	switch ends := errors.As(err, &size); {
	case ends && f.Size > 0:
		return nil, l.missized(f, size.Error())
	case ends && size.bytes == strconv.FormatInt(*offset, 10): // it was read to its end
		return &listPage{}, nil
	case ends:
		return nil, fmt.Errorf("the API of source %s: %w: %s", l.source.Name, errExpired, size.Error())
	}
	if err != nil {
		return nil, err
	}
	defer func() { _ = body.Close() }()
	r, p := bufio.NewReaderSize(body, longestLine), &listPage{}
	for {
		line, err := r.ReadSlice('\n')
		end := *offset + int64(len(line))
		if f.Size > 0 && end > f.Size {
			return nil, l.missized(f, "the file has more bytes")
		}
		if err == io.EOF && f.Size > 0 && end != f.Size { // what was told of the file's end is not believed, nor is its last line
			err = io.ErrUnexpectedEOF
		}
		if err == nil || err == io.EOF {
			if err := l.add(p, line); err != nil {
				return nil, err
			}
			*offset = end
		}
		if err == io.EOF {
			return p, nil
		}
		if p.next = f.Cursor(*offset); err != nil || len(p.items) == linesAtOnce {
			at.cursor = p.next
			if !l.send(p) {
				return nil, context.Cause(ctx)
			}
			p = &listPage{}
		}
		if err != nil {
			return nil, l.breaks(f, end, err)
		}
	}
}

// missized is what is said of a file that has not as many bytes as the API has told: nobody knows what of it is the list.
func (l *fileList) missized(f *provider.File, has string) error {
	return runs.Refuse(&refusedError{text: fmt.Sprintf("the API of source %s, file of type %s: %s, and the API said %d: take the type out of api.bulk", l.source.Name, l.objectType, has, f.Size)})
}

// add adds what a line tells.
func (l *fileList) add(p *listPage, line []byte) error {
	if len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	one, ok, err := l.in.ObjectLine(l.objectType, line)
	if err != nil {
		return fmt.Errorf("source %s, file of type %s: %w", l.source.Name, l.objectType, l.hide(err))
	}
	if ok {
		p.items = append(p.items, &item{id: one.ObjectID, at: one.At, hasAt: one.HasAt, told: one.Known})
	}
	return nil
}

// breaks is why a file could not be read to its end.
func (l *fileList) breaks(f *provider.File, at int64, err error) error {
	if err == bufio.ErrBufferFull {
		return fmt.Errorf("source %s, file of type %s: a line has more than %d bytes", l.source.Name, l.objectType, longestLine)
	}
	return &passingError{text: fmt.Sprintf("the API of source %s: the file of type %s broke off at byte %d of %d: %s", l.source.Name, l.objectType, at, f.Size, cause(err))}
}
