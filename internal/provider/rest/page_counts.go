package rest

import (
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// numberedPath matches a path that ends with the number of a page: /things/page/2.
var numberedPath = regexp.MustCompile(`(?i)/p(?:g|ages?)?/[0-9]+/?$`)

// isPageCount reports whether a cursor counts pages or objects: it is an integer, or an address
// with an integer in its path or in a parameter that is named for that. An id can be an integer
// too; such a list only needs more calls than necessary.
func isPageCount(cursor string) bool {
	path, query, _ := strings.Cut(cursor, "?")
	fields, _ := url.ParseQuery(query) // the query was parsed with the page
	for name, values := range fields {
		if isPageParameter(strings.ToLower(name)) && isInteger(values[0]) {
			return true
		}
	}
	return isInteger(cursor) || numberedPath.MatchString(path)
}

// isPageParameter reports whether a parameter of that name counts pages or objects: page,
// page[number], pageIndex, startAt, $skip, but neither page_size nor per_page.
func isPageParameter(name string) bool {
	if strings.Contains(name, "size") || strings.Contains(name, "per") || strings.Contains(name, "limit") {
		return false
	}
	contains := func(word string) bool { return strings.Contains(name, word) }
	return slices.Contains([]string{"p", "pg", "from", "index"}, name) ||
		slices.ContainsFunc([]string{"page", "offset", "skip", "start"}, contains)
}

func isInteger(text string) bool {
	_, err := strconv.ParseUint(text, 10, 64)
	return err == nil
}
