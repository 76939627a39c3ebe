package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

const (
	// pagesAhead pages are read while others are compared: about as many of 100 objects as end a step, since a step costs much beside its objects.
	pagesAhead = 8
	// compareAtOnce is how many objects end a step that more pages are ready for.
	compareAtOnce = 1000
)

// listPage is a page of a list.
type listPage struct {
	items []*item
	// next is the cursor of the following page, "" after the last.
	next string
	// begins: it is the first of a part of the list.
	begins bool
	// again: it was read before, since objects can move between the pages of the list.
	again bool
	// passed are parts of the list that were passed over in its place.
	passed []PassedOver
	// waits is what the list waits for before its next page; such a page is none.
	waits *waitsError
	// file is what the list lies in, or will; such a page is none.
	file *provider.File
	// err ended the list.
	err error
}

// noListError: the API says that there is no such list.
type noListError struct{ text string }

func (e *noListError) Error() string { return e.text }

// errExpired: the cursor of a list is no longer known, or what it names is no longer there.
var errExpired = errors.New("the list's cursor has expired")

// read reads the pages of a list from the sweep's cursor on, until the last, an error or the end of ctx, some of them ahead. The channel is closed then.
func (s *sweep) read(ctx context.Context) <-chan *listPage {
	at := asking{s.from, s.upTo, s.cursor} // the sweep's progress is written meanwhile
	parts := s.parts()
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
	files := &fileList{sweep: s, in: in, send: send}
	go func() {
		defer close(split)
		for ctx.Err() == nil {
			p := parts.read(ctx, s, at)
			if p.file != nil {
				if p = files.next(ctx, p.file, &at); p == nil {
					continue
				}
			}
			if !send(p) || p.err != nil || p.next == "" {
				return
			}
			at.cursor = p.next
		}
	}()
	go func() {
		defer close(out)
		for p := range split {
			for _, it := range p.items {
				s.understand(it)
			}
			select {
			case out <- p:
			case <-ctx.Done():
			}
		}
	}()
	return out
}

// asking is what is asked of a list: the changes between two times, zero where all is asked for, from a cursor on.
type asking struct {
	from, upTo time.Time
	cursor     string
}

// fetchPage asks for a page and splits it.
func (s *sweep) fetchPage(ctx context.Context, at asking) *listPage {
	call := s.lister.ListObjects(s.source.Config, s.source.API, s.order.Account, s.objectType, at.from, at.upTo, at.cursor)
	a, err := s.calmly(ctx, func() (*Response, error) { return s.call(ctx, call) })
	switch {
	case errors.As(err, new(*refusedError)) && s.list.Several:
		return &listPage{err: fmt.Errorf("%s: %w", call.Path, err)}
	case err != nil:
		return &listPage{err: err}
	case a.Verdict.Kind == provider.Missing && at.cursor != "" && !s.inParts():
		return &listPage{err: fmt.Errorf("the API of source %s: %w: %s", s.source.Name, errExpired, a.Verdict.Detail)}
	case a.Verdict.Kind == provider.Missing:
		return &listPage{err: &noListError{fmt.Sprintf("the API of source %s says that there is no list of type %s: %s", s.source.Name, s.objectType, a.Verdict.Detail)}}
	case a.Date.IsZero():
		return &listPage{err: s.noDate()}
	}
	if f, err := s.file(at.cursor, a); err != nil || f != nil {
		return &listPage{file: f, err: err}
	}
	listed, next, err := s.lister.ObjectPage(s.source.Config, s.source.API, s.order.Account, s.objectType, at.cursor, a.Header, a.Body)
	if err != nil {
		return &listPage{err: fmt.Errorf("source %s, list of type %s: %w", s.source.Name, s.objectType, s.hide(err))}
	}
	if next != "" && next == at.cursor {
		return &listPage{err: fmt.Errorf("the API of source %s gives the same page of type %s again and again", s.source.Name, s.objectType)}
	}
	p := &listPage{next: next, again: provider.ReadsAgain(at.cursor), items: make([]*item, 0, len(listed))}
	for i := range listed {
		it := &item{id: listed[i].ObjectID, at: listed[i].At, hasAt: listed[i].HasAt, told: listed[i].Known}
		if listed[i].Body != nil {
			look := s.lookOf(it.id, a)
			look.Body, look.Lag = listed[i].Body, max(s.list.Lag, s.source.Reader.Lag())
			it.look = look
		}
		p.items = append(p.items, it)
	}
	return p
}

// lookOf is an answer as the look at an object, which has no body yet.
func (s *sweep) lookOf(id string, a *Response) *provider.Look {
	return &provider.Look{Date: a.Date, Elapsed: a.Elapsed, Lag: s.source.Reader.Lag(), Snapshot: provider.Snapshot{Account: s.order.Account, ObjectType: s.objectType, ObjectID: id,
		APIVersion: s.source.API.Version, API: s.source.API}}
}

// understand puts what an object's look says into the terms of the rule. What cannot be read is told of the object, not of the run.
func (s *sweep) understand(it *item) {
	defer func() {
		if r := recover(); r != nil { // an object that its reader cannot bear must not end process after process
			it.bad = s.source.API.Hide(fmt.Sprintf("reading what the API answered panicked: %v", r))
		}
	}()
	if !provider.ValidName(it.id) {
		it.id, it.bad = s.source.API.Quote(it.id, 200), "the API lists it under what is no name"
	}
	if it.look == nil || it.bad != "" {
		return
	}
	obs, err := s.source.Reader.Snapshot(s.source.Config, &it.look.Snapshot)
	if err == nil {
		it.in, err = versioning.FromLook(obs, it.look, s.received())
		it.volatile = obs.Volatile
		obs.State.Release()
	}
	switch {
	case err != nil:
		it.bad = "read what the API answered: " + s.hide(err).Error()
	case it.in.Partial != "" && it.fetched:
		it.bad = "the API does not tell it whole: " + s.source.API.Hide(it.in.Partial)
	case it.in.Partial != "":
		it.look, it.hasAt = nil, false // it must be asked for by its name
	}
}

// calmly has a call made again after trouble that may pass. It says nothing to the ledger, so that several may be under way.
func (s *sweep) calmly(ctx context.Context, call func() (*Response, error)) (*Response, error) {
	for try := 1; ; try++ {
		a, err := call()
		var passing *passingError
		if err == nil || try == patience || !errors.As(err, &passing) {
			return a, err
		}
		runs.Pause(ctx, s.Settings.Again<<try)
		if ctx.Err() != nil {
			return nil, context.Cause(ctx)
		}
	}
}
