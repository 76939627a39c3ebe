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

// next is the first part from a place on that the account has, len(l) where there is none.
func (l listing) next(api *provider.API, account string, from int) int {
	for i, p := range l {
		if i >= from && p.shows(api, account) {
			return i
		}
	}
	return len(l)
}

// sparse: pages without objects may be followed by others.
func (l listing) sparse() bool {
	return slices.ContainsFunc(l, func(p part) bool { return p.below() || p.mixed })
}

// several: they come from more than one list of those that the account has.
func (l listing) several(api *provider.API, account string) bool {
	first := l.next(api, account, 0)
	return first < len(l) && (l[first].each != "" || l.next(api, account, first+1) < len(l))
}

// rare: the objects lie in others, of which there may be many and few have any.
func (l listing) rare() bool {
	return slices.ContainsFunc(l, func(p part) bool { return p.within != "" })
}

// place is a place in a listing: in the list of one of its parts, and, where owners owe theirs, in the list of the first of them.
type place struct {
	part int
	// after is what the next page of the part's own list follows: "" for its first page, or, where lists are owed, after its last.
	after string
	owed  []owed
}

// owed is the rest of what an owner has, after one of them; "" for all.
type owed struct{ owner, after string }

// begin is the place of a part's beginning, "" where the listing has ended.
func (l listing) begin(number int) string {
	if number >= len(l) {
		return ""
	}
	return fmt.Sprintf("%d:", number)
}

// place reads a cursor: the part, what its page follows, and where there are owners those that owe, each with what their page follows, escaped, since old customers
// have ids that somebody chose.
func (l listing) place(api *provider.API, account, cursor string) place {
	number, after, _ := strings.Cut(cursor, ":")
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 || n >= len(l) || !l[n].shows(api, account) {
		return place{part: l.next(api, account, 0)}
	}
	if !l[n].below() {
		return place{part: n, after: after}
	}
	words := strings.Split(after, " ")
	at := place{part: n, after: unescaped(words[0])}
	for _, word := range words[1:] {
		owner, after, _ := strings.Cut(word, "/")
		at.owed = append(at.owed, owed{unescaped(owner), unescaped(after)})
	}
	return at
}

// unescaped is an id of a cursor.
func unescaped(word string) string {
	id, err := url.QueryUnescape(word)
	if err != nil {
		return word
	}
	return id
}

func (l listing) cursor(at place) string {
	if !l.read(at).below() {
		return fmt.Sprintf("%d:%s", at.part, at.after)
	}
	out := fmt.Sprintf("%d:%s", at.part, url.QueryEscape(at.after))
	for _, o := range at.owed {
		out += " " + url.QueryEscape(o.owner) + "/" + url.QueryEscape(o.after)
	}
	return out
}

// read is the part that is read at a place; one of nothing where the listing has none.
func (l listing) read(at place) part {
	if at.part >= len(l) {
		return part{}
	}
	return l[at.part]
}

// second tells whether the list is of Stripe's second API, which names its pages otherwise.
func (p part) second() bool { return strings.HasPrefix(p.path, "/v2/") }

// address is the path and the query of a place.
func (p part) address(account string, at place) (path string, query url.Values) {
	path, after := p.path, at.after
	if len(at.owed) > 0 {
		path, after = strings.ReplaceAll(p.each, "{owner}", url.PathEscape(at.owed[0].owner)), at.owed[0].after
	}
	path, text, _ := strings.Cut(strings.ReplaceAll(path, "{account}", url.PathEscape(account)), "?")
	if p.whole || p.alone {
		return path, nil
	}
	if p.second() && after != "" {
		query, err := url.ParseQuery(after) // its pages are named by a query of Stripe's own
		if err == nil {
			return path, query
		}
	}
	query, _ = url.ParseQuery(text) // the table's, which a test reads
	query.Set("limit", strconv.Itoa(pageSize))
	if !p.second() && after != "" {
		query.Set("starting_after", after)
	}
	return path, query
}

// ListObjects asks for a page of all; the times are no matter, for no list can be asked for what changed.
func (Stripe) ListObjects(_ *provider.Source, api *provider.API, account, objectType string, _, _ time.Time, cursor string) provider.Call {
	l := lists[objectType]
	at := l.place(api, account, cursor)
	account, _ = realAccount(account)
	path, query := l.read(at).address(account, at)
	return forAccount(api, provider.Call{Account: account, Path: path, Query: query})
}

