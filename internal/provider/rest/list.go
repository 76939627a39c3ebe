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

// Lists returns the types with a list. For another account than the source's own, the list must
// contain {account}.
func (r *Reader) Lists(src *provider.Source, _ *provider.API, account string) map[string]provider.List {
	out := map[string]provider.List{}
	for name, t := range r.spec.Objects {
		if t.List == nil || !coversAccount(src, t.List.Path, account) {
			continue
		}
		if _, ok := t.List.Path.call(values{"account": account}, account); ok {
			out[name] = provider.List{ByChange: t.List.Path.Names("since"), Lag: t.List.Lag, Sparse: t.List.Sparse,
				CountsChanges: t.hasIntegerVersion() && !t.Version.MayNotAdvance,
				VersionsOnly:  t.List.Partial && t.Version != nil && t.Version.MayNotAdvance}
		}
	}
	return out
}

// ListObjects returns the call for a page. If a page gave the address of the next page, its path
// and query are used unchanged.
func (r *Reader) ListObjects(_ *provider.Source, _ *provider.API, account, objectType string, since, until time.Time,
	cursor string) provider.Call {
	t := r.spec.Objects[objectType]
	if t == nil || t.List == nil {
		return provider.Call{}
	}
	page, _ := provider.CountedPage(cursor)
	return t.List.pageCall(account, since, until, page)
}

// pageCall returns the call for a page.
func (l *Page) pageCall(account string, since, until time.Time, cursor string) provider.Call {
	if cursor != "" && (l.Next.Address != "" || l.Next.Link) {
		path, query, _ := strings.Cut(cursor, "?")
		fields, _ := url.ParseQuery(query) // the query was parsed with the page
		return provider.Call{Account: account, Path: path, Query: fields}
	}
	v := values{"account": account, "limit": strconv.Itoa(l.Limit), "cursor": cursor}
	if !since.IsZero() {
		v["since"] = l.formatTime(since.Truncate(time.Second).Add(-time.Second)) // the API may exclude the ends
	}
	if !until.IsZero() {
		v["until"] = l.formatTime(until.Truncate(time.Second).Add(2 * time.Second))
	}
	if at, err := strconv.ParseInt(cursor, 10, 64); l.Next.ByTime && err == nil {
		v["since"] = l.formatTime(time.UnixMicro(at - resolution(at)))
	}
	call, _ := l.Path.call(v, account)
	return call
}

// resolution returns the resolution of the clock that a version was read from, in microseconds, as
// far as the version shows it.
func resolution(at int64) int64 {
	if at%second == 0 {
		return second
	}
	return int64(time.Millisecond / time.Microsecond)
}

// formatTime writes a time in the format of the API, cut to its resolution.
func (l *Page) formatTime(t time.Time) string {
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
func (r *Reader) ObjectPage(src *provider.Source, api *provider.API, account, objectType, cursor string,
	header http.Header, body []byte) (page []provider.ListedObject, next string, err error) {
	t := r.spec.Objects[objectType]
	switch {
	case t == nil || t.List == nil:
		return nil, "", fmt.Errorf("the source's section api.objects.%s has no list", objectType)
	case !coversAccount(src, t.List.Path, account):
		return nil, "", fmt.Errorf("the call for the list of %s does not name the requested account, so it would list "+
			"the objects of the key's own account: put {account} into api.objects.%s.list", objectType, objectType)
	}
	at, _ := provider.CountedPage(cursor)
	path := t.List.Path.Path.expandEscaped(values{"account": account}, url.PathEscape)
	if page, next, err = t.page(api, &response{path: path, cursor: at, header: header}, body); err != nil {
		return nil, "", fmt.Errorf("read page of %s: %w", objectType, err)
	}
	if t.List.Next.LastObjectField != "" || t.List.Next.ByTime { // deletes do not move these cursors
		return page, next, nil
	}
	ids := make([]string, len(page))
	for i := range page {
		ids[i] = page[i].ObjectID
	}
	if next, err = provider.NextCounted(cursor, next, ids, isPageCount); err != nil {
		return nil, "", fmt.Errorf("read list of %s: %w", objectType, err)
	}
	return page, next, nil
}

func (t Type) page(api *provider.API, a *response, body []byte) (page []provider.ListedObject, next string, err error) {
	if err := a.parse(t.List, body); err != nil {
		return nil, "", err
	}
	defer a.root.Release()
	for i, object := range a.objects {
		one := provider.ListedObject{}
		var ok bool
		if one.ObjectID, ok = declared.Scalar(declared.Lookup(object, t.ID)); !ok || object.Kind() != canonical.Object {
			return nil, "", fmt.Errorf("element %d is not an object with an id%s", i, describePath(t.ID))
		}
		if t.List.Partial {
			var o provider.Observation
			o.At, o.Unit, o.HasAt = t.version(object)
			o.CutToSecond()
			one.At, one.HasAt = o.At, o.HasAt
		} else {
			one.Body = t.wrap(object.Raw())
		}
		page = append(page, one)
	}
	next, err = t.nextCursor(api, a)
	return page, next, err
}

// nextCursor returns the cursor of the next page, or "" after the last.
func (t Type) nextCursor(api *provider.API, a *response) (string, error) {
	next, err := t.findNext(api, a)
	if err == nil && api.ContainsKey(next) {
		return "", errors.New("the cursor of the next page contains the key, which is never stored")
	}
	return next, err
}
