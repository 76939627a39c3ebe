package rest

import (
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strconv"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
)

// List is how the objects of a type are listed.
type List struct {
	// Request asks for a page: {account}; in its query also {limit}, {cursor} (the place of the page; nothing for the first) and {since} and {until} (what
	// changed in a time; nothing for all). A list with {since} can be asked for what changed.
	Request Request
	// Items is where the list of objects stands in an answer; empty: it is the answer. Item is where the object stands in an element; empty: it is the element.
	Items, Item string
	// Partial: an element is not the object as Get answers it, but tells its id and version.
	Partial bool
	// Time is how {since} and {until} are written: RFC3339, Seconds or Milliseconds.
	Time declared.Unit
	// Limit is how many objects a page holds at most; 0 where it does not matter.
	Limit int
	// Lag is how old a list may be.
	Lag time.Duration
	// Sparse: many pages in a row may be empty and others follow.
	Sparse bool
	// Next is how the following page is found.
	Next Next
}

// Next is how the page after a page is found: by exactly one of Field, Address, Link, Last and Window. The zero Next says that a list is one page.
type Next struct {
	// Field is where the {cursor} of the next page stands in an answer, Address where its address does. Neither is there after the last page.
	Field, Address string
	// Link: the address stands in the header Link, with rel="next".
	Link bool
	// Last is where in an object that stands which, of the page's last, is the {cursor} of the next.
	Last string
	// Window: pages are in the order of the version, and the next is of what changed {since} the last of this one.
	Window bool
	// More is where an answer says whether there is another page; empty: it does not.
	More string
}

// Lists are the types that have a list, which names the account where that is not the source's own.
func (r *Reader) Lists(src *provider.Source, _ *provider.API, account string) map[string]provider.List {
	out := map[string]provider.List{}
	for name, t := range r.spec.Types {
		if t.List == nil || !reaches(src, t.List.Request, account) {
			continue
		}
		if _, ok := t.List.Request.call(values{"account": account}, account); ok {
			out[name] = provider.List{ByChange: t.List.Request.Names("since"), Lag: t.List.Lag, Sparse: t.List.Sparse,
				Counted: t.counted() && !t.Version.Still, Blind: t.List.Partial && t.Version != nil && t.Version.Still}
		}
	}
	return out
}

// ListObjects asks for a page. An address that a page gave for its next is kept as its path and query.
func (r *Reader) ListObjects(_ *provider.Source, _ *provider.API, account, objectType string, since, until time.Time, cursor string) provider.Call {
	list := r.spec.Types[objectType].List
	if list == nil {
		return provider.Call{}
	}
	page, _ := provider.CountedPage(cursor)
	return list.ask(account, since, until, page)
}

// ask is the call for a page.
func (l *List) ask(account string, since, until time.Time, cursor string) provider.Call {
	if cursor != "" && (l.Next.Address != "" || l.Next.Link) {
		path, query, _ := strings.Cut(cursor, "?")
		fields, _ := url.ParseQuery(query) // it was read when the page was
		return provider.Call{Account: account, Path: path, Query: fields}
	}
	v := values{"account": account, "limit": strconv.Itoa(l.Limit), "cursor": cursor}
	if !since.IsZero() {
		v["since"] = l.time(since.Truncate(time.Second).Add(-time.Second)) // the API may leave its ends out
	}
	if !until.IsZero() {
		v["until"] = l.time(until.Truncate(time.Second).Add(2 * time.Second))
	}
	if at, err := strconv.ParseInt(cursor, 10, 64); l.Next.Window && err == nil {
		v["since"] = l.time(time.UnixMicro(at - resolution(at)))
	}
	call, _ := l.Request.call(v, account)
	return call
}

// resolution is that of the clock that a version was read from, as far as the version tells, in microseconds.
func resolution(at int64) int64 {
	if at%second == 0 {
		return second
	}
	return int64(time.Millisecond / time.Microsecond)
}

// time writes a time as the API reads it, cut to what it can tell apart.
func (l *List) time(t time.Time) string {
	switch {
	case l.Time == declared.Seconds:
		return strconv.FormatInt(t.Unix(), 10)
	case l.Time == declared.Milliseconds:
		return strconv.FormatInt(t.UnixMilli(), 10)
	case t.Nanosecond() == 0:
		return t.UTC().Format(time.RFC3339)
	}
	return t.UTC().Format("2006-01-02T15:04:05.000Z07:00")
}

// ObjectPage splits a page.
func (r *Reader) ObjectPage(src *provider.Source, api *provider.API, account, objectType, cursor string, header http.Header, body []byte) (page []provider.Listed, next string, err error) {
	t := r.spec.Types[objectType]
	switch {
	case t.List == nil:
		return nil, "", fmt.Errorf("the source's section api.objects.%s has no list", objectType)
	case !reaches(src, t.List.Request, account):
		return nil, "", fmt.Errorf("the list of %s does not name the account that is asked for, so it is that of the key: put {account} into api.objects.%s.list", objectType, objectType)
	}
	at, _ := provider.CountedPage(cursor)
	path := t.List.Request.Path.with(values{"account": account}, url.PathEscape)
	if page, next, err = t.page(api, &answer{path: path, cursor: at, header: header}, body); err != nil {
		return nil, "", fmt.Errorf("read page of %s: %w", objectType, err)
	}
	if t.List.Next.Last != "" || t.List.Next.Window { // places that no delete moves
		return page, next, nil
	}
	ids := make([]string, len(page))
	for i := range page {
		ids[i] = page[i].ObjectID
	}
	if next, err = provider.NextCounted(cursor, next, ids, isCount); err != nil {
		return nil, "", fmt.Errorf("read list of %s: %w", objectType, err)
	}
	return page, next, nil
}

func (t Type) page(api *provider.API, a *answer, body []byte) (page []provider.Listed, next string, err error) {
	if err := a.read(t.List, body); err != nil {
		return nil, "", err
	}
	defer a.root.Release()
	for i, object := range a.objects {
		one := provider.Listed{}
		var ok bool
		if one.ObjectID, ok = declared.Scalar(declared.Lookup(object, t.ID)); !ok || object.Kind() != canonical.Object {
			return nil, "", fmt.Errorf("element %d is no object with an id%s", i, place(t.ID))
		}
		if t.List.Partial {
			var o provider.Observation
			o.At, o.Unit, o.HasAt = t.at(object)
			o.CutToSecond()
			one.At, one.HasAt = o.At, o.HasAt
		} else {
			one.Body = t.wrap(object.Raw())
		}
		page = append(page, one)
	}
	next, err = t.next(api, a)
	return page, next, err
}

// next is the cursor of the following page, "" after the last.
func (t Type) next(api *provider.API, a *answer) (string, error) {
	next, err := t.following(api, a)
	if err == nil && api.Shows(next) {
		return "", errors.New("what names the next page carries the key, which is kept nowhere")
	}
	return next, err
}