// ObjectPage splits a page. Its members are whole, as GET answers them; lists within them may be cut short in both alike. Of what only GET can be asked for whole it tells the ids alone.
func (Stripe) ObjectPage(_ *provider.Source, api *provider.API, account, objectType, cursor string, _ http.Header, body []byte) ([]provider.Listed, string, error) {
	root, err := canonical.Parse(body)
	if err != nil {
		return nil, "", fmt.Errorf("read page of %s: %w", objectType, err)
	}
	defer root.Release()
	l := lists[objectType]
	at := l.place(api, account, cursor)
	page, more, err := l.read(at).page(objectType, &at, root)
	switch {
	case err != nil:
		return nil, "", fmt.Errorf("read page of %s: %w", objectType, err)
	case more:
		return page, l.cursor(at), nil
	}
	return page, l.begin(l.next(api, account, at.part+1)), nil
}

// page reads a page of the part and moves the place behind it; more says that the part goes on there.
func (p part) page(objectType string, at *place, root *canonical.Value) (page []provider.Listed, more bool, err error) {
	if p.alone {
		page, err = told(objectType, []*canonical.Value{root})
		return page, false, err
	}
	data := root.Get("data")
	if data.Kind() != canonical.Array {
		return nil, false, errors.New("the answer is no list")
	}
	objects := data.Elements()
	after, err := p.following(root, objectType)
	if err != nil {
		return nil, false, err
	}
	switch {
	case len(at.owed) > 0:
		if at.owed[0].after = after; after == "" {
			at.owed = at.owed[1:]
		}
		objects = ofType(objectType, objects)
	case p.below():
		at.after = after
		objects, at.owed, err = p.owners(objectType, objects)
	case p.mixed:
		at.after, objects = after, ofType(objectType, objects)
	default:
		at.after = after
	}
	if err == nil {
		page, err = told(objectType, objects)
	}
	return page, at.after != "" || len(at.owed) > 0, err
}

// owners are the objects of the type that lie in those of a page, and the owners of which more are to be listed.
func (p part) owners(objectType string, all []*canonical.Value) (objects []*canonical.Value, more []owed, err error) {
	for i, owner := range all {
		id := text(owner, "id")
		if !escapable(id) {
			return nil, nil, fmt.Errorf("member %d is no object, or one without id", i)
		}
		list := owner.Get(p.within)
		if p.within == "" || list.Get("data").Kind() != canonical.Array { // it is not told what the owner has
			more = append(more, owed{owner: id})
			continue
		}
		some := list.Get("data").Elements()
		objects = append(objects, ofType(objectType, some)...)
		if cut, _ := list.Get("has_more").Bool(); cut {
			more = append(more, owed{id, lastID(objectType, some)})
		}
	}
	return objects, more, nil
}

// ofType are those of a type: a customer's sources are of several.
func ofType(objectType string, all []*canonical.Value) (some []*canonical.Value) {
	for _, object := range all {
		if object.Get("object").Is(objectType) {
			some = append(some, object)
		}
	}
	return some
}

// lastID names the last of some objects, "" where there is none.
func lastID(objectType string, all []*canonical.Value) string {
	if len(all) == 0 {
		return ""
	}
	last := all[len(all)-1]
	return cmp.Or(text(last, "id"), types[objectType].key(last))
}

// told are objects with their bodies where they are whole.
func told(objectType string, objects []*canonical.Value) (page []provider.Listed, err error) {
	r := types[objectType]
	for i, object := range objects {
		one := provider.Listed{ObjectID: r.key(object)}
		if one.ObjectID == "" {
			return nil, fmt.Errorf("member %d is no object, or one without id", i)
		}
		if included[objectType] == nil {
			one.Body = object.Raw()
		}
		page = append(page, one)
	}
	return page, nil
}

// following is what the next page of the list follows, "" after the last.
func (p part) following(root *canonical.Value, objectType string) (string, error) {
	if p.second() {
		next := text(root, "next_page_url")
		at, err := url.Parse(next)
		if err != nil || next != "" && at.RawQuery == "" {
			return "", errors.New("next_page_url is none")
		}
		return at.RawQuery, nil // of the address nothing else is followed
	}
	more, _ := root.Get("has_more").Bool()
	last := lastID(objectType, root.Get("data").Elements())
	switch {
	case !root.Get("object").Is("list"):
		return "", errors.New("the answer is no list")
	case more && last == "":
		return "", errors.New("an empty page that goes on")
	case more:
		return last, nil
	}
	return "", nil
}
