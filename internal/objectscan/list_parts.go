package objectscan

import (
	"context"
	"fmt"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/refetch"
)

// SkippedPart is a part of a list, such as a repository, that a scan could not read, or not to its
// end. The watermarks do not advance with it.
type SkippedPart struct {
	// Part is the provider's name of the part.
	Part string `json:"part"`
	// Reason is the API's response.
	Reason string `json:"reason"`
	// Truncated: its beginning was read, and its mirrored objects that were not listed are
	// refetched. Of a part that is not truncated, nothing was read and no object is refetched.
	Truncated bool `json:"truncated"`
}

// Message describes the skipped part, the reason and the remedy.
func (p SkippedPart) Message() string {
	if p.Truncated {
		return fmt.Sprintf("%s was not listed to its end: %s (mirrored objects of the rest were refetched; "+
			"objects that are not mirrored were not found)", p.Part, p.Reason)
	}
	return fmt.Sprintf("%s was skipped: %s (let the key read it, or remove it from the source's section api)",
		p.Part, p.Reason)
}

// partReader is the state of reading a list in parts.
type partReader struct {
	// lister is nil if the list has no parts.
	lister provider.PartLister
	// skippedWhole is how many parts were skipped from their beginning.
	skippedWhole int
}

// newPartReader returns a reader with the parts that the scan has skipped so far.
func (s *objectScan) newPartReader() *partReader {
	p := &partReader{}
	p.lister, _ = s.lister.(provider.PartLister)
	for _, skipped := range s.skipped {
		p.count(skipped)
	}
	return p
}

// hasParts reports whether the list has parts, so that one of them can be removed.
func (s *objectScan) hasParts() bool {
	_, ok := s.lister.(provider.PartLister)
	return ok
}

// count adds a skipped part to skippedWhole, unless its beginning was read.
func (p *partReader) count(skipped SkippedPart) {
	if !skipped.Truncated {
		p.skippedWhole++
	}
}

// readPage requests a page. If a part cannot be read while the key works, its rest is skipped. The
// error is returned if no part could be read at all.
func (p *partReader) readPage(ctx context.Context, s *objectScan, position listPosition) (page *listPage) {
	defer func() {
		if r := recover(); r != nil { // Execute recovers its own goroutine only
			page = &listPage{err: &listError{refetch.PanicError(r)}}
		}
	}()
	page = s.fetchPage(ctx, position)
	if p.lister == nil {
		return page
	}
	part, begins, next := p.lister.PartAt(s.Source.API, s.objectType, position.cursor)
	page.startsPart = begins
	if !isListFailure(page.err) || begins && next == "" && p.skippedWhole == p.countBefore(s, part) {
		return page
	}
	if _, bad := s.CheckKey(ctx, s.Params.Account); bad != nil { // the failure is not limited to the part
		return &listPage{err: bad}
	}
	skipped := SkippedPart{Part: part, Reason: events.SanitizeText(page.err.Error()), Truncated: !begins}
	s.Logger.Warn("part of a list skipped, because it cannot be read", "source", s.Source.Name, "type", s.objectType,
		"part", part, "error", page.err)
	p.count(skipped)
	return &listPage{next: next, startsPart: begins, skipped: []SkippedPart{skipped}}
}

// countBefore returns the number of parts before one.
func (p *partReader) countBefore(s *objectScan, part string) (n int) {
	for cursor := ""; ; n++ {
		name, _, next := p.lister.PartAt(s.Source.API, s.objectType, cursor)
		if name == part || next == "" {
			return n
		}
		cursor = next
	}
}

// skippedPartOf returns the completely skipped part to which the object of a call belongs, nil for
// none.
func (s *objectScan) skippedPartOf(call provider.Call) *SkippedPart {
	lister, ok := s.lister.(provider.PartLister)
	if !ok {
		return nil
	}
	for i := range s.skipped {
		if skipped := &s.skipped[i]; !skipped.Truncated && skipped.Part == lister.PartOf(s.Source.API, call) {
			return skipped
		}
	}
	return nil
}
