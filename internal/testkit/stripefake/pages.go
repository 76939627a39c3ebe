package stripefake

import (
	"bytes"
	"fmt"
	"maps"
	"slices"
	"sort"
	"strconv"
	"strings"
)

// bounds is a range of creation times in seconds, both ends included.
type bounds struct{ from, to int64 }

// created reads created, created[gte] and the like.
func (c *call) created() (bounds, *apiError) {
	b := bounds{0, 1 << 40}
	for _, name := range []string{"created", "created[gte]", "created[gt]", "created[lte]", "created[lt]"} {
		if !c.query.Has(name) {
			continue
		}
		n, err := strconv.ParseInt(c.query.Get(name), 10, 40)
		if err != nil {
			return b, badParameter(name, "Invalid integer: "+c.query.Get(name))
		}
		switch name {
		case "created":
			b.from, b.to = max(b.from, n), min(b.to, n)
		case "created[gte]":
			b.from = max(b.from, n)
		case "created[gt]":
			b.from = max(b.from, n+1)
		case "created[lte]":
			b.to = min(b.to, n)
		case "created[lt]":
			b.to = min(b.to, n-1)
		}
	}
	return b, nil
}

// limit returns the page size.
func (c *call) limit() (int, *apiError) {
	if !c.query.Has("limit") {
		return 10, nil
	}
	n, err := strconv.Atoi(c.query.Get("limit"))
	if err != nil || n < 1 || n > 100 {
		return 0, badParameter("limit", "This value must be between 1 and 100 (inclusive).")
	}
	return n, nil
}

// rangeInBounds returns the part of a list of the given size, in order of creation, that is within
// the bounds.
func rangeInBounds(size int, b bounds, created func(i int) int64) (first, end int) {
	first = sort.Search(size, func(i int) bool { return created(i) >= b.from })
	end = sort.Search(size, func(i int) bool { return created(i) > b.to })
	return first, max(first, end)
}

// applyCursors returns the part of the range that the cursors leave, and whether the page is the
// last of it instead of the first.
func (c *call) applyCursors(first, end int, name string, place func(id string) (int, bool)) (from, to int,
	backward bool, fail *apiError) {
	for _, cursor := range []string{"starting_after", "ending_before"} {
		if !c.query.Has(cursor) {
			continue
		}
		i, ok := place(c.query.Get(cursor))
		if !ok || c.expired {
			return 0, 0, false, &apiError{status: 400, Code: "resource_missing", Param: cursor,
				Message: fmt.Sprintf("No such %s: '%s'", name, c.query.Get(cursor))}
		}
		if cursor == "starting_after" {
			end = min(end, i)
		} else {
			first, backward = max(first, i+1), !c.query.Has("starting_after")
		}
	}
	return first, max(first, end), backward, nil
}

// takePage takes the items of a page, newest first: the newest up to limit, or with backward the
// oldest. It returns the position of the last item, and whether there are more items after it.
func takePage(first, end, limit int, backward bool, keep func(i int) []byte) (items [][]byte, last int, more bool) {
	for n := range end - first {
		i := end - 1 - n
		if backward {
			i = first + n
		}
		item := keep(i)
		if item == nil {
			continue
		}
		if len(items) == limit {
			more = true
			break
		}
		items, last = append(items, item), i
	}
	if backward {
		slices.Reverse(items)
	}
	return items, last, more
}

// page returns a page of a list, newest first.
func page(url string, items [][]byte, more bool) []byte {
	size := 64 + len(url)
	for _, item := range items {
		size += len(item) + 1
	}
	out := append(make([]byte, 0, size), `{"object":"list","data":[`...)
	out = appendJoined(out, items)
	out = fmt.Appendf(out, `],"has_more":%t,"url":%q}`, more, url)
	return out
}

func appendJoined(out []byte, items [][]byte) []byte {
	for i, item := range items {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, item...)
	}
	return out
}

var pagingParameters = []string{"created", "created[", "limit", "starting_after", "ending_before"}

// list returns a page of objects at the time of the call.
func (c *call) list(k *kind) ([]byte, *apiError) {
	asked, fail := c.filter(k)
	if fail != nil {
		return nil, fail
	}
	return c.listWith(k, asked)
}

