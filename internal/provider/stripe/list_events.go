package stripe

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"time"

	"github.com/postern-gateway/postern/internal/canonical"
	"github.com/postern-gateway/postern/internal/provider"
)

var (
	_ provider.EventFetcher      = Stripe{}
	_ provider.IDOnlyEventLister = Stripe{}
	_ provider.UndeliveredLister = Stripe{}
)

// ListEvents lists the account's snapshot events, newest first. Stripe keeps them for 30 days.
func (Stripe) ListEvents(api *provider.API, account string, since, until time.Time, cursor string) provider.Call {
	account, _ = realAccount(account)
	query := url.Values{"limit": {strconv.Itoa(pageSize)}, "created[gte]": {strconv.FormatInt(since.Unix(), 10)},
		"created[lte]": {strconv.FormatInt(until.Unix(), 10)}}
	if cursor != "" {
		query.Set("starting_after", cursor)
	}
	return forAccount(api, provider.Call{Account: account, Path: "/v1/events", Query: query})
}

// ListUndelivered lists the events that some webhook endpoint of the account has not accepted yet.
// It may be another endpoint than ours.
func (Stripe) ListUndelivered(api *provider.API, account string, since, until time.Time, cursor string) provider.Call {
	c := Stripe{}.ListEvents(api, account, since, until, cursor)
	c.Query.Set("delivery_success", "false")
	return c
}

// ListIDOnlyEvents lists the account's id-only events, newest first, which Stripe keeps as long.
// The cursor is the query of a page as Stripe gives it, with all parameters.
func (Stripe) ListIDOnlyEvents(api *provider.API, account string, since, until time.Time, cursor string) provider.Call {
	account, _ = realAccount(account)
	query, err := url.ParseQuery(cursor)
	if err != nil || cursor == "" {
		const form = "2006-01-02T15:04:05.000Z"
		query = url.Values{"limit": {strconv.Itoa(pageSize)}, "created[gte]": {since.UTC().Format(form)},
			"created[lte]": {until.UTC().Format(form)}}
	}
	return forAccount(api, provider.Call{Account: account, Path: idOnlyEventsPath, Query: query})
}

// FetchEvent reads an event of either API by its id, which is its key. It reads id-only events only
// if the source lists them.
func (Stripe) FetchEvent(api *provider.API, account string, e *provider.StoredEvent) (provider.Call, bool) {
	event, err := canonical.Parse(e.Body)
	if err != nil {
		return provider.Call{}, false
	}
	defer event.Release()
	account, _ = realAccount(account)
	c := provider.Call{Account: account, Path: "/v1/events/" + url.PathEscape(e.Key)}
	if event.Get("object").Is("v2.core.event") {
		if c.Path = idOnlyEventsPath + "/" + url.PathEscape(e.Key); !api.IDOnlyEvents {
			return provider.Call{}, false
		}
	}
	return forAccount(api, c), true
}

// eventPage is a page of events of either API. A page of the first API is a list; a page of the
// second API contains the address of the next page.
type eventPage struct {
	Object string            `json:"object"`
	Data   []json.RawMessage `json:"data"`
	More   bool              `json:"has_more"`
	Next   *string           `json:"next_page_url"`
}

// EventPage splits a page. An event listed for a connected account does not contain the account,
// but its webhook does.
func (Stripe) EventPage(account string, body []byte) (bodies [][]byte, next string, err error) {
	var page eventPage
	if err := json.Unmarshal(body, &page); err != nil {
		return nil, "", fmt.Errorf("read page of events: %w", err)
	}
	account, _ = realAccount(account)
	for i, raw := range page.Data {
		event, id, err := asDelivered(raw, account)
		if err != nil {
			return nil, "", fmt.Errorf("read page of events: member %d: %w", i, err)
		}
		bodies = append(bodies, event)
		next = id
	}
	if next, err = page.after(next); err != nil {
		return nil, "", fmt.Errorf("read page of events: %w", err)
	}
	return bodies, next, nil
}

// after returns the cursor of the next page; last is the id of this page's last event.
func (p *eventPage) after(last string) (string, error) {
	switch {
	case p.Object == "" && p.Data != nil: // of the second API
		if p.Next == nil || *p.Next == "" {
			return "", nil
		}
		at, err := url.Parse(*p.Next)
		if err != nil || at.RawQuery == "" {
			return "", errors.New("next_page_url is not valid")
		}
		return at.RawQuery, nil // only the query of the address is used
	case p.Object != "list" || p.More && last == "":
		return "", errors.New("the response is not a list, or an empty one with a next page")
	case p.More:
		return last, nil
	}
	return "", nil
}

// asDelivered adds the account if the event does not contain it. Of two members of one name the
// last counts, as everywhere.
func asDelivered(raw []byte, account string) (event []byte, id string, err error) {
	root, err := canonical.Parse(raw)
	if err != nil {
		return nil, "", err
	}
	defer root.Release()
	id = text(root, "id")
	if root.Kind() != canonical.Object || id == "" {
		return nil, "", errors.New("not an event, or one without an id")
	}
	event = slices.Clone(raw)
	member := "account"
	if root.Get("object").Is("v2.core.event") {
		member = "context"
	}
	if account == "" || text(root, member) != "" {
		return event, id, nil
	}
	named, err := json.Marshal(account)
	if err != nil {
		return nil, "", err
	}
	return fmt.Appendf(event[:len(event)-1], `,%q:%s}`, member, named), id, nil
}
