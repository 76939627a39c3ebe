package stripe

import (
	"cmp"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// next returns the first available list from an index on, or len(l).
func (l listing) next(api *provider.API, account string, from int) int {
	for i, p := range l {
		if i >= from && p.isAvailable(api, account) {
			return i
		}
	}
	return len(l)
}

// sparse reports whether other pages may follow a page without objects.
func (l listing) sparse() bool {
	return slices.ContainsFunc(l, func(p part) bool { return p.isBelowOwners() || p.mixed })
}

// isSeveralLists reports whether the account's objects come from more than one list.
func (l listing) isSeveralLists(api *provider.API, account string) bool {
	first := l.next(api, account, 0)
	return first < len(l) && (l[first].perOwner != "" || l.next(api, account, first+1) < len(l))
}

// onlyIfMirrored reports whether the objects are inside other objects, of which there may be many,
// most of them without any.
func (l listing) onlyIfMirrored() bool {
	return slices.ContainsFunc(l, func(p part) bool { return p.within != "" })
}

// listPosition is a position in a listing: in one list or, while owners are pending, in the list of
// the first pending owner.
type listPosition struct {
	part int
	// after is the id that the next page of the list follows. It is "" for the first page. While
	// owners are pending, it is also "" after the last page.
	after   string
	pending []pendingOwner
}

// pendingOwner is an owner whose list must still be read, from the page that follows after; ""
// means the first page.
type pendingOwner struct{ owner, after string }

// startCursor returns the cursor of the start of a list, or "" after the last.
func (l listing) startCursor(number int) string {
	if number >= len(l) {
		return ""
	}
	return fmt.Sprintf("%d:", number)
}

// parseCursor parses a cursor: the list, the id that its page follows, and the pending owners, each
// with the id that its page follows. Ids are escaped, because users chose the ids of old customers.
func (l listing) parseCursor(api *provider.API, account, cursor string) listPosition {
	number, after, _ := strings.Cut(cursor, ":")
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || n >= len(l) || !l[n].isAvailable(api, account) {
		return listPosition{part: l.next(api, account, 0)}
	}
	if !l[n].isBelowOwners() {
		return listPosition{part: n, after: after}
	}
	words := strings.Split(after, " ")
	at := listPosition{part: n, after: unescaped(words[0])}
	for _, word := range words[1:] {
		owner, after, _ := strings.Cut(word, "/")
		at.pending = append(at.pending, pendingOwner{unescaped(owner), unescaped(after)})
	}
	return at
}

// unescaped decodes an id of a cursor.
func unescaped(word string) string {
	id, err := url.QueryUnescape(word)
	if err != nil {
		return word
	}
	return id
}

func (l listing) cursor(at listPosition) string {
	if !l.read(at).isBelowOwners() {
		return fmt.Sprintf("%d:%s", at.part, at.after)
	}
	out := fmt.Sprintf("%d:%s", at.part, url.QueryEscape(at.after))
	for _, o := range at.pending {
		out += " " + url.QueryEscape(o.owner) + "/" + url.QueryEscape(o.after)
	}
	return out
}

// read returns the list that is read at a position, or a zero part.
func (l listing) read(at listPosition) part {
	if at.part >= len(l) {
		return part{}
	}
	return l[at.part]
}

// usesV2API reports whether the list belongs to Stripe's second API, whose pages have other
// cursors.
func (p part) usesV2API() bool { return strings.HasPrefix(p.path, "/v2/") }

// address returns the path and the query of a position.
func (p part) address(account string, at listPosition) (path string, query url.Values) {
	path, after := p.path, at.after
	if len(at.pending) > 0 {
		path, after = strings.ReplaceAll(p.perOwner, "{owner}", url.PathEscape(at.pending[0].owner)),
			at.pending[0].after
	}
	path, text, _ := strings.Cut(strings.ReplaceAll(path, "{account}", url.PathEscape(account)), "?")
	if p.unpaged || p.singleObject {
		return path, nil
	}
	if p.usesV2API() && after != "" {
		query, err := url.ParseQuery(after) // the second API gives the query of its pages
		if err == nil {
			return path, query
		}
	}
	query, _ = url.ParseQuery(text) // a constant of the table, which a test parses
	query.Set("limit", strconv.Itoa(pageSize))
	if !p.usesV2API() && after != "" {
		query.Set("starting_after", after)
	}
	return path, query
}

// ListObjects returns the call for a page of all objects. It ignores the times, because no list can
// be limited to what changed.
func (Stripe) ListObjects(_ *provider.Source, api *provider.API, account, objectType string, _, _ time.Time,
	cursor string) provider.Call {
	l := lists[objectType]
	at := l.parseCursor(api, account, cursor)
	account, _ = realAccount(account)
	path, query := l.read(at).address(account, at)
	return forAccount(api, provider.Call{Account: account, Path: path, Query: query})
}

// ObjectPage splits a page. Its members are complete, as in the response to GET; Stripe may cut
// nested lists in both. For types that only GET can request completely it returns the ids.
func (Stripe) ObjectPage(_ *provider.Source, api *provider.API, account, objectType, cursor string, _ http.Header,
	body []byte) ([]provider.ListedObject, string, error) {
	root, err := canonical.Parse(body)
	if err != nil {
		return nil, "", fmt.Errorf("read page of %s: %w", objectType, err)
	}
	defer root.Release()
	l := lists[objectType]
	at := l.parseCursor(api, account, cursor)
	page, more, err := l.read(at).page(objectType, &at, root)
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("read page of %s: %w", objectType, err)
	case more:
		return page, l.cursor(at), nil
	}
	return page, l.startCursor(l.next(api, account, at.part+1)), nil
}

