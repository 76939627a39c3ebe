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
	// err ended the list.
	err error
}

// errExpired: the cursor of a list is no longer known.
var errExpired = errors.New("the list's cursor has expired")

// read reads the pages of a list from the sweep's cursor on, until the last, an error or the end of ctx, some of them ahead. The channel is closed then.
func (s *sweep) read(ctx context.Context) <-chan *listPage {
	at := part{s.from, s.upTo, s.cursor} // the sweep's progress is written meanwhile
	split, out := make(chan *listPage, 1), make(chan *listPage, pagesAhead)
	go func() {
		defer close(split)
		for {
			p := s.fetchPage(ctx, at)
			select {
			case split <- p:
			case <-ctx.Done():
				return
			}
			if p.err != nil || p.next == "" {
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

// part is what is asked of a list: the changes between two times, zero where all is asked for, from a cursor on.
type part struct {
	from, upTo time.Time
	cursor     string
}

// fetchPage asks for a page and splits it.
func (s *sweep) fetchPage(ctx context.Context, at part) (p *listPage) {
	defer func() {
		if r := recover(); r != nil { // Carry recovers its own goroutine alone
			p = &listPage{err: runs.Refuse(panicked(r))}
		}
	}()
	call := s.lister.ListObjects(s.source.Config, s.source.API, s.order.Account, s.objectType, at.from, at.upTo, at.cursor)
	a, err := s.calmly(ctx, func() (*Response, error) { return s.call(ctx, call) })
	switch {
	case err != nil:
		return &listPage{err: err}
	case a.Verdict.Kind == provider.Missing:
		return &listPage{err: fmt.Errorf("the API of source %s says that there is no list of type %s: %s", s.source.Name, s.objectType, a.Verdict.Detail)}
	case a.Date.IsZero():
		return &listPage{err: s.noDate()}
	}
	listed, next, err := s.lister.ObjectPage(s.source.Config, s.source.API, s.order.Account, s.objectType, at.cursor, a.Header, a.Body)
	if err != nil {
		return &listPage{err: fmt.Errorf("source %s, list of type %s: %w", s.source.Name, s.objectType, err)}
	}
	if next != "" && next == at.cursor {
		return &listPage{err: fmt.Errorf("the API of source %s gives the same page of type %s again and again", s.source.Name, s.objectType)}
	}
	p = &listPage{next: next, items: make([]*item, 0, len(listed))}
	for i := range listed {
		it := &item{id: listed[i].ObjectID, at: listed[i].At, hasAt: listed[i].HasAt, told: listed[i].Known}
		if listed[i].Body != nil {
			look := s.lookOf(it.id, a)
			look.Body, look.Lag = listed[i].Body, max(s.list.Lag, s.source.Reader.Lag())
			if it.hasAt {
				it.whole = look
			} else {
				it.look = look
			}
		}
		p.items = append(p.items, it)
	}
	return p
}

// lookOf is an answer as the look at an object, which has no body yet.
func (s *sweep) lookOf(id string, a *Response) *provider.Look {
	return &provider.Look{Date: a.Date, Elapsed: a.Elapsed, Lag: s.source.Reader.Lag(), Snapshot: provider.Snapshot{Account: s.order.Account, ObjectType: s.objectType, ObjectID: id,
		APIVersion: s.source.API.Version}}
}

// understand puts what an object's look says into the terms of the rule. What cannot be read is told of the object, not of the run.
func (s *sweep) understand(it *item) {
	defer func() {
		if r := recover(); r != nil { // an object that its reader cannot bear must not end process after process
			it.bad = fmt.Sprintf("reading what the API answered panicked: %v", r)
		}
	}()
	if !provider.ValidName(it.id) {
		it.id, it.bad = fmt.Sprintf("%.200q", it.id), "the API lists it under what is no name"
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
		it.bad = "read what the API answered: " + err.Error()
	case it.in.Partial != "" && it.fetched:
		it.bad = "the API does not tell it whole: " + it.in.Partial
	case it.in.Partial != "":
		it.look = nil // it must be asked for by its name
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
