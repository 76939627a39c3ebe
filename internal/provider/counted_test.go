package provider_test

import (
	"strings"
	"testing"

	"github.com/postern-gateway/postern/internal/provider"
)

// TestNextCounted_pages_readAgainUntilNothingMoves plays the pages of a list of three, by what each read finds.
func TestNextCounted_pages_readAgainUntilNothingMoves(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		// reads are PAGE=IDS.
		reads []string
		err   string
	}{
		"nothing moves":                  {reads: []string{"=a b", "2=c d", "=a b", "3=e", "2=c d", "3=e"}},
		"a delete moves one":             {reads: []string{"=a b", "2=d e", "=b c", "2=d e", "=b c", "3=f", "2=d e", "3=f"}},
		"a delete moves the only one":    {reads: []string{"=a b", "2=", "=b c", "2=", "=b c", "2="}},
		"an insert moves it back":        {reads: []string{"=a b", "2=c d", "=a b", "3=f", "2=c d", "3=e f", "2=c d", "3=e f"}},
		"more than a page moves":         {reads: []string{"=a b", "2=f", "=d e"}, err: "more objects than a page holds"},
		"objects move all the time":      {reads: []string{"=k 0", "2=x", "=k 1", "2=x", "=k 2", "2=x", "=k 3", "2=x", "=k 4", "2=x", "=k 5", "2=x", "=k 6", "2=x", "=k 7", "2=x", "=k 8", "2=x", "=k 9", "2=x", "=k 10"}, err: "cannot be read whole"},
		"cursors that do not count":      {reads: []string{"=a b", "c2=c d", "c3=e"}},
		"one page":                       {reads: []string{"=a b"}},
		"an order that changes is moved": {reads: []string{"=a b", "2=c", "=b a", "2=c", "=b a", "2=c"}},
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
			next, err := provider.NextCounted(cursor, following(tt.reads, page, i), strings.Fields(ids), func(c string) bool { return c != "" && c[0] != 'c' })
			last := i == len(tt.reads)-1
			if tt.err != "" && last && (err == nil || !strings.Contains(err.Error(), tt.err)) || (tt.err == "" || !last) && err != nil {
				t.Errorf("%s: read %d: error %v", name, i, err)
			}
			if (next == "") != last {
				t.Errorf("%s: read %d is followed by %q", name, i, next)
				break
			}
			cursor = next
		}
	}
}

// following is the page that an answer names: the first of a higher number that is read later.
func following(reads []string, page string, i int) string {
	for _, read := range reads[i+1:] {
		if next, _, _ := strings.Cut(read, "="); next > page {
			return next
		}
	}
	return ""
}
