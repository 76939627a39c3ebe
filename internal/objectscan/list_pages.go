package objectscan

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	// pagesAhead is how many pages are read while others are compared. With 100 objects in a page,
	// they make about one step. Few large steps are cheaper, because a step has a high fixed cost.
	pagesAhead = 8
	// compareBatch ends a step: it compares no more pages once it has this many objects.
	compareBatch = 1000
	// maxCallAttempts is how often a call is made before its temporary failure is returned. The
	// Caller keeps within the budget, and waits for the pauses that the provider requests.
	maxCallAttempts = 6
)

// listPage is a page of a list.
type listPage struct {
	items []*item
	// next is the cursor of the following page, "" after the last.
	next string
	// startsPart: it is the first page of a part of the list.
	startsPart bool
	// reread: it was read before. Objects can move between the pages of the list.
	reread bool
	// skipped are parts of the list that were skipped instead of read.
	skipped []SkippedPart
	// notReady is why the list has no next page yet; such a value is not a page.
	notReady *notReadyError
	// file is the file that contains the list, or will contain it; such a value is not a page.
	file *provider.File
	// err ended the list.
	err error
}

// readPages reads the pages of a list from the scan's cursor on, some of them ahead. It ends after
// the last page, with an error, or with ctx, and then closes the channel.
func (s *objectScan) readPages(ctx context.Context) <-chan *listPage {
	position := listPosition{s.changedFrom, s.changedUntil, s.cursor} // the scan's progress is written meanwhile
	parts := s.newPartReader()
	split, out := make(chan *listPage, 1), make(chan *listPage, pagesAhead)
	send := func(p *listPage) bool {
		select {
		case split <- p:
			return true
		case <-ctx.Done():
			return false
		}
	}
	in, _ := s.lister.(provider.FileLister)
	files := &fileList{objectScan: s, in: in, send: send}
	go func() {
		defer close(split)
		for ctx.Err() == nil {
			p := parts.readPage(ctx, s, position)
			if p.file != nil {
				if p = files.next(ctx, p.file, &position); p == nil {
					continue
				}
			}
			if !send(p) || p.err != nil || p.next == "" {
				return
			}
			position.cursor = p.next
		}
	}()
	go func() {
		defer close(out)
		for p := range split {
			for _, it := range p.items {
				s.toInput(it)
			}
			select {
			case out <- p:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

// listPosition is what a call requests of a list: the changes between two times (zero for
// everything), from a cursor on.
type listPosition struct {
	changedFrom, changedUntil time.Time
	cursor                    string
}

// fetchPage requests a page and splits it.
func (s *objectScan) fetchPage(ctx context.Context, position listPosition) *listPage {
	call := s.lister.ListObjects(s.Source.Config, s.Source.API, s.Params.Account, s.objectType, position.changedFrom,
		position.changedUntil, position.cursor)
	a, err := s.fetchWithRetry(ctx, func() (*providerapi.Response, error) { return s.Call(ctx, call) })
	var temporary *providerapi.TemporaryError
	switch {
	case errors.As(err, new(*refetch.RejectedError)) && s.list.SeveralLists:
		return &listPage{err: fmt.Errorf("%s: %w", call.Path, err)}
	case errors.As(err, &temporary) && !temporary.Throttled:
		return &listPage{err: &listError{err}}
	case err != nil:
		return &listPage{err: err}
	case a.Verdict.Kind == provider.Missing && position.cursor != "" && !s.hasParts():
		return &listPage{err: fmt.Errorf("the API of source %s: %w: %s", s.Source.Name, providerapi.ErrExpired,
			a.Verdict.Detail)}
	case a.Verdict.Kind == provider.Missing:
		return &listPage{err: &listError{fmt.Errorf("the API of source %s finds no list of type %s: "+
			"%s", s.Source.Name, s.objectType, a.Verdict.Detail)}}
	case a.Date.IsZero():
		return &listPage{err: s.NoDateError()}
	}
	if f, err := s.listFile(position.cursor, a); err != nil || f != nil {
		return &listPage{file: f, err: err}
	}
	listed, next, err := s.lister.ObjectPage(s.Source.Config, s.Source.API, s.Params.Account, s.objectType,
		position.cursor, a.Header, a.Body)
	if err != nil {
		return &listPage{err: &listError{fmt.Errorf("source %s, list of type %s: %w", s.Source.Name, s.objectType,
			s.MaskError(err))}}
	}
	if next != "" && next == position.cursor {
		return &listPage{err: &listError{fmt.Errorf("the API of source %s gives the same page of type %s again and "+
			"again", s.Source.Name, s.objectType)}}
	}
	p := &listPage{next: next, reread: provider.ReadsAgain(position.cursor), items: make([]*item, 0, len(listed))}
	for i := range listed {
		it := &item{id: listed[i].ObjectID, at: listed[i].At, hasAt: listed[i].HasAt, listed: listed[i].LocateState}
		if listed[i].Body != nil {
			refetch := s.newRefetch(it.id, a)
			refetch.Body, refetch.Lag = listed[i].Body, max(s.list.Lag, s.Source.Reader.Lag())
			it.refetch = refetch
		}
		p.items = append(p.items, it)
	}
	return p
}

// newRefetch returns a response as the refetch of an object, without a body.
func (s *objectScan) newRefetch(id string, a *providerapi.Response) *provider.Refetch {
	return &provider.Refetch{Date: a.Date, Elapsed: a.Elapsed, Lag: s.Source.Reader.Lag(),
		Snapshot: provider.Snapshot{Account: s.Params.Account, ObjectType: s.objectType, ObjectID: id,
			APIVersion: s.Source.API.Version, API: s.Source.API}}
}

// toInput converts an item's refetch to the input of the version rule. A failure is a problem of
// the object, not of the run.
func (s *objectScan) toInput(it *item) {
	defer func() {
		if r := recover(); r != nil { // otherwise each processor that retries the run would crash in turn
			it.problem = s.Source.API.Mask(fmt.Sprintf("reading the API's response panicked: %v", r))
		}
	}()
	if !provider.ValidName(it.id) {
		it.id, it.problem = s.Source.API.Quote(it.id, 200), "the API lists it with an invalid id"
	}
	if it.refetch == nil || it.problem != "" {
		return
	}
	obs, err := s.Source.Reader.Snapshot(s.Source.Config, &it.refetch.Snapshot)
	if err == nil {
		it.input, err = versioning.InputFromRefetch(obs, it.refetch, s.ReceiptTime())
		it.ignoredPaths = obs.IgnoredPaths
		obs.State.Release()
	}
	switch {
	case err != nil:
		it.problem = "read the API's response: " + s.MaskError(err).Error()
	case it.input.Partial != "" && it.fetchedByID:
		it.problem = "the API does not return it completely: " + s.Source.API.Mask(it.input.Partial)
	case it.input.Partial != "":
		it.refetch, it.hasAt = nil, false // it must be refetched by its id
	}
}

// fetchWithRetry repeats a call after a temporary failure. It does not use the run's lease, so
// several may run at once.
func (s *objectScan) fetchWithRetry(ctx context.Context, call func() (*providerapi.Response,
	error)) (*providerapi.Response, error) {
	for try := 1; ; try++ {
		a, err := call()
		var temporary *providerapi.TemporaryError
		if err == nil || try == maxCallAttempts || !errors.As(err, &temporary) {
			return a, err
		}
		runs.Sleep(ctx, s.RetryDelay<<try)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}
