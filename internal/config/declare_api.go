package config

import (
	"cmp"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/provider/rest"
	"github.com/postern-gateway/postern/internal/signature"
)

// reader is who reads the API of a source's provider, and what was read of it before: what the section says or else the provider; nil where neither does.
func (s *Source) reader(b *builder, p provider.Provider) provider.Reader {
	a := &s.API
	own, _ := p.(provider.Reader)
	switch {
	case len(a.Objects) == 0:
		for key, is := range map[string]bool{"header": a.Header != "", "headers": len(a.Headers) > 0, "control": a.Control != "", "missing": !isZero(a.Missing),
			"expired": !isZero(a.Expired), "lag": a.Lag != 0, "events": !isZero(a.Events)} {
			if is {
				b.fail(key, "is for an API whose objects are described: set objects, or leave this out")
			}
		}
		return own
	case own != nil:
		b.fail("objects", "the API of %s is read in its own way: leave this out", p.Name())
		return own
	}
	return b.rest(s, p)
}

// rest reads how an API is read.
func (b *builder) rest(s *Source, p provider.Provider) provider.Reader {
	a := &s.API
	spec := rest.Spec{Lag: cmp.Or(a.Lag, rest.DefaultLag), Headers: map[string]rest.Template{}, Types: map[string]rest.Type{},
		Missing: b.under("missing").answer(a.Missing, http.StatusNotFound, http.StatusGone), Expired: b.under("expired").answer(a.Expired)}
	b.credential(a, &spec)
	spec.Control = b.request("control", a.Control, "account")
	for _, name := range sortedKeys(a.Objects) {
		at := b.under("objects").under(name)
		t := at.apiObject(a.Objects[name], spec.Lag)
		if of, ok := p.(*declared.Provider); ok {
			at.ordersAlike(name, t, of.Spec().Objects)
			if t.List != nil && s.Account == "" && len(of.Spec().Events.Account) > 0 && !t.List.Request.Names("account") {
				at.fail("list", "names no account, and events of the source do, so that the objects of all would be kept as one's: put {account} into path or query, or set the source's account")
			}
		}
		spec.Types[name] = t
	}
	if !isZero(a.Events) {
		spec.Events = b.under("events").apiEvents(&a.Events, p)
		return rest.NewLister(spec)
	}
	return rest.New(spec)
}

// ours are the headers that the client sets, or that say how the answer comes.
var ours = []string{"Host", "Content-Length", "Connection", "Transfer-Encoding", "Accept-Encoding", "User-Agent", "Cache-Control"}

// credential reads the headers of each call.
func (b *builder) credential(a *API, spec *rest.Spec) {
	name, value, ok := strings.Cut(cmp.Or(a.Header, "Authorization: Bearer {key}"), ":")
	spec.Header = http.CanonicalHeaderKey(strings.TrimSpace(name))
	spec.Credential = b.restTemplate("header", strings.TrimSpace(value), "key", "key_base64")
	if !ok || !headerName(spec.Header) || slices.Contains(ours, spec.Header) || !spec.Credential.Names("key") && !spec.Credential.Names("key_base64") {
		b.fail("header", "%q is no header with the key: write e.g. 'Authorization: Bearer {key}' or 'X-Api-Key: {key}'", a.Header)
	}
	for _, name := range sortedKeys(a.Headers) {
		canonical, at := http.CanonicalHeaderKey(name), b.under("headers")
		switch {
		case !headerName(canonical) || slices.Contains(ours, canonical):
			at.fail(name, "is no header that can be set here: leave it out")
		case canonical == spec.Header, credential(canonical):
			at.fail(name, "a credential is no fixed header: set key, and say in header how it is sent")
		case strings.ContainsAny(a.Headers[name], "\r\n\x00"):
			at.fail(name, "holds a line end: leave it out")
		}
		spec.Headers[canonical] = at.restTemplate(name, a.Headers[name], "version")
	}
}

// headerName tells whether a text can be a header's name.
func headerName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}

