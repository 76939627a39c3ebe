package stripefake

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// second answers requests to the second API: thin events, and the accounts that they are about. Its pages are named by opaque tokens,
// which hold all parameters of the first page.
func (c *call) second(path []string, unknown *failure) ([]byte, *failure) {
	if len(path) == 0 || len(path) > 2 {
		return nil, unknown
	}
	if fail := c.may("v2." + path[0]); fail != nil {
		return nil, fail
	}
	switch k := kindListed(path[0], true); {
	case path[0] == "events" && len(path) == 1:
		return c.listThin()
	case path[0] == "events":
		return c.getEvent(path[1], true)
	case k != nil && len(path) == 1:
		return c.listSecond(k)
	case k != nil && len(path) == 2:
		return c.get(k, path[1])
	}
	return nil, unknown
}

// listThin answers a page of thin events, newest first.
func (c *call) listThin() ([]byte, *failure) {
	if fail := c.only("page", "limit", "object_id", "types[", "created["); fail != nil {
		return nil, fail
	}
	limit, fail := c.limit()
	if fail != nil {
		return nil, fail
	}
	b, fail := c.thinBounds()
	if fail != nil {
		return nil, fail
	}
	end, fail := c.token(len(c.account.events))
	if fail != nil {
		return nil, fail
	}
	items, last, more := pick(0, end, limit, false, func(i int) []byte {
		e := c.account.events[i]
		if !e.object.kind.thin || !e.shown(c.now) || e.at < b.from || e.at > b.to || !c.thinWanted(e) {
			return nil
		}
		return e.answer()
	})
	return c.thinPage("events", items, last, more), nil
}

// asked answers null for what the second API answers only where it is asked for.
func (c *call) asked(k *kind, body []byte) []byte {
	if !k.thin || body == nil {
		return body
	}
	named := map[string]bool{}
	for name := range c.query {
		if strings.HasPrefix(name, "include[") {
			named[c.query.Get(name)] = true
		}
	}
	o := parse(body)
	for _, field := range []string{"defaults", "identity", "requirements"} {
		if !named[field] {
			o[field] = nil
		}
	}
	configuration := o["configuration"].(tree)
	o["configuration"] = nil
	for field := range configuration {
		if named["configuration."+field] {
			o["configuration"] = configuration
		} else {
			configuration[field] = nil
		}
	}
	return text(o)
}

// token is where the page begins that a token names, of a list of a size.
func (c *call) token(size int) (int, *failure) {
	token := c.query.Get("page")
	if token == "" {
		return size, nil
	}
	n, err := strconv.ParseInt(strings.TrimPrefix(token, "page_"), 36, 40)
	if err != nil || c.expired || int(n) > size {
		return 0, badParameter("page", "Invalid page token")
	}
	return int(n), nil
}

// listSecond answers a page of objects of the second API as they were at the call's time, newest first.
func (c *call) listSecond(k *kind) ([]byte, *failure) {
	if fail := c.only(append([]string{"page", "limit"}, k.filters...)...); fail != nil {
		return nil, fail
	}
	c.lag(c.fake.options.Faults.ListLag)
	limit, fail := c.limit()
	if fail != nil {
		return nil, fail
	}
	asked, fail := c.filter(k)
	if fail != nil {
		return nil, fail
	}
	all := c.account.kinds[k.plural]
	end, fail := c.token(len(all))
	if fail != nil {
		return nil, fail
	}
	items, last, more := pick(0, end, limit, false, func(i int) []byte { return c.rendered(c.asked(k, c.listed(all[i], asked))) })
	return c.thinPage(k.plural, items, last, more), nil
}

func (c *call) thinPage(plural string, items [][]byte, last int, more bool) []byte {
	next := "null"
	if more {
		query := url.Values{}
		for name, values := range c.query {
			query[name] = values
		}
		query.Set("page", "page_"+strconv.FormatInt(int64(last), 36))
		next = strconv.Quote("/v2/core/" + plural + "?" + query.Encode())
	}
	out := joined([]byte(`{"data":[`), items)
	return fmt.Appendf(out, `],"next_page_url":%s,"previous_page_url":null}`, next)
}

// thinBounds reads created[gte] and the like, which are times as RFC 3339 here. The bounds are microseconds.
func (c *call) thinBounds() (bounds, *failure) {
	b := bounds{0, 1 << 60}
	for _, name := range []string{"created[gte]", "created[gt]", "created[lte]", "created[lt]"} {
		if !c.query.Has(name) {
			continue
		}
		at, err := time.Parse(time.RFC3339, c.query.Get(name))
		if err != nil {
			return b, badParameter(name, "Invalid timestamp: "+c.query.Get(name))
		}
		t := at.UnixMicro()
		switch name {
		case "created[gte]":
			b.from = max(b.from, t)
		case "created[gt]":
			b.from = max(b.from, t+1000)
		case "created[lte]":
			b.to = min(b.to, t+999)
		case "created[lt]":
			b.to = min(b.to, t-1)
		}
	}
	return b, nil
}

func (c *call) thinWanted(e *event) bool {
	if id := c.query.Get("object_id"); id != "" && id != e.object.id {
		return false
	}
	asked, found := false, false
	for name, values := range c.query {
		if strings.HasPrefix(name, "types[") {
			asked, found = true, found || slices.Contains(values, e.kind)
		}
	}
	return !asked || found
}
