package rest

import (
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
	"github.com/postern-gateway/postern/internal/settings"
	"github.com/postern-gateway/postern/internal/signature"
)

// Check reports settings that cannot work, or that would send the key to another place. account is
// the source's own account, and p its provider.
func (s Spec) Check(c settings.Checker, account string, p provider.Provider) {
	c.CredentialHeader("header", s.Header.text)
	checkTemplate(c, "header", s.Header, "key", "key_base64")
	own, _, _ := strings.Cut(s.Header.text, ":")
	for _, name := range slices.Sorted(maps.Keys(s.Headers)) {
		at := c.Under("headers")
		const credential = "a credential is not allowed as a fixed header: set key, and write in header how to send it"
		if at.CallHeader(name, s.Headers[name].text, credential); strings.EqualFold(name, strings.TrimSpace(own)) {
			at.Fail(name, credential)
		}
		checkTemplate(at, name, s.Headers[name], "version")
	}
	checkRequest(c, "control", s.KeyCheck, "account")
	s.Missing.check(c.Under("missing"))
	s.Expired.check(c.Under("expired"))
	if len(s.Expired.Statuses) == 0 && s.Expired.Path != "" {
		c.Fail("expired.statuses", "is not set: write which statuses such a response has, e.g. [400, 410]")
	}
	of, isDeclared := p.(*declared.Provider)
	s = s.complete()
	for _, name := range slices.Sorted(maps.Keys(s.Objects)) {
		at, t := c.Under("objects").Under(name), s.Objects[name]
		t.check(at)
		if isDeclared {
			t.checkSameOrder(at, name, of.Spec().Objects)
			if t.List != nil && account == "" && len(of.Spec().Events.Account) > 0 && !t.List.Path.Names("account") {
				at.Fail("list", "does not contain an account, although the source's events do, so objects of all "+
					"accounts would be stored under one account: put {account} into path or query, or set the "+
					"source's account")
			}
		}
	}
	if s.Events == nil {
		return
	}
	s.Events.check(c.Under("events"))
	if !isDeclared {
		c.Fail("events.path", "events of provider %s need more than their bodies: leave events out", p.Name())
		return
	}
	events := of.Spec().Events
	checkNamedByBody(c.Under("events"), &events)
}

func checkTemplate(c settings.Checker, key string, t Template, allowed ...string) {
	if _, err := ParseTemplate(t.text, allowed...); err != nil {
		c.Fail(key, "%v", err)
	}
}

// checkRequest requires a request that contains allowed names only. It returns the request, zero
// after an error.
func checkRequest(c settings.Checker, key string, r Request, allowed ...string) Request {
	if r.IsZero() {
		c.Fail(key, "is not set: %s", map[string]string{"control": "name a path that succeeds with every valid key, " +
			"e.g. /v1/me: Postern treats an object as missing only after this call succeeded",
			"get":  "write how to read an object, e.g. /v1/orders/{id}",
			"path": "write how to list objects, e.g. /v1/orders"}[key])
		return Request{}
	}
	parsed, err := ParseRequest(r.text, allowed...)
	if err != nil {
		c.Fail(key, "%v", err)
		return Request{}
	}
	return parsed
}

func (s ResponseMatch) check(c settings.Checker) {
	signature.CheckFields(c, &s)
	for _, status := range s.Statuses {
		if status < 400 || status > 499 ||
			slices.Contains([]int{http.StatusUnauthorized, http.StatusForbidden, http.StatusTooManyRequests}, status) {
			c.Fail("statuses", "%d has another meaning: write a status from 400 to 499 except 401, 403 and 429", status)
		} else if s.Path == "" && status != http.StatusNotFound && status != http.StatusGone {
			c.Fail("statuses", "%d has many causes: set path to the value in the body that identifies this one", status)
		}
	}
	if s.Equals != "" && s.Path == "" {
		c.Fail("path", "is not set: write where in the response %q is", s.Equals)
	}
}

func (t *Type) check(c settings.Checker) {
	checkRequest(c, "get", t.Get, "id", "account")
	signature.CheckFields(c, t)
	if !t.Get.IsZero() && !t.Get.Names("id") {
		c.Fail("get", "%q returns the same object for every id: put {id} into it", t.Get.text)
	}
	for step := range strings.SplitSeq(t.Item, ".") {
		if strings.Trim(step, "0123456789") == "" && step != "" && step != "0" {
			c.Fail("item", "%q is not the first element of a list: write 0, because the first element is the "+
				"requested object", t.Item)
		}
	}
	if t.Deleted.Equals != "" && t.Deleted.Path == "" {
		c.Fail("deleted.path", "is not set: write where in the object %q is", t.Deleted.Equals)
	}
	if t.Version != nil && t.Version.Path == "" {
		c.Fail("version.path", "is not set: write where in the object its version is, e.g. updated_at")
	}
	if t.List != nil {
		t.List.check(c.Under("list"), t.Version, "account")
	}
}