func (b *builder) restTemplate(key, text string, allowed ...string) rest.Template {
	t, err := rest.ParseTemplate(text, allowed...)
	if err != nil {
		b.fail(key, "%v", err)
	}
	return t
}

func (b *builder) request(key, text string, allowed ...string) rest.Request {
	if text == "" {
		b.fail(key, "is not set: %s", map[string]string{"control": "name a path that is answered wherever the key is good, e.g. /v1/me: only then is believed that an object is missing",
			"get": "say how an object is read, e.g. /v1/orders/{id}", "path": "say how they are listed, e.g. /v1/orders"}[key])
		return rest.Request{Query: map[string]rest.Template{}}
	}
	r, err := rest.ParseRequest(text, allowed...)
	if err != nil {
		b.fail(key, "%v", err)
	}
	return r
}

// answer reads by which statuses, and which value, an answer says something.
func (b *builder) answer(a APIAnswer, usual ...int) rest.Sign {
	s := rest.Sign{Statuses: usual, Condition: rest.Condition{Path: a.Path, Equals: a.Equals}}
	if len(a.Statuses) > 0 {
		s.Statuses = a.Statuses
	}
	b.plainPath("path", a.Path)
	for _, status := range a.Statuses {
		if status < 400 || status > 499 || slices.Contains([]int{http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests}, status) {
			b.fail("statuses", "%d says something else: write a status from 400 to 499 but 401, 403 and 429", status)
		} else if a.Path == "" && status != http.StatusNotFound && status != http.StatusGone {
			b.fail("statuses", "%d has many causes: set path to the value in the body that tells this one", status)
		}
	}
	switch {
	case a.Equals != "" && a.Path == "":
		b.fail("path", "is not set: say where in the answer %q stands", a.Equals)
	case len(s.Statuses) == 0 && a.Path != "":
		b.fail("statuses", "is not set: say which statuses such an answer has, e.g. [400, 410]")
	}
	return s
}

func (b *builder) apiObject(o *APIObject, lag time.Duration) rest.Type {
	t := rest.Type{Get: b.request("get", o.Get, "id", "account"), Item: o.Item, ID: cmp.Or(o.ID, "id"),
		Deleted: rest.Condition{Path: o.Deleted.Path, Equals: o.Deleted.Equals}, Volatile: o.Volatile}
	if o.Get != "" && !t.Get.Names("id") {
		b.fail("get", "%q reads the same whatever object is asked for: put {id} into it", o.Get)
	}
	for key, path := range map[string]string{"item": o.Item, "id": t.ID, "deleted.path": o.Deleted.Path, "version.path": o.Version.Path} {
		b.plainPath(key, path)
	}
	for step := range strings.SplitSeq(o.Item, ".") {
		if strings.Trim(step, "0123456789") == "" && step != "" && step != "0" {
			b.fail("item", "%q is not the first of a list, which alone can be what was asked for: write 0", o.Item)
		}
	}
	if o.Deleted.Equals != "" && o.Deleted.Path == "" {
		b.fail("deleted.path", "is not set: say where in the object %q stands", o.Deleted.Equals)
	}
	if o.Version != (APIVersion{}) {
		t.Version = &rest.Version{Path: o.Version.Path, Unit: b.under("version").unit(o.Version.Unit, true), Still: o.Version.Still}
		if o.Version.Path == "" {
			b.fail("version.path", "is not set: say where in the object its version stands, e.g. updated_at")
		}
	}
	if !isZero(o.List) {
		t.List = b.under("list").apiList(&o.List, t, lag)
	}
	return t
}

func (b *builder) apiList(l *APIList, of rest.Type, lag time.Duration) *rest.List {
	out := b.listing(l, "account")
	out.Partial, out.Sparse, out.Lag = l.Partial, l.Sparse, cmp.Or(l.Lag, lag)
	b.pages(out, of)
	return out
}