// listWith returns a page of the objects with the given field values.
func (c *call) listWith(k *kind, asked map[string]string) ([]byte, *apiError) {
	if fail := c.allowParameters(slices.Concat(pagingParameters, k.filters, []string{"expand["})...); fail != nil {
		return nil, fail
	}
	c.showOlderState(c.fake.options.Faults.ListLag)
	b, fail := c.created()
	if fail != nil {
		return nil, fail
	}
	limit, fail := c.limit()
	if fail != nil {
		return nil, fail
	}
	all := c.account.byType[k.plural]
	first, end := rangeInBounds(len(all), b, func(i int) int64 { return all[i].created })
	first, end, backward, fail := c.applyCursors(first, end, k.name, func(id string) (int, bool) {
		o := c.account.objects[id]
		// Stripe does not document the cursor of a deleted object; this is the worst case
		if o == nil || o.kind != k || o.isDeleted() {
			return 0, false
		}
		return o.position, true
	})
	if fail != nil {
		return nil, fail
	}
	items, _, more := takePage(first, end, limit, backward,
		func(i int) []byte { return c.addChildLists(k, c.renderBody(c.listedBody(all[i], asked))) })
	return page("/v1/"+k.plural, items, more), nil
}

// filter returns the required values of the fields of a kind.
func (c *call) filter(k *kind) (map[string]string, *apiError) {
	if k.requiredFilter != "" && !c.query.Has(k.requiredFilter) {
		return nil, badParameter(k.requiredFilter, "Missing required param: "+k.requiredFilter+".")
	}
	asked := maps.Clone(k.defaultFilter)
	if asked == nil {
		asked = map[string]string{}
	}
	for _, name := range k.filters {
		if c.query.Has(name) {
			asked[name] = c.query.Get(name)
		}
	}
	if status := c.query.Get("status"); c.query.Has("status") && !slices.Contains(k.statusValues, status) {
		return nil, badParameter("status", "Invalid status: must be one of "+strings.Join(k.statusValues, ", "))
	}
	return asked, nil
}

// listedBody returns the body of the object at the time of the call, or nil if the list does not
// show it.
func (c *call) listedBody(o *object, asked map[string]string) []byte {
	// an earlier object with this id has its own position
	if c.now < o.revisions[0].at || !o.isVisible(c.now) {
		return nil
	}
	r, _ := o.revisionAt(c.now)
	if r.body == nil || len(asked) == 0 {
		return r.body
	}
	var t tree
	for name := range maps.Keys(asked) {
		if asked[name] == "<nil>" && !bytes.Contains(r.body, []byte(`"`+name+`":"`)) {
			continue
		}
		if t == nil {
			t = parse(r.body)
		}
		fieldIs := fmt.Sprint(t[name])
		if name == "status" && o.kind.status != nil {
			if !o.kind.status(asked[name], fieldIs) {
				return nil
			}
		} else if fieldIs != asked[name] {
			return nil
		}
	}
	return r.body
}

// listEvents returns a page of the events of the last 30 days. Some events appear late in the list.
func (c *call) listEvents() ([]byte, *apiError) {
	if fail := c.allowParameters(append(pagingParameters, "type", "types[", "delivery_success")...); fail != nil {
		return nil, fail
	}
	b, fail := c.created()
	if fail != nil {
		return nil, fail
	}
	limit, fail := c.limit()
	if fail != nil {
		return nil, fail
	}
	wanted, fail := c.eventFilter()
	if fail != nil {
		return nil, fail
	}
	all := c.account.events
	first, end := rangeInBounds(len(all), b, func(i int) int64 { return all[i].at / second })
	first, end, backward, fail := c.applyCursors(first, end, "event", c.eventPosition)
	if fail != nil {
		return nil, fail
	}
	items, _, more := takePage(first, end, limit, backward, func(i int) []byte {
		if e := all[i]; !e.object.kind.idOnly && e.isListed(c.now) && wanted(e) {
			return e.apiBody()
		}
		return nil
	})
	return page("/v1/events", items, more), nil
}

func (c *call) eventPosition(id string) (int, bool) {
	e := c.account.eventsByID[id]
	if e == nil || e.object.kind.idOnly {
		return 0, false
	}
	return e.position, e.at > c.now-eventRetention
}

// eventFilter returns the filter for type, types and delivery_success.
func (c *call) eventFilter() (func(*event) bool, *apiError) {
	var types []string
	for name, values := range c.query {
		if strings.HasPrefix(name, "types[") {
			types = append(types, values...)
		}
	}
	one := c.query.Get("type")
	switch {
	case one != "" && len(types) > 0:
		return nil, badParameter("types", "You may pass in only one of these parameters: `type`, `types`.")
	case len(types) > 20:
		return nil, badParameter("types", "Array must contain at most 20 elements.")
	}
	success, bySuccess := c.query.Get("delivery_success"), c.query.Has("delivery_success")
	if bySuccess && success != "true" && success != "false" {
		return nil, badParameter("delivery_success", "Invalid boolean: "+success)
	}
	return func(e *event) bool {
		group, grouped := strings.CutSuffix(one, "*")
		return (one == "" || e.kind == one || grouped && strings.HasPrefix(e.kind, group)) &&
			(len(types) == 0 || slices.Contains(types, e.kind)) && (!bySuccess || e.delivered == (success == "true"))
	}, nil
}