func (e *Events) check(c settings.Checker) {
	signature.CheckFields(c, e)
	if e.At.Path == "" {
		c.Fail("at.path", "is not set: write where in an event its time is, e.g. created_at")
	}
	if !e.Path.Names("since") || !e.Path.Names("until") {
		c.Fail("query", "does not contain both {since} and {until}: events are read one time range after the other")
	}
	e.Page.check(c, &Version{Path: e.At.Path, Unit: e.At.Unit})
}

// check checks what lists of objects and of events share. more are additional placeholders of the
// request.
func (l *Page) check(c settings.Checker, version *Version, more ...string) {
	inPath := checkRequest(c, "path", l.Path, more...).Query
	for _, name := range slices.Sorted(maps.Keys(l.Query)) {
		if _, twice := inPath[name]; twice {
			c.Under("query").Fail(name, "is given twice")
		}
		checkTemplate(c.Under("query"), name, l.Query[name], append(more, "limit", "cursor", "since", "until")...)
	}
	if l.Path.Names("limit") && l.Limit == 0 {
		c.Fail("limit", "is not set: write the value of {limit} in query, usually the maximum that the API allows")
	}
	if l.Path.Names("until") && !l.Path.Names("since") {
		c.Fail("query", "contains {until} without {since}: a time range needs both")
	}
	l.checkNext(c, version)
}

// checkNext requires exactly one way to find the next page, and a placeholder in the query for its
// result.
func (l *Page) checkNext(c settings.Checker, version *Version) {
	n, count := l.Next, 0
	for _, is := range []bool{n.Field != "", n.Address != "", n.Link, n.LastObjectField != "", n.ByTime} {
		if is {
			count++
		}
	}
	usesCursor := l.Path.Names("cursor")
	switch {
	case count > 1:
		c.Fail("next", "sets more than one of field, address, link, last and window: keep one")
	case count == 0 && n.More != "":
		c.Fail("next", "says whether another page exists, but not how to find it: set one of field, address, "+
			"link, last and window")
	case (n.Field != "" || n.LastObjectField != "") && !usesCursor:
		c.Fail("query", "does not use the next page's {cursor}: put {cursor} into a parameter, e.g. after: '{cursor}'")
	case n.Field == "" && n.LastObjectField == "" && usesCursor:
		c.Fail("next", "does not find the {cursor} that a parameter of query contains: set field or last")
	case n.ByTime && !l.Path.Names("since"):
		c.Fail("query", "does not contain {since}, which next.window needs: put {since} into a parameter")
	case n.ByTime && (version == nil || version.Unit == declared.Integer):
		c.Fail("next.window", "needs the object's time of change: set version to it")
	case n.ByTime && l.Limit == 0:
		c.Fail("limit", "is not set: next.window needs it to recognize a full page")
	}
}

// checkSameOrder requires that refetches and events are ordered by the same kind of value. Two
// clocks, or a clock and a counter, would let an old state overwrite a newer one.
func (t *Type) checkSameOrder(c settings.Checker, name string, objects []declared.Object) {
	for i := range objects {
		o := &objects[i]
		if o.Ignored != "" || o.State == "" || o.Partial != "" ||
			!slices.ContainsFunc(o.Type, func(t signature.Template) bool { return t.String() == name }) {
			continue
		}
		counted := o.Version != nil && o.Version.Unit == declared.Integer
		switch {
		case o.Version == nil && t.Version != nil:
			c.Fail("version", "events of %s are ordered by their time, and two clocks do not agree: leave this out, "+
				"or set version in the source's objects", name)
		case counted && !t.hasIntegerVersion():
			c.Fail("version", "events of %s are ordered by %s, a number that cannot be compared with a time: set it "+
				"here too, with unit: integer", name, o.Version.From)
		case o.Version != nil && !counted && t.hasIntegerVersion():
			c.Fail("version.unit", "events of %s are ordered by a time, which cannot be compared with a number: set "+
				"the time", name)
		}
	}
}

// checkNamedByBody requires that an event's key, type and account come from its body, so that a
// listed event gets the same names as the one that a webhook delivers.
func checkNamedByBody(c settings.Checker, e *declared.Events) {
	switch {
	case e.Split != "" && !e.AllowSingle:
		c.Fail("path", "the source's deliveries are lists of events (events.split), and the API lists each event "+
			"separately: leave events out")
	case len(e.Bodies) > 0 && !slices.Contains(e.Bodies, declared.JSON):
		c.Fail("path", "the source's deliveries are forms (events.body), but the API returns JSON: leave events out")
	case len(e.Key) == 0:
		c.Fail("path", "the source's events have no key in their body: set events.key of the source, e.g. "+
			"'{json:id}', or leave events out")
	}
	for name, templates := range map[string][]signature.Template{"key": e.Key, "type": e.Type, "account": e.Account} {
		for _, t := range templates {
			for _, r := range t.Refs() {
				if !slices.Contains([]signature.Kind{signature.JSON, signature.Root, signature.EventType,
					signature.Content}, r.Kind) {
					c.Fail("path", "the source's events.%s is read from %s, which an event that the API lists does "+
						"not have: read it from the body, or leave events out", name, r)
				}
			}
		}
	}
}
