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

// answer is a page with what it tells of the next.
type answer struct {
	// path is the list's own, below the base URL, and cursor where the page began, "" for the first.
	path, cursor string
	header       http.Header
	root         *canonical.Value
	objects      []*canonical.Value
}

// read finds the list's objects in an answer, whose root the caller releases.
func (a *answer) read(l *List, body []byte) (err error) {
	if a.root, err = canonical.Parse(body); err != nil {
		return err
	}
	items := declared.Lookup(a.root, l.Items)
	if items.Kind() != canonical.Array {
		a.root.Release()
		return fmt.Errorf("the answer has no list%s", place(l.Items))
	}
	for _, element := range items.Elements() {
		a.objects = append(a.objects, declared.Lookup(element, l.Item))
	}
	return nil
}

func (t Type) following(api *provider.API, a *answer) (string, error) {
	n := t.List.Next
	if n.Window {
		return t.window(a)
	}
	more, told := true, n.More != ""
	if told {
		more = Condition{Path: n.More}.holds(a.root)
	}
	if !more {
		return "", nil
	}
	cursor, err := n.cursor(api, a)
	switch {
	case err != nil:
		return "", err
	case cursor == "" && told:
		return "", fmt.Errorf("the answer says that there is more%s, and not where", place(n.More))
	}
	return cursor, nil
}

func (n Next) cursor(api *provider.API, a *answer) (string, error) {
	switch {
	case n.Field != "":
		return text(declared.Lookup(a.root, n.Field)), nil
	case n.Address != "":
		return below(api, a.path, text(declared.Lookup(a.root, n.Address)))
	case n.Link:
		return below(api, a.path, linked(a.header))
	case n.Last != "" && len(a.objects) > 0: // a page may be short for other reasons than being the last: an empty one is the end
		cursor := text(declared.Lookup(a.objects[len(a.objects)-1], n.Last))
		if cursor == "" {
			return "", fmt.Errorf("the page's last object has nothing%s", place(n.Last))
		}
		return cursor, nil
	case n == Next{} && linked(a.header) != "":
		return "", errors.New("the answer's header Link names a next page: set list.next to {link: true}")
	}
	return "", nil
}

// text is a value that says something: neither null nor false, 0 or "".
func text(v *canonical.Value) string {
	s, ok := declared.Scalar(v)
	if !ok || v.Kind() == canonical.Bool || s == "0" {
		return ""
	}
	return s
}

// window goes on at the version of the page's last object, with some that were in this page: what changed within one unit of the clock may stand in two pages.
func (t Type) window(a *answer) (string, error) {
	last, err := strconv.ParseInt(a.cursor, 10, 64)
	if a.cursor != "" && err != nil {
		return "", fmt.Errorf("the page's place %.40q is no time", a.cursor)
	}
	before := int64(0)
	for i, object := range a.objects {
		at, _, ok := t.at(object)
		if !ok {
			return "", fmt.Errorf("object %d has no time%s, by which pages are in order", i, place(t.Version.Path))
		}
		if at < before {
			return "", fmt.Errorf("object %d was changed before the one in front of it: have the API sort by %s, the oldest first", i, t.Version.Path)
		}
		before = at
	}
	switch {
	case len(a.objects) == 0, before <= last && len(a.objects) < t.List.Limit:
		return "", nil
	case before <= last:
		return "", fmt.Errorf("a whole page of %d objects has one time of change, so nothing can be asked for after it: raise list.limit, or page by a cursor", len(a.objects))
	}
	return strconv.FormatInt(before, 10), nil
}

// link is one link of a header Link: <address>; rel="next".
var link = regexp.MustCompile(`<([^>]*)>\s*((?:;\s*[^,;"]*(?:"[^"]*")?\s*)*)`)

// linked is the address of the next page in the header Link, "" where there is none.
func linked(header http.Header) string {
	for _, line := range header.Values("Link") {
		for _, m := range link.FindAllStringSubmatch(line, -1) {
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

// below is an address, whole or seen from a path of the API, as path and query that follow the base URL. It must be on the API's host; "" stays.
func below(api *provider.API, from, address string) (string, error) {
	if address == "" {
		return "", nil
	}
	base, err := url.Parse(api.BaseURL)
	if err != nil {
		return "", errors.New("base_url is no address")
	}
	here, err := url.Parse(api.BaseURL + from)
	if err != nil {
		return "", errors.New("the list's path is none")
	}
	at, err := here.Parse(address)
	if err != nil || at.User != nil || at.Opaque != "" {
		return "", errors.New("what should be the next page's address is none")
	}
	if !strings.EqualFold(at.Host, base.Host) {
		return "", fmt.Errorf("the next page is said to be at %s, another host than base_url's; the key goes to that alone", api.Quote(at.Host, 100))
	}
	path, ok := strings.CutPrefix(at.EscapedPath(), strings.TrimRight(base.EscapedPath(), "/"))
	if !ok || !strings.HasPrefix(path, "/") || climbs(path) {
		return "", errors.New("the next page is said to lie outside of base_url")
	}
	if _, err := url.ParseQuery(at.RawQuery); err != nil {
		return "", errors.New("the next page's address has a query that cannot be read")
	}
	return path + "?" + at.RawQuery, nil
}
