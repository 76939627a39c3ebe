package provider_test

import (
	"fmt"
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/provider"
)

// countedList is a list of ids, the newest first, in pages of size.
type countedList struct {
	ids        []int
	size, last int
}

// page returns the ids of a page, counted from 1 and "" being the first, and the next page.
func (l *countedList) page(cursor string) (ids []string, next string) {
	number, _ := strconv.Atoi(cursor)
	number = max(number, 1)
	from, to := min((number-1)*l.size, len(l.ids)), min(number*l.size, len(l.ids))
	for _, id := range l.ids[from:to] {
		ids = append(ids, strconv.Itoa(id))
	}
	if to < len(l.ids) {
		next = strconv.Itoa(number + 1)
	}
	return ids, next
}

func (l *countedList) insert() {
	l.last++
	l.ids = slices.Insert(l.ids, 0, l.last)
}

// TestNextCounted_deletesAndInserts_hideNothing changes a list while it is read, twice within six reads at most: three
// changes could move an object over the end of a page, back, and over it again, and each time before its page is read.
func TestNextCounted_deletesAndInserts_hideNothing(t *testing.T) {
	t.Parallel()
	failed, ended := 0, 0
	rapid.Check(t, func(t *rapid.T) {
		l := &countedList{size: rapid.IntRange(1, 8).Draw(t, "objects a page")}
		for range rapid.IntRange(0, 40).Draw(t, "objects") {
			l.insert()
		}
		all := slices.Clone(l.ids)
		listed, cursor, changes := map[string]bool{}, "", []bool{}
		for range 1000 {
			page, _ := provider.CountedPage(cursor)
			ids, next := l.page(page)
			for _, id := range ids {
				listed[id] = true
			}
			var err error
			if cursor, err = provider.NextCounted(cursor, next, ids, func(c string) bool { return c != "" }); err != nil {
				failed++
				return
			}
			if cursor == "" {
				break
			}
			recent := 0
			for _, changed := range changes[max(0, len(changes)-4):] {
				if changed {
					recent++
				}
			}
			change := len(changes) < 60 && recent < 2 && rapid.IntRange(0, 3).Draw(t, "changed") > 0
			changes = append(changes, change)
			switch {
			case change && rapid.Bool().Draw(t, "inserted"):
				for range rapid.SampledFrom([]int{1, 1, 1, 2, 8}).Draw(t, "inserts") {
					l.insert()
				}
			case change:
				from := rapid.IntRange(0, len(l.ids)).Draw(t, "deleted from")
				l.ids = slices.Delete(l.ids, from, min(len(l.ids), from+rapid.SampledFrom([]int{1, 1, 1, 2, 8}).Draw(t, "deletes")))
			}
		}
		if cursor != "" {
			t.Fatal("the list does not end")
		}
		ended++
		for _, id := range all {
			if slices.Contains(l.ids, id) && !listed[fmt.Sprint(id)] {
				t.Fatalf("%d was there all the time and is not listed", id)
			}
		}
	})
	t.Logf("%d lists read whole, %d ended with an error", ended, failed)
}
