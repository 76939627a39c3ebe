package provider_test

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/postern-gateway/postern/internal/provider"
)

// Each case lists the reads of the pages of a list, with the ids that each read finds.
func TestNextCounted_pages_readAgainUntilNothingMoves(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		// reads are PAGE=IDS.
		reads []string
		err   string
	}{
		"nothing moves": {reads: []string{"=a b", "2=c d", "=a b", "3=e", "2=c d", "3=e"}},
		"a delete moves one": {reads: []string{"=a b", "2=d e", "=b c", "2=d e", "=b c", "3=f", "2=d e",
			"3=f"}},
		"a delete moves the only one": {reads: []string{"=a b", "2=", "=b c", "2=", "=b c", "2="}},
		"an insert moves it back": {reads: []string{"=a b", "2=c d", "=a b", "3=f", "2=c d", "3=e f", "2=c d",
			"3=e f"}},
		"more than a page moves": {reads: []string{"=a b", "2=f", "=d e"},
			err: "more objects than a page holds"},
		"objects move all the time": {reads: []string{"=k 0", "2=x", "=k 1", "2=x", "=k 2", "2=x", "=k 3", "2=x",
			"=k 4", "2=x", "=k 5", "2=x", "=k 6", "2=x", "=k 7", "2=x", "=k 8", "2=x", "=k 9", "2=x", "=k 10"},
			err: "cannot be read completely"},
		"cursors that do not count":             {reads: []string{"=a b", "c2=c d", "c3=e"}},
		"one page":                              {reads: []string{"=a b"}},
		"an order that changes counts as moved": {reads: []string{"=a b", "2=c", "=b a", "2=c", "=b a", "2=c"}},
	}
	for name, tt := range tests {
		cursor := ""
		for i, read := range tt.reads {
			want, ids, _ := strings.Cut(read, "=")
			page, _ := provider.CountedPage(cursor)
			if page != want {
				t.Errorf("%s: read %d is of page %q, want %q", name, i, page, want)
				break
			}
			next, err := provider.NextCounted(cursor, walkCounted(tt.reads, page, i), strings.Fields(ids),
				func(c string) bool { return c != "" && c[0] != 'c' })
			last := i == len(tt.reads)-1
			if tt.err != "" && last && (err == nil || !strings.Contains(err.Error(), tt.err)) ||
				(tt.err == "" || !last) && err != nil {
				t.Errorf("%s: read %d: error %v", name, i, err)
			}
			if (next == "") != last {
				t.Errorf("%s: read %d has the next cursor %q", name, i, next)
				break
			}
			cursor = next
		}
	}
}

// walkCounted returns the next page that a response names: the first one with a higher number that
// is read later.
func walkCounted(reads []string, page string, i int) string {
	for _, read := range reads[i+1:] {
		if next, _, _ := strings.Cut(read, "="); next > page {
			return next
		}
	}
	return ""
}

// countedList is a list of ids, newest first, in pages of size.
type countedList struct {
	ids        []int
	size, last int
}

// page returns the ids of a page and the next page. Pages count from 1; "" is the first.
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

// The list changes while it is read, at most twice within six reads. Three changes could move an
// object over the end of a page, back, and over it again, each time before its page is read.
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
			if cursor, err = provider.NextCounted(cursor, next, ids,
				func(c string) bool { return c != "" }); err != nil {
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
				l.ids = slices.Delete(l.ids, from,
					min(len(l.ids), from+rapid.SampledFrom([]int{1, 1, 1, 2, 8}).Draw(t, "deletes")))
			}
		}
		if cursor != "" {
			t.Fatal("the list does not end")
		}
		ended++
		for _, id := range all {
			if slices.Contains(l.ids, id) && !listed[fmt.Sprint(id)] {
				t.Fatalf("%d was always in the list and is not listed", id)
			}
		}
	})
	t.Logf("%d lists were read completely, %d ended with an error", ended, failed)
}
