package objectscan

import (
	"fmt"
)

// maxRepeatedPages is how many pages in a row may list nothing new. Empty pages do not count if the
// list is sparse (provider.List.Sparse).
const maxRepeatedPages = 100

// checkCycle ends a list that shows nothing new page after page. A list that was started again may
// repeat everything that it has shown before.
func (s *objectScan) checkCycle(pages []*listPage, foundNew bool) error {
	if foundNew {
		s.repeatedPages, s.repeatedObjects, s.emptyPageCycle = 0, 0, cycleDetector{}
		return nil
	}
	for _, p := range pages {
		if p.startsPart { // each part is read once
			s.repeatedPages = 0
		}
		if s.list.Sparse && len(p.items) == 0 {
			if s.emptyPageCycle.repeats(p.next) {
				return s.cycleError(1)
			}
			continue
		}
		if p.reread { // rereading is bounded elsewhere
			continue
		}
		s.repeatedObjects += len(p.items)
		if s.repeatedPages++; s.restarts+s.rereads > 0 && len(p.items) > 0 && int64(s.repeatedObjects) <= s.Checked {
			s.repeatedPages = 0
		}
	}
	if s.repeatedPages <= maxRepeatedPages {
		return nil
	}
	return s.cycleError(s.repeatedPages)
}

// cycleError is the error of a list whose cursors form a cycle.
func (s *objectScan) cycleError(pages int) error {
	return &listError{fmt.Errorf("the API of source %s listed nothing new on the last %d pages of type %s, and "+
		"each page announces another one: its cursors form a cycle", s.Source.Name, pages, s.objectType)}
}

// cycleDetector detects a cycle in a sequence of cursors with constant memory. It remembers one
// cursor, and replaces it each time the number of cursors has doubled. In a cycle the remembered
// cursor comes again.
type cycleDetector struct {
	cursor           string
	count, replaceAt int
}

// repeats reports whether a cursor is the remembered one.
func (c *cycleDetector) repeats(cursor string) bool {
	if c.count > 0 && cursor == c.cursor {
		return true
	}
	if c.count++; c.count > c.replaceAt {
		c.cursor, c.replaceAt = cursor, 2*c.count
	}
	return false
}
