package stripefake

import (
	"fmt"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// routeV2 serves requests to the v2 API: id-only events and accounts. Its pages are addressed by
// opaque tokens, which contain all parameters of the first page.
func (c *call) routeV2(path []string, unknown *apiError) ([]byte, *apiError) {
	if len(path) == 0 || len(path) > 2 {
		return nil, unknown
	}
	if fail := c.requireAccess("v2." + path[0]); fail != nil {
		return nil, fail
	}
	switch k := kindOfList(path[0], true); {
	case path[0] == "events" && len(path) == 1:
		return c.listV2Events()
	case path[0] == "events":
		return c.getEvent(path[1], true)
	case k != nil && len(path) == 1:
		return c.listV2Objects(k)
	case k != nil && len(path) == 2:
		return c.get(k, path[1])
	}
	return nil, unknown
}

// listV2Events returns a page of id-only events, newest first.
func (c *call) listV2Events() ([]byte, *apiError) {
	if fail := c.allowParameters("page", "limit", "object_id", "types[", "created["); fail != nil {
		return nil, fail
	}
	limit, fail := c.limit()
	if fail != nil {
		return nil, fail
	}
	b, fail := c.v2Created()
	if fail != nil {
		return nil, fail
	}
	end, fail := c.pageStart(len(c.account.events))
	if fail != nil {
		return nil, fail
	}
	items, last, more := takePage(0, end, limit, false, func(i int) []byte {
		e := c.account.events[i]
		if !e.object.kind.idOnly || !e.isListed(c.now) || e.at < b.from || e.at > b.to || !c.matchesV2Filter(e) {
			return nil
		}
		return e.apiBody()
	})
	return c.v2Page("events", items, last, more), nil
}

// includeRequested sets properties to null that the v2 API returns only on request.
func (c *call) includeRequested(k *kind, body []byte) []byte {
	if !k.idOnly || body == nil {
		return body
	}
	named := map[string]bool{}
	for name := range c.query {
		if strings.HasPrefix(name, "include[") {
			named[c.query.Get(name)] = true
		}
	}
	o := parse(body)
	for _, section := range []string{"defaults", "identity", "requirements"} {
		if !named[section] {
			o[section] = nil
		}
	}
	configuration := o["configuration"].(tree)
	o["configuration"] = nil
	for section := range configuration {
		if named["configuration."+section] {
			o["configuration"] = configuration
		} else {
			configuration[section] = nil
		}
	}
	return text(o)
}

// pageStart returns the position at which the page of a token begins, in a list of the given size.
func (c *call) pageStart(size int) (int, *apiError) {
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

// listV2Objects returns a page of objects of the v2 API at the time of the call, newest first.
func (c *call) listV2Objects(k *kind) ([]byte, *apiError) {
	if fail := c.allowParameters(append([]string{"page", "limit"}, k.filters...)...); fail != nil {
		return nil, fail
	}
	c.showOlderState(c.fake.options.Faults.ListLag)
	limit, fail := c.limit()
	if fail != nil {
		return nil, fail
	}
	asked, fail := c.filter(k)
	if fail != nil {
		return nil, fail
	}
	all := c.account.byType[k.plural]
	end, fail := c.pageStart(len(all))
	if fail != nil {
		return nil, fail
	}
	items, last, more := takePage(0, end, limit, false,
		func(i int) []byte { return c.renderBody(c.includeRequested(k, c.listedBody(all[i], asked))) })
	return c.v2Page(k.plural, items, last, more), nil
}

func (c *call) v2Page(plural string, items [][]byte, last int, more bool) []byte {
	next := "null"
	if more {
		query := url.Values{}
		for name, values := range c.query {
			query[name] = values
		}
		query.Set("page", "page_"+strconv.FormatInt(int64(last), 36))
		next = strconv.Quote("/v2/core/" + plural + "?" + query.Encode())
	}
	out := appendJoined([]byte(`{"data":[`), items)
	return fmt.Appendf(out, `],"next_page_url":%s,"previous_page_url":null}`, next)
}

// v2Created reads created[gte] and the like, which are RFC 3339 times in the v2 API. The bounds are
// microseconds.
func (c *call) v2Created() (bounds, *apiError) {
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

func (c *call) matchesV2Filter(e *event) bool {
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
