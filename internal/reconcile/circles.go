package reconcile

import (
	"fmt"

	"github.com/postern-gateway/postern/internal/runs"
)

// maxIdle is how many pages in a row may tell of nothing new; of a sparse list, empty ones do not count.
const maxIdle = 100

// circles ends a list that tells of nothing new page after page. One that was begun again may tell once more of all that it has told of.
func (s *sweep) circles(pages []*listPage, fresh bool) error {
	if fresh {
		s.idle, s.stale, s.sparse = 0, 0, circle{}
		return nil
	}
	for _, p := range pages {
		if p.begins { // of the parts each is read once
			s.idle = 0
		}
		if s.list.Sparse && len(p.items) == 0 {
			if s.sparse.closes(p.next) {
				return s.circular(1)
			}
			continue
		}
		if p.again { // that is bounded
			continue
		}
		s.stale += len(p.items)
		if s.idle++; s.restarts+s.rereads > 0 && len(p.items) > 0 && int64(s.stale) <= s.Checked {
			s.idle = 0
		}
	}
	if s.idle <= maxIdle {
		return nil
	}
	return s.circular(s.idle)
}

// circular is the end of a list that leads in a circle.
func (s *sweep) circular(pages int) error {
	return runs.Refuse(fmt.Errorf("the API of source %s told of nothing new on the last %d pages of type %s, and of more to come each time: its cursors lead in a circle", s.source.Name, pages, s.objectType))
}

// circle remembers one of the cursors that it is told, a newer one each time that it was told as many as before. Told of cursors that lead in a circle, it is told of the remembered one again.
type circle struct {
	cursor      string
	told, again int
}

// closes tells whether a cursor is the one that is remembered.
func (c *circle) closes(cursor string) bool {
	if c.told > 0 && cursor == c.cursor {
		return true
	}
	if c.told++; c.told > c.again {
		c.cursor, c.again = cursor, 2*c.told
	}
	return false
}
