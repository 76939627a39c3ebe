package rest

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"regexp"
	"strconv"
	"strings"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
)

// response is a page, with the values that lead to the next page.
type response struct {
	// path is the path of the list below the base URL. cursor is the cursor of this page, or "" for
	// the first.
	path, cursor string
	header       http.Header
	root         *canonical.Value
	objects      []*canonical.Value
}

// parse finds the list's objects in a response. The caller releases root.
func (a *response) parse(l *List, body []byte) (err error) {
	if a.root, err = canonical.Parse(body); err != nil {
		return err
	}
	items := declared.Lookup(a.root, l.Items)
	if items.Kind() != canonical.Array {
		a.root.Release()
		return fmt.Errorf("the response has no list%s", describePath(l.Items))
	}
	for _, element := range items.Elements() {
		a.objects = append(a.objects, declared.Lookup(element, l.Item))
	}
	return nil
}

func (t Type) findNext(api *provider.API, a *response) (string, error) {
	n := t.List.Next
	if n.ByTime {
		return t.nextByTime(a)
	}
	more, hasMore := true, n.More != ""
	if hasMore {
		more = Condition{Path: n.More}.holds(a.root)
	}
	if !more {
		return "", nil
	}
	cursor, err := n.cursor(api, a)
	switch {
	case err != nil:
		return "", err
	case cursor == "" && hasMore:
		return "", fmt.Errorf("the response says that there is another page%s, but does not contain its cursor",
			describePath(n.More))
	}
	return cursor, nil
}

func (n Next) cursor(api *provider.API, a *response) (string, error) {
	switch {
	case n.Field != "":
		return nonEmptyText(declared.Lookup(a.root, n.Field)), nil
	case n.Address != "":
		return relativeToBase(api, a.path, nonEmptyText(declared.Lookup(a.root, n.Address)))
	case n.Link:
		return relativeToBase(api, a.path, nextLink(a.header))
	// a page with few objects may not be the last one, but an empty page is
	case n.LastObjectField != "" && len(a.objects) > 0:
		cursor := nonEmptyText(declared.Lookup(a.objects[len(a.objects)-1], n.LastObjectField))
		if cursor == "" {
			return "", fmt.Errorf("the page's last object has no value%s", describePath(n.LastObjectField))
		}
		return cursor, nil
	case n == Next{} && nextLink(a.header) != "":
		return "", errors.New("the response's header Link names a next page: set list.next to {link: true}")
	}
	return "", nil
}

// nonEmptyText returns the text of a value, or "" for null, false, 0 and other empty values.
func nonEmptyText(v *canonical.Value) string {
	s, ok := declared.Scalar(v)
	if !ok || v.Kind() == canonical.Bool || s == "0" {
		return ""
	}
	return s
}

// nextByTime continues at the version of the page's last object. It repeats some objects of this
// page, because changes within one unit of the clock may be on two pages.
func (t Type) nextByTime(a *response) (string, error) {
	last, err := strconv.ParseInt(a.cursor, 10, 64)
	if a.cursor != "" && err != nil {
		return "", fmt.Errorf("the page's cursor %.40q is no time", a.cursor)
	}
	before := int64(0)
	for i, object := range a.objects {
		at, _, ok := t.version(object)
		if !ok {
			return "", fmt.Errorf("object %d has no time%s, by which the pages must be sorted", i,
				describePath(t.Version.Path))
		}
		if at < before {
			return "", fmt.Errorf("object %d changed before the previous object: make the API sort by %s, "+
				"oldest first", i, t.Version.Path)
		}
		before = at
	}
	switch {
	case len(a.objects) == 0, before <= last && len(a.objects) < t.List.Limit:
		return "", nil
	case before <= last:
		return "", fmt.Errorf("all %d objects of a full page have the same time of change, so no later page can be "+
			"requested by time: raise list.limit, or page by a cursor", len(a.objects))
	}
	return strconv.FormatInt(before, 10), nil
}

// linkPattern matches one link of a header Link: <address>; rel="next".
var linkPattern = regexp.MustCompile(`<([^>]*)>\s*((?:;\s*[^,;"]*(?:"[^"]*")?\s*)*)`)

// nextLink returns the address of the next page in the header Link, or "".
func nextLink(header http.Header) string {
	for _, line := range header.Values("Link") {
		for _, m := range linkPattern.FindAllStringSubmatch(line, -1) {
			for parameter := range strings.SplitSeq(m[2], ";") {
				name, value, _ := strings.Cut(strings.TrimSpace(parameter), "=")
				for rel := range strings.FieldsSeq(strings.Trim(strings.TrimSpace(value), `"`)) {
					if strings.EqualFold(strings.TrimSpace(name), "rel") && strings.EqualFold(rel, "next") {
						return m[1]
					}
				}
			}
		}
	}
	return ""
}

// relativeToBase converts an address, absolute or relative to a path of the API, into the path and
// query after the base URL. The address must be on the API's host. It returns "" for "".
func relativeToBase(api *provider.API, from, address string) (string, error) {
	if address == "" {
		return "", nil
	}
	base, err := url.Parse(api.BaseURL)
	if err != nil {
		return "", errors.New("base_url is not a valid address")
	}
	here, err := url.Parse(api.BaseURL + from)
	if err != nil {
		return "", errors.New("the list's path is not valid")
	}
	at, err := here.Parse(address)
	if err != nil || at.User != nil || at.Opaque != "" {
		return "", errors.New("the next page's address is not valid")
	}
	if !strings.EqualFold(at.Host, base.Host) {
		return "", fmt.Errorf("the next page is on the host %s, but the key is sent only to the host of base_url",
			api.Quote(at.Host, 100))
	}
	path, ok := strings.CutPrefix(at.EscapedPath(), strings.TrimRight(base.EscapedPath(), "/"))
	if !ok || !strings.HasPrefix(path, "/") || hasDotSegments(path) {
		return "", errors.New("the next page is outside of base_url")
	}
	if _, err := url.ParseQuery(at.RawQuery); err != nil {
		return "", errors.New("the next page's address has an invalid query")
	}
	return path + "?" + at.RawQuery, nil
}
