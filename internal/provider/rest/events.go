package rest

import (
	"bytes"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

// Lister is a Reader whose Spec has Events.
type Lister struct {
	*Reader
	provider provider.Provider
}

var (
	_ provider.ObjectLister  = (*Lister)(nil)
	_ provider.BaseURLReader = (*Lister)(nil)
	_ provider.TimedLister   = (*Lister)(nil)
)

// EventRetention returns the Spec's value.
func (l *Lister) EventRetention() time.Duration { return l.spec.Events.Retention }

// ListTimed returns the call for a page. It requests a slightly longer time range, because an API
// may exclude the ends.
func (l *Lister) ListTimed(_ *provider.API, since, until time.Time, cursor string) provider.Call {
	return l.spec.Events.pageCall("", since, until, cursor)
}

// ListedAt reads the event's time as the list contains it.
func (l *Lister) ListedAt(e *provider.StoredEvent) (time.Time, bool) {
	root, err := canonical.Parse(e.Body)
	if err != nil { // the event was redacted
		return time.Time{}, false
	}
	defer root.Release()
	at, _, ok := l.spec.Events.timed().version(root)
	return time.UnixMicro(at).UTC(), ok
}

// TimedPage splits a page. Each event must contain its own key, as in a webhook: with a content key
// it would look like another event than the webhook's.
func (l *Lister) TimedPage(src *provider.Source, api *provider.API, since, until time.Time, cursor string,
	header http.Header, body []byte) (page []provider.TimedEvent, next string, err error) {
	at := &response{path: l.spec.Events.Path.Path.expandEscaped(nil, url.PathEscape), cursor: cursor, header: header}
	if page, next, err = l.page(src, api, since, until, at, body); err != nil {
		return nil, "", fmt.Errorf("read page of events: %w", err)
	}
	return page, next, nil
}

// timed returns the list of events as the list of a type.
func (e *Events) timed() Type {
	return Type{Version: &Version{Path: e.At.Path, Unit: e.At.Unit}, List: &List{Page: e.Page}}
}

func (l *Lister) page(src *provider.Source, api *provider.API, since, until time.Time, a *response,
	body []byte) (page []provider.TimedEvent, next string, err error) {
	timed := l.spec.Events.timed()
	if err := a.parse(timed.List, body); err != nil {
		return nil, "", err
	}
	defer a.root.Release()
	for i, event := range a.objects {
		at, _, ok := timed.version(event)
		switch {
		case event.Kind() != canonical.Object:
			return nil, "", fmt.Errorf("element %d is no event%s", i, describePath(timed.List.Item))
		case !ok:
			return nil, "", fmt.Errorf("event %d has no time%s", i, describePath(timed.Version.Path))
		case at < since.UnixMicro() || at > until.UnixMicro():
			continue
		}
		one := provider.TimedEvent{Body: bytes.Clone(event.Raw())}
		if one.Key, err = l.eventKey(src, one.Body); err != nil {
			return nil, "", fmt.Errorf("event %d: %w", i, err)
		}
		page = append(page, one)
	}
	next, err = timed.nextCursor(api, a)
	return page, next, err
}

// eventKey returns the key of an event, or "" if the source does not accept its account.
func (l *Lister) eventKey(src *provider.Source, body []byte) (string, error) {
	named, err := l.provider.Identify(src, &provider.Delivery{Header: http.Header{}, Body: body})
	switch {
	case err != nil:
		return "", nil //nolint:nilerr // the caller of TimedPage rejects the event too, and counts it
	case len(named) != 1 || named[0].ContentKey:
		return "", errors.New("it contains no key, so it cannot be compared with the events of webhooks: the " +
			"source's events.key must find the key in the API's list too")
	}
	return named[0].Key, nil
}
