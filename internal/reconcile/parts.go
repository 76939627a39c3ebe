package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/runs"
)

// PassedOver is a part of a list, such as a repository, that a sweep could not read, or not to its end. Nothing is proven with it.
type PassedOver struct {
	// Part is what the provider calls it.
	Part string `json:"part"`
	// Why is what the API answered.
	Why string `json:"why"`
	// Cut: its beginning was read, and what is here of it and was not listed is asked for by its name. Else nothing of it is.
	Cut bool `json:"cut"`
}

// Text says what was passed over, why, and what to do.
func (p PassedOver) Text() string {
	if p.Cut {
		return fmt.Sprintf("%s was not listed to its end: %s (what is here of the rest was asked for by its name; what is not here was not found)", p.Part, p.Why)
	}
	return fmt.Sprintf("%s was passed over: %s (let the key read it, or take it out of the source's section api)", p.Part, p.Why)
}

// parts are what the reader of a list knows of its parts.
type parts struct {
	// lister is nil where the list has none.
	lister provider.PartLister
	// unread is how many of them were passed over from their beginning.
	unread int
	// lasting: the run was put off for trouble before this try.
	lasting bool
}

// parts are those of the sweep's list as they are known now.
func (s *sweep) parts() *parts {
	p := &parts{lasting: s.putOff}
	p.lister, _ = s.lister.(provider.PartLister)
	for _, over := range s.passed {
		p.count(over)
	}
	return p
}

// inParts: the list has parts, of which one may be gone.
func (s *sweep) inParts() bool {
	_, ok := s.lister.(provider.PartLister)
	return ok
}

func (p *parts) count(over PassedOver) {
	if !over.Cut {
		p.unread++
	}
}

// read asks for a page. The rest of a part that cannot be read is passed over while the key is good for something, unless nothing of any part could be.
func (p *parts) read(ctx context.Context, s *sweep, at asking) (page *listPage) {
	defer func() {
		if r := recover(); r != nil { // Carry recovers its own goroutine alone
			page = &listPage{err: runs.Refuse(panicked(r))}
		}
	}()
	page = s.fetchPage(ctx, at)
	if p.lister == nil {
		return page
	}
	part, begins, next := p.lister.PartAt(s.source.API, s.objectType, at.cursor)
	page.begins = begins
	var none *noListError
	if errors.As(page.err, &none) { // the part may be gone, or hidden from the key: another try will not find it
		page.err = runs.Refuse(&refusedError{text: none.text})
	}
	if !p.unreadable(page.err) || begins && next == "" && p.unread == p.before(s, part) {
		return page
	}
	if _, bad := s.control(ctx, s.order.Account); bad != nil { // it is not the part's trouble
		return &listPage{err: bad}
	}
	over := PassedOver{Part: part, Why: events.Text(page.err.Error()), Cut: !begins}
	s.log.Warn("part of a list passed over, for it cannot be read", "source", s.source.Name, "type", s.objectType, "part", part, "error", page.err)
	p.count(over)
	return &listPage{next: next, begins: begins, passed: []PassedOver{over}}
}

// unreadable says whether a part whose page ended with an error is to be passed over: it is refused, or in trouble that has lasted.
func (p *parts) unreadable(err error) bool {
	var refused *refusedError
	var passing *passingError
	return errors.As(err, &refused) || p.lasting && errors.As(err, &passing) && !passing.throttled
}

// before is how many parts come before one.
func (p *parts) before(s *sweep, part string) (n int) {
	for cursor := ""; ; n++ {
		name, _, next := p.lister.PartAt(s.source.API, s.objectType, cursor)
		if name == part || next == "" {
			return n
		}
		cursor = next
	}
}

// over is the part, passed over from its beginning, that an object is of which is read by a call; nil for none.
func (s *sweep) over(call provider.Call) *PassedOver {
	lister, ok := s.lister.(provider.PartLister)
	if !ok {
		return nil
	}
	for i := range s.passed {
		if over := &s.passed[i]; !over.Cut && over.Part == lister.PartOf(s.source.API, call) {
			return over
		}
	}
	return nil
}
