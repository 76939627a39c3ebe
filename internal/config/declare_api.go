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

// reader returns the reader of the source's API: a generic one where the section describes objects,
// else the provider's. It is nil where neither exists. The same reader reads stored API responses
// again later.
func (s *Source) reader(b *providerBuilder, p provider.Provider) provider.Reader {
	a := &s.API
	own, _ := p.(provider.Reader)
	switch {
	case len(a.Objects) == 0:
		for key, is := range map[string]bool{"header": a.Header != "", "headers": len(a.Headers) > 0,
			"control": a.KeyCheckPath != "", "missing": !isZero(a.NotFound),
			"expired": !isZero(a.CursorExpired), "lag": a.Lag != 0, "events": !isZero(a.Events)} {
			if is {
				b.fail(key, "applies only to an API that the section objects describes: set objects, or leave this out")
			}
		}
		return own
	case own != nil:
		b.fail("objects", "the API of %s is built in: leave this out", p.Name())
		return own
	}
	return b.restReader(s, p)
}

// restReader builds a reader from the described API.
func (b *providerBuilder) restReader(s *Source, p provider.Provider) provider.Reader {
	a := &s.API
	spec := rest.Spec{Lag: cmp.Or(a.Lag, rest.DefaultLag), Headers: map[string]rest.Template{},
		Types:   map[string]rest.Type{},
		Missing: b.under("missing").response(a.NotFound, http.StatusNotFound, http.StatusGone),
		Expired: b.under("expired").response(a.CursorExpired)}
	b.credentialHeaders(a, &spec)
	spec.Control = b.request("control", a.KeyCheckPath, "account")
	for _, name := range sortedKeys(a.Objects) {
		at := b.under("objects").under(name)
		t := at.apiObject(a.Objects[name], spec.Lag)
		if of, ok := p.(*declared.Provider); ok {
			at.checkSameOrder(name, t, of.Spec().Objects)
			if t.List != nil && s.Account == "" && len(of.Spec().Events.Account) > 0 &&
				!t.List.Request.Names("account") {
				at.fail("list", "does not contain an account, although the source's events do, so objects of all "+
					"accounts would be "+
					"stored under one account: put {account} into path or query, or set the source's account")
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

// reservedHeaders are headers that the HTTP client sets, or that change the response's encoding.
var reservedHeaders = []string{"Host", "Content-Length", "Connection", "Transfer-Encoding", "Accept-Encoding",
	"User-Agent",
	"Cache-Control"}

// credentialHeaders reads the headers of each call.
func (b *providerBuilder) credentialHeaders(a *API, spec *rest.Spec) {
	name, value, ok := strings.Cut(cmp.Or(a.Header, "Authorization: Bearer {key}"), ":")
	spec.Header = http.CanonicalHeaderKey(strings.TrimSpace(name))
	spec.Credential = b.restTemplate("header", strings.TrimSpace(value), "key", "key_base64")
	if !ok || !isHeaderName(spec.Header) || slices.Contains(reservedHeaders, spec.Header) ||
		!spec.Credential.Names("key") && !spec.Credential.Names("key_base64") {
		b.fail("header", "%q is not a header with the key: write e.g. 'Authorization: Bearer {key}' or 'X-Api-Key: "+
			"{key}'", a.Header)
	}
	for _, name := range sortedKeys(a.Headers) {
		canonical, at := http.CanonicalHeaderKey(name), b.under("headers")
		switch {
		case !isHeaderName(canonical) || slices.Contains(reservedHeaders, canonical):
			at.fail(name, "cannot be set here: leave it out")
		case canonical == spec.Header, isCredentialHeader(canonical):
			at.fail(name, "a credential is not allowed as a fixed header: set key, and write in header how to send it")
		case strings.ContainsAny(a.Headers[name], "\r\n\x00"):
			at.fail(name, "contains a line break: remove it")
		}
		spec.Headers[canonical] = at.restTemplate(name, a.Headers[name], "version")
	}
}

// isHeaderName reports whether a text is a valid header name.
func isHeaderName(name string) bool {
	return name != "" && !strings.ContainsFunc(name, func(r rune) bool {
		return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' ||
			strings.ContainsRune("!#$%&'*+-.^_`|~", r))
	})
}

func (b *providerBuilder) restTemplate(key, text string, allowed ...string) rest.Template {
	t, err := rest.ParseTemplate(text, allowed...)
	if err != nil {
		b.fail(key, "%v", err)
	}
	return t
}

func (b *providerBuilder) request(key, text string, allowed ...string) rest.Request {
	if text == "" {
		b.fail(key, "is not set: %s", map[string]string{"control": "name a path that succeeds with every valid key, " +
			"e.g. /v1/me: Postern treats an object as missing only after this call succeeded",
			"get":  "write how to read an object, e.g. /v1/orders/{id}",
			"path": "write how to list objects, e.g. /v1/orders"}[key])
		return rest.Request{Query: map[string]rest.Template{}}
	}
	r, err := rest.ParseRequest(text, allowed...)
	if err != nil {
		b.fail(key, "%v", err)
	}
	return r
}

// response reads which statuses, and which value in the body, identify a response.
func (b *providerBuilder) response(a APIResponse, usual ...int) rest.ResponseMatch {
	s := rest.ResponseMatch{Statuses: usual, Condition: rest.Condition{Path: a.Path, Equals: a.Equals}}
	if len(a.Statuses) > 0 {
		s.Statuses = a.Statuses
	}
	b.checkPath("path", a.Path)
	for _, status := range a.Statuses {
		if status < 400 || status > 499 ||
			slices.Contains([]int{http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests}, status) {
			b.fail("statuses", "%d has another meaning: write a status from 400 to 499 except 401, 403 and 429", status)
		} else if a.Path == "" && status != http.StatusNotFound && status != http.StatusGone {
			b.fail("statuses", "%d has many causes: set path to the value in the body that identifies this one", status)
		}
	}
	switch {
	case a.Equals != "" && a.Path == "":
		b.fail("path", "is not set: write where in the response %q is", a.Equals)
	case len(s.Statuses) == 0 && a.Path != "":
		b.fail("statuses", "is not set: write which statuses such a response has, e.g. [400, 410]")
	}
	return s
}

func (b *providerBuilder) apiObject(o *APIObject, lag time.Duration) rest.Type {
	t := rest.Type{Get: b.request("get", o.Get, "id", "account"), Item: o.Item, ID: cmp.Or(o.ID, "id"),
		Deleted: rest.Condition{Path: o.Deleted.Path, Equals: o.Deleted.Equals}, IgnoredPaths: o.IgnoredPaths}
	if o.Get != "" && !t.Get.Names("id") {
		b.fail("get", "%q returns the same object for every id: put {id} into it", o.Get)
	}
	for key, path := range map[string]string{"item": o.Item, "id": t.ID, "deleted.path": o.Deleted.Path,
		"version.path": o.Version.Path} {
		b.checkPath(key, path)
	}
	for step := range strings.SplitSeq(o.Item, ".") {
		if strings.Trim(step, "0123456789") == "" && step != "" && step != "0" {
			b.fail("item", "%q is not the first element of a list: write 0, because the first element is the "+
				"requested object", o.Item)
		}
	}
	if o.Deleted.Equals != "" && o.Deleted.Path == "" {
		b.fail("deleted.path", "is not set: write where in the object %q is", o.Deleted.Equals)
	}
	if o.Version != (APIVersion{}) {
		t.Version = &rest.Version{Path: o.Version.Path, Unit: b.under("version").unit(o.Version.Unit, true),
			MayNotAdvance: o.Version.MayNotAdvance}
		if o.Version.Path == "" {
			b.fail("version.path", "is not set: write where in the object its version is, e.g. updated_at")
		}
	}
	if !isZero(o.List) {
		t.List = b.under("list").apiList(&o.List, t, lag)
	}
	return t
}

func (b *providerBuilder) apiList(l *APIList, of rest.Type, lag time.Duration) *rest.List {
	out := b.list(l, "account")
	out.Partial, out.Sparse, out.Lag = l.Partial, l.EmptyPages, cmp.Or(l.Lag, lag)
	b.checkPaging(out, of)
	return out
}

// list reads the settings that lists of objects and of events share. more are additional
// placeholders of the request.
func (b *providerBuilder) list(l *APIList, more ...string) *rest.List {
	out := &rest.List{Request: b.request("path", l.Path, more...), Items: l.Items, Item: l.Item, Limit: l.Limit,
		Time: choose(b, "time", l.Time, choice[declared.Unit]{"rfc3339", declared.RFC3339},
			choice[declared.Unit]{"s", declared.Seconds}, choice[declared.Unit]{"ms", declared.Milliseconds}),
		Next: rest.Next{Field: l.Next.CursorPath, Address: l.Next.AddressPath, Link: l.Next.LinkHeader,
			LastObjectField: l.Next.LastObjectPath,
			ByTime:          l.Next.ByTime, More: l.Next.MorePath}}
	for _, name := range sortedKeys(l.Query) {
		if err := out.Request.SetQuery(name, l.Query[name], append(more, "limit", "cursor", "since",
			"until")...); err != nil {
			b.under("query").fail(name, "%v", err)
		}
	}
	for key, path := range map[string]string{"items": l.Items, "item": l.Item, "next.field": l.Next.CursorPath,
		"next.address": l.Next.AddressPath, "next.last": l.Next.LastObjectPath, "next.more": l.Next.MorePath} {
		b.checkPath(key, path)
	}
	if out.Request.Names("limit") && l.Limit == 0 {
		b.fail("limit", "is not set: write the value of {limit} in query, usually the maximum that the API allows")
	}
	if out.Request.Names("until") && !out.Request.Names("since") {
		b.fail("query", "contains {until} without {since}: a time range needs both")
	}
	return out
}

// checkPaging requires exactly one way to find the next page, and a placeholder in the query for
// its result.
func (b *providerBuilder) checkPaging(l *rest.List, of rest.Type) {
	n, count := l.Next, 0
	for _, is := range []bool{n.Field != "", n.Address != "", n.Link, n.LastObjectField != "", n.ByTime} {
		if is {
			count++
		}
	}
	usesCursor := l.Request.Names("cursor")
	switch {
	case count > 1:
		b.fail("next", "sets more than one of field, address, link, last and window: keep one")
	case count == 0 && n.More != "":
		b.fail("next", "says whether another page exists, but not how to find it: set one of field, address, "+
			"link, last and window")
	case (n.Field != "" || n.LastObjectField != "") && !usesCursor:
		b.fail("query", "does not use the next page's {cursor}: put {cursor} into a parameter, e.g. after: '{cursor}'")
	case n.Field == "" && n.LastObjectField == "" && usesCursor:
		b.fail("next", "does not find the {cursor} that a parameter of query contains: set field or last")
	case n.ByTime && !l.Request.Names("since"):
		b.fail("query", "does not contain {since}, which next.window needs: put {since} into a parameter")
	case n.ByTime && (of.Version == nil || of.Version.Unit == declared.Integer):
		b.fail("next.window", "needs the object's time of change: set version to it")
	case n.ByTime && l.Limit == 0:
		b.fail("limit", "is not set: next.window needs it to recognize a full page")
	}
}

// checkSameOrder requires that refetches and events are ordered by the same kind of value. Two
// clocks, or a clock and a counter, would let an old state overwrite a newer one.
func (b *providerBuilder) checkSameOrder(name string, t rest.Type, objects []declared.Object) {
	for i := range objects {
		o := &objects[i]
		if o.Ignored != "" || o.State == "" || o.Partial != "" ||
			!slices.ContainsFunc(o.Type, func(t signature.Template) bool { return t.String() == name }) {
			continue
		}
		switch {
		case o.Version == nil && t.Version != nil:
			b.fail("version", "events of %s are ordered by their time, and two clocks do not agree: leave this out, "+
				"or set version in the source's objects", name)
		case o.Version != nil && o.Version.Unit == declared.Integer &&
			(t.Version == nil || t.Version.Unit != declared.Integer):
			b.fail("version", "events of %s are ordered by %s, a number that cannot be compared with a time: set it "+
				"here too, with unit: integer", name, o.Version.From)
		case o.Version != nil && t.Version != nil &&
			(o.Version.Unit == declared.Integer) != (t.Version.Unit == declared.Integer):
			b.fail("version.unit", "events of %s are ordered by a time, which cannot be compared with a number: set "+
				"the time", name)
		}
	}
}