// listing is what a list of objects and one of events have alike, with further names in its request.
func (b *builder) listing(l *APIList, more ...string) *rest.List {
	out := &rest.List{Request: b.request("path", l.Path, more...), Items: l.Items, Item: l.Item, Limit: l.Limit,
		Time: oneOf(b, "time", l.Time, choice[declared.Unit]{"rfc3339", declared.RFC3339}, choice[declared.Unit]{"s", declared.Seconds}, choice[declared.Unit]{"ms", declared.Milliseconds}),
		Next: rest.Next{Field: l.Next.Field, Address: l.Next.Address, Link: l.Next.Link, Last: l.Next.Last, Window: l.Next.Window, More: l.Next.More}}
	for _, name := range sortedKeys(l.Query) {
		if err := out.Request.SetQuery(name, l.Query[name], append(more, "limit", "cursor", "since", "until")...); err != nil {
			b.under("query").fail(name, "%v", err)
		}
	}
	for key, path := range map[string]string{"items": l.Items, "item": l.Item, "next.field": l.Next.Field, "next.address": l.Next.Address, "next.last": l.Next.Last, "next.more": l.Next.More} {
		b.plainPath(key, path)
	}
	if out.Request.Names("limit") && l.Limit == 0 {
		b.fail("limit", "is not set: say what {limit} in query stands for, mostly the most that the API allows")
	}
	if out.Request.Names("until") && !out.Request.Names("since") {
		b.fail("query", "names {until} without {since}: a time has two ends")
	}
	return out
}

// pages wants one way from page to page, and a place in the query for what it finds.
func (b *builder) pages(l *rest.List, of rest.Type) {
	n, ways := l.Next, 0
	for _, is := range []bool{n.Field != "", n.Address != "", n.Link, n.Last != "", n.Window} {
		if is {
			ways++
		}
	}
	asks := l.Request.Names("cursor")
	switch {
	case ways > 1:
		b.fail("next", "says more than one of field, address, link, last and window: keep one")
	case ways == 0 && n.More != "":
		b.fail("next", "says whether there is another page, and not how it is found: set one of field, address, link, last and window")
	case (n.Field != "" || n.Last != "") && !asks:
		b.fail("query", "sends the next page's place nowhere: put {cursor} into a parameter, e.g. after: '{cursor}'")
	case n.Field == "" && n.Last == "" && asks:
		b.fail("next", "finds no {cursor}, which a parameter of query waits for: set field or last")
	case n.Window && !l.Request.Names("since"):
		b.fail("query", "asks for no time, by which next.window goes on: put {since} into a parameter")
	case n.Window && (of.Version == nil || of.Version.Unit == declared.Integer):
		b.fail("next.window", "goes by the object's time of change: set version to it")
	case n.Window && l.Limit == 0:
		b.fail("limit", "is not set: next.window must know when a page is full")
	}
}

// ordersAlike wants that looks are ordered by what orders the events: two clocks, or a clock and a counter, would let old states win.
func (b *builder) ordersAlike(name string, t rest.Type, objects []declared.Object) {
	for i := range objects {
		o := &objects[i]
		if o.Ignored != "" || o.State == "" || o.Partial != "" || !slices.ContainsFunc(o.Type, func(t signature.Template) bool { return t.String() == name }) {
			continue
		}
		switch {
		case o.Version == nil && t.Version != nil:
			b.fail("version", "events of %s are ordered by their time, and two clocks do not agree: leave this out, or have the source's objects name the version", name)
		case o.Version != nil && o.Version.Unit == declared.Integer && (t.Version == nil || t.Version.Unit != declared.Integer):
			b.fail("version", "events of %s are ordered by %s, a number that no time compares with: name it here too, with unit: integer", name, o.Version.From)
		case o.Version != nil && t.Version != nil && (o.Version.Unit == declared.Integer) != (t.Version.Unit == declared.Integer):
			b.fail("version.unit", "events of %s are ordered by a time, which no number compares with: name the time", name)
		}
	}
}