// page reads a page of the list and moves the position after it. more reports whether the list
// continues there.
func (p part) page(objectType string, at *listPosition, root *canonical.Value) (page []provider.ListedObject, more bool,
	err error) {
	if p.singleObject {
		page, err = makeListed(objectType, []*canonical.Value{root})
		return page, false, err
	}
	data := root.Get("data")
	if data.Kind() != canonical.Array {
		return nil, false, errors.New("the response is not a list")
	}
	objects := data.Elements()
	after, err := p.following(root, objectType)
	if err != nil {
		return nil, false, err
	}
	switch {
	case len(at.pending) > 0:
		if at.pending[0].after = after; after == "" {
			at.pending = at.pending[1:]
		}
		objects = ofType(objectType, objects)
	case p.isBelowOwners():
		at.after = after
		objects, at.pending, err = p.owners(objectType, objects)
	case p.mixed:
		at.after, objects = after, ofType(objectType, objects)
	default:
		at.after = after
	}
	if err == nil {
		page, err = makeListed(objectType, objects)
	}
	return page, at.after != "" || len(at.pending) > 0, err
}

// owners returns the objects of the type inside the objects of a page, and the owners whose lists
// are incomplete.
func (p part) owners(objectType string, all []*canonical.Value) (objects []*canonical.Value, more []pendingOwner,
	err error) {
	for i, owner := range all {
		id := text(owner, "id")
		if !isPathSegment(id) {
			return nil, nil, fmt.Errorf("member %d is not an object, or has no id", i)
		}
		list := owner.Get(p.within)
		if p.within == "" || list.Get("data").Kind() != canonical.Array { // the owner does not contain its objects
			more = append(more, pendingOwner{owner: id})
			continue
		}
		some := list.Get("data").Elements()
		objects = append(objects, ofType(objectType, some)...)
		if cut, _ := list.Get("has_more").Bool(); cut {
			more = append(more, pendingOwner{id, lastID(objectType, some)})
		}
	}
	return objects, more, nil
}

// ofType keeps the objects of one type; a customer's sources have several types.
func ofType(objectType string, all []*canonical.Value) (some []*canonical.Value) {
	for _, object := range all {
		if object.Get("object").Is(objectType) {
			some = append(some, object)
		}
	}
	return some
}

// lastID returns the id of the last object, or "".
func lastID(objectType string, all []*canonical.Value) string {
	if len(all) == 0 {
		return ""
	}
	last := all[len(all)-1]
	return cmp.Or(text(last, "id"), types[objectType].key(last))
}

// makeListed returns objects with their bodies, if these are complete.
func makeListed(objectType string, objects []*canonical.Value) (page []provider.ListedObject, err error) {
	r := types[objectType]
	for i, object := range objects {
		one := provider.ListedObject{ObjectID: r.key(object)}
		if one.ObjectID == "" {
			return nil, fmt.Errorf("member %d is not an object, or has no id", i)
		}
		if included[objectType] == nil {
			one.Body = object.Raw()
		}
		page = append(page, one)
	}
	return page, nil
}

// following returns the id that the next page of the list follows, or "" after the last.
func (p part) following(root *canonical.Value, objectType string) (string, error) {
	if p.usesV2API() {
		next := text(root, "next_page_url")
		at, err := url.Parse(next)
		if err != nil || next != "" && at.RawQuery == "" {
			return "", errors.New("next_page_url is not valid")
		}
		return at.RawQuery, nil // only the query of the address is used
	}
	more, _ := root.Get("has_more").Bool()
	last := lastID(objectType, root.Get("data").Elements())
	switch {
	case !root.Get("object").Is("list"):
		return "", errors.New("the response is not a list")
	case more && last == "":
		return "", errors.New("the page is empty but has a next page")
	case more:
		return last, nil
	}
	return "", nil
}
