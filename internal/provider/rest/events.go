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

// Events is how an API lists its events, all accounts' together.
type Events struct {
	// List leads to each event in the shape that webhooks deliver. Its request names {since} and {until}.
	List List
	// Time is where in an event it stands when it was; no counter.
	Time Version
	// Kept is how long the API lists an event.
	Kept time.Duration
	// Provider names events as it names those of webhooks.
	Provider provider.Provider
}

// Lister is a Reader whose Spec has Events.
type Lister struct{ *Reader }

var (
	_ provider.ObjectLister = (*Lister)(nil)
	_ provider.Sited        = (*Lister)(nil)
	_ provider.TimedLister  = (*Lister)(nil)
)

// EventsKept is the Spec's.
func (l *Lister) EventsKept() time.Duration { return l.spec.Events.Kept }

// ListTimed asks for a page, and some around its time, since an API may leave the ends out.
func (l *Lister) ListTimed(_ *provider.API, since, until time.Time, cursor string) provider.Call {
	return l.spec.Events.List.ask("", since, until, cursor)
}

// ListedAt reads the event's time where the list has it.
func (l *Lister) ListedAt(e *provider.Stored) (time.Time, bool) {
	root, err := canonical.Parse(e.Body)
	if err != nil { // it was redacted
		return time.Time{}, false
	}
	defer root.Release()
	at, _, ok := Type{Version: &l.spec.Events.Time}.at(root)
	return time.UnixMicro(at).UTC(), ok
}

// TimedPage splits a page. Each of its events must be named by what it says, as it is where a webhook brings it: one under a content key would be another than the webhook's.
func (l *Lister) TimedPage(src *provider.Source, api *provider.API, since, until time.Time, cursor string, header http.Header, body []byte) (page []provider.TimedEvent, next string, err error) {
	e := l.spec.Events
	if page, next, err = e.page(src, api, since, until, &answer{path: e.List.Request.Path.with(nil, url.PathEscape), cursor: cursor, header: header}, body); err != nil {
		return nil, "", fmt.Errorf("read page of events: %w", err)
	}
	return page, next, nil
}

func (e *Events) page(src *provider.Source, api *provider.API, since, until time.Time, a *answer, body []byte) (page []provider.TimedEvent, next string, err error) {
	if err := a.read(&e.List, body); err != nil {
		return nil, "", err
	}
	defer a.root.Release()
	timed := Type{Version: &e.Time, List: &e.List}
	for i, event := range a.objects {
		at, _, ok := timed.at(event)
		switch {
		case event.Kind() != canonical.Object:
			return nil, "", fmt.Errorf("element %d is no event%s", i, place(e.List.Item))
		case !ok:
			return nil, "", fmt.Errorf("event %d has no time%s", i, place(e.Time.Path))
		case at < since.UnixMicro() || at > until.UnixMicro():
			continue
		}
		one := provider.TimedEvent{Body: bytes.Clone(event.Raw())}
		if one.Key, err = e.key(src, one.Body); err != nil {
			return nil, "", fmt.Errorf("event %d: %w", i, err)
		}
		page = append(page, one)
	}
	next, err = timed.next(api, a)
	return page, next, err
}

// key is an event's own, "" where the source does not take its account.
func (e *Events) key(src *provider.Source, body []byte) (string, error) {
	named, err := e.Provider.Identify(src, &provider.Delivery{Header: http.Header{}, Body: body})
	switch {
	case err != nil:
		return "", nil //nolint:nilerr // the caller refuses it likewise, and counts it
	case len(named) != 1 || named[0].ContentKey:
		return "", errors.New("nothing in it names it, so that it cannot be told from what a webhook brought: the source's events.key must find its name in the list of the API too")
	}
	return named[0].Key, nil
}
