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

// bounds are the seconds between which what is listed was created, both included.
type bounds struct{ from, to int64 }

// created reads created, created[gte] and the like.
func (c *call) created() (bounds, *failure) {
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

// limit is how many a page holds.
func (c *call) limit() (int, *failure) {
	if !c.query.Has("limit") {
		return 10, nil
	}
	n, err := strconv.Atoi(c.query.Get("limit"))
	if err != nil || n < 1 || n > 100 {
		return 0, badParameter("limit", "This value must be between 1 and 100 (inclusive).")
	}
	return n, nil
}

// window is the part of a list, of the given size and in order of creation, that the bounds leave.
func window(size int, b bounds, created func(i int) int64) (first, end int) {
	first = sort.Search(size, func(i int) bool { return created(i) >= b.from })
	end = sort.Search(size, func(i int) bool { return created(i) > b.to })
	return first, max(first, end)
}

// turn is the part of the window that the cursors leave, and whether the page is the last of it instead of the first.
func (c *call) turn(first, end int, name string, place func(id string) (int, bool)) (from, to int, backward bool, fail *failure) {
	for _, cursor := range []string{"starting_after", "ending_before"} {
		if !c.query.Has(cursor) {
			continue
		}
		i, ok := place(c.query.Get(cursor))
		if !ok || c.expired {
			return 0, 0, false, &failure{status: 400, Code: "resource_missing", Param: cursor, Message: fmt.Sprintf("No such %s: '%s'", name, c.query.Get(cursor))}
		}
		if cursor == "starting_after" {
			end = min(end, i)
		} else {
			first, backward = max(first, i+1), !c.query.Has("starting_after")
		}
	}
	return first, max(first, end), backward, nil
}

// pick takes the items of a page, newest first: the newest up to limit, or going backward the oldest. last is the place of the last
// one taken; there is more behind it.
func pick(first, end, limit int, backward bool, keep func(i int) []byte) (items [][]byte, last int, more bool) {
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

// page answers a page of a list, newest first.
func page(url string, items [][]byte, more bool) []byte {
	size := 64 + len(url)
	for _, item := range items {
		size += len(item) + 1
	}
	out := append(make([]byte, 0, size), `{"object":"list","data":[`...)
	out = joined(out, items)
	out = fmt.Appendf(out, `],"has_more":%t,"url":%q}`, more, url)
	return out
}

func joined(out []byte, items [][]byte) []byte {
	for i, item := range items {
		if i > 0 {
			out = append(out, ',')
		}
		out = append(out, item...)
	}
	return out
}

var paging = []string{"created", "created[", "limit", "starting_after", "ending_before"}

// list answers a page of objects as they were at the call's time.
func (c *call) list(k *kind) ([]byte, *failure) {
	asked, fail := c.filter(k)
	if fail != nil {
		return nil, fail
	}
	return c.listWith(k, asked)
}

// listWith answers a page of the objects whose fields are as told.
func (c *call) listWith(k *kind, asked map[string]string) ([]byte, *failure) {
	if fail := c.only(slices.Concat(paging, k.filters, []string{"expand["})...); fail != nil {
		return nil, fail
	}
	c.lag(c.fake.options.Faults.ListLag)
	b, fail := c.created()
	if fail != nil {
		return nil, fail
	}
	limit, fail := c.limit()
	if fail != nil {
		return nil, fail
	}
	all := c.account.kinds[k.plural]
	first, end := window(len(all), b, func(i int) int64 { return all[i].created })
	first, end, backward, fail := c.turn(first, end, k.name, func(id string) (int, bool) {
		o := c.account.objects[id]
		if o == nil || o.kind != k || o.gone() { // nobody documents what a deleted cursor does; this is the worst
			return 0, false
		}
		return o.place, true
	})
	if fail != nil {
		return nil, fail
	}
	items, _, more := pick(first, end, limit, backward, func(i int) []byte { return c.nested(k, c.rendered(c.listed(all[i], asked))) })
	return page("/v1/"+k.plural, items, more), nil
}

// filter is what the fields of a kind must be.
func (c *call) filter(k *kind) (map[string]string, *failure) {
	if k.must != "" && !c.query.Has(k.must) {
		return nil, badParameter(k.must, "Missing required param: "+k.must+".")
	}
	asked := maps.Clone(k.usual)
	if asked == nil {
		asked = map[string]string{}
	}
	for _, name := range k.filters {
		if c.query.Has(name) {
			asked[name] = c.query.Get(name)
		}
	}
	if status := c.query.Get("status"); c.query.Has("status") && !slices.Contains(k.statuses, status) {
		return nil, badParameter("status", "Invalid status: must be one of "+strings.Join(k.statuses, ", "))
	}
	return asked, nil
}

// listed is the object's body at the call's time, nil where the list does not show it.
func (c *call) listed(o *object, asked map[string]string) []byte {
	if c.now < o.revisions[0].at || !o.found(c.now) { // one of the same id may have been there before; it has its own place
		return nil
	}
	r, _ := o.at(c.now)
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
		is := fmt.Sprint(t[name])
		if name == "status" && o.kind.status != nil {
			if !o.kind.status(asked[name], is) {
				return nil
			}
		} else if is != asked[name] {
			return nil
		}
	}
	return r.body
}

// listEvents answers a page of events. Those of the last 30 days are there; some come into the list late.
func (c *call) listEvents() ([]byte, *failure) {
	if fail := c.only(append(paging, "type", "types[", "delivery_success")...); fail != nil {
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
	wanted, fail := c.wanted()
	if fail != nil {
		return nil, fail
	}
	all := c.account.events
	first, end := window(len(all), b, func(i int) int64 { return all[i].at / second })
	first, end, backward, fail := c.turn(first, end, "event", c.eventPlace)
	if fail != nil {
		return nil, fail
	}
	items, _, more := pick(first, end, limit, backward, func(i int) []byte {
		if e := all[i]; !e.object.kind.thin && e.shown(c.now) && wanted(e) {
			return e.answer()
		}
		return nil
	})
	return page("/v1/events", items, more), nil
}

func (c *call) eventPlace(id string) (int, bool) {
	e := c.account.named[id]
	if e == nil || e.object.kind.thin {
		return 0, false
	}
	return e.place, e.at > c.now-kept
}

// wanted is what type, types and delivery_success leave.
func (c *call) wanted() (func(*event) bool, *failure) {
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
