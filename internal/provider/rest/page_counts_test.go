package rest

import "testing"

func TestIsCount_cursors_thatCountPagesOrObjects(t *testing.T) {
	t.Parallel()
	tests := map[string]bool{
		"2": true, "/things?page=2": true, "/things?p=2&limit=5": true, "?offset=100": true, "?$skip=100": true,
		"?page%5Bnumber%5D=3&page%5Bsize%5D=50": true, "?startAt=50": true, "?pageIndex=1": true,
		"?from=20&size=20": true,
		"/things/page/2":   true, "/things/pages/2/?sort=id": true, "/things/p/2": true,
		"": false, "abc": false, "/things?cursor=eyJ": false, "/things?limit=5&page_size=5&per_page=5": false,
		"?starting_after=ch_1": false, "?page_token=abc": false, "/things/2/parts?cursor=x": false,
		"/shop/5?page_limit=5": false,
	}
	for cursor, want := range tests {
		if got := isPageCount(cursor); got != want {
			t.Errorf("%q is a count: %t, want %t", cursor, got, want)
		}
	}
}
