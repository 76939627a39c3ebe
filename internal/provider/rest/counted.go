package rest

import (
	"net/url"
	"strconv"
	"strings"
)

// isCount tells whether a cursor counts pages or objects: it is an integer, or an address with one in a parameter that is
// named for that. An id can be an integer too; such a list is only read with more calls than it needs.
func isCount(cursor string) bool {
	isInteger := func(text string) bool {
		_, err := strconv.ParseUint(text, 10, 64)
		return err == nil
	}
	_, query, _ := strings.Cut(cursor, "?")
	fields, _ := url.ParseQuery(query) // it was read when the page was
	for name, values := range fields {
		name = strings.ToLower(name)
		for _, word := range []string{"page", "offset", "skip", "start"} {
			if strings.Contains(name, word) && !strings.Contains(name, "size") && !strings.Contains(name, "per") && isInteger(values[0]) {
				return true
			}
		}
	}
	return isInteger(cursor)
}
