package rest

import (
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// numbered is a path that ends with the number of a page: /things/page/2.
var numbered = regexp.MustCompile(`(?i)/p(?:g|ages?)?/[0-9]+/?$`)

// isCount tells whether a cursor counts pages or objects: it is an integer, or an address with one in its path or in a
// parameter that is named for that. An id can be an integer too; such a list is only read with more calls than it needs.
func isCount(cursor string) bool {
	path, query, _ := strings.Cut(cursor, "?")
	fields, _ := url.ParseQuery(query) // it was read when the page was
	for name, values := range fields {
		if counts(strings.ToLower(name)) && isInteger(values[0]) {
			return true
		}
	}
	return isInteger(cursor) || numbered.MatchString(path)
}

// counts tells whether a parameter of that name counts pages or objects: page, page[number], pageIndex, startAt, $skip,
// but neither page_size nor per_page.
func counts(name string) bool {
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
