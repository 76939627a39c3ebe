package restfake

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// thing is an element of a list.
type thing struct {
	id      string
	changed time.Time
	object  any
}

// list returns a page of a list between two times. The order is by id, or for the kind window by
// the time of change. Each element is in a member of its own.
func (f *Fake) list(header http.Header, kind string, at *url.URL, member string,
	between func(since, until time.Time) []thing) (int, any) {
	q := at.Query()
	limit, err := strconv.Atoi(cmp.Or(q.Get("limit"), "1000"))
	since, bad1 := timeParameter(q.Get("since"), time.Time{})
	until, bad2 := timeParameter(q.Get("until"), f.Now())
	if err != nil || bad1 != nil || bad2 != nil {
		return http.StatusBadRequest, errorBody("no_such_query")
	}
	all := between(since, until)
	after := q.Get("after")
	if kind == "window" {
		slices.SortStableFunc(all, func(a, b thing) int { return a.changed.Compare(b.changed) })
		after = ""
	}
	all = slices.DeleteFunc(all, func(t thing) bool { return after != "" && t.id <= after })
	number, _ := strconv.Atoi(cmp.Or(q.Get("page"), "1"))
	if strings.HasPrefix(kind, "page") {
		all = all[min(len(all), (number-1)*limit):]
	}
	more := len(all) > limit
	all = all[:min(limit, len(all))]
	items := []any{}
	for _, t := range all {
		items = append(items, map[string]any{member: t.object})
	}
	page := map[string]any{"items": items}
	if kind == "whole" {
		return http.StatusOK, items
	}
	if kind == "last" {
		page["more"] = more
	}
	if more {
		last := all[len(all)-1].id
		q.Set("after", last)
		switch next := "?" + q.Encode(); kind {
		case "field":
			page["meta"] = map[string]any{"next": last}
		case "page":
			page["meta"] = map[string]any{"next": number + 1}
		case "page_link":
			q.Del("after")
			q.Set("page", strconv.Itoa(number+1))
			header.Set("Link", "<?"+q.Encode()+`>; rel="next"`)
		case "url":
			page["meta"] = map[string]any{"next": at.Path + next}
		case "link":
			header.Set("Link", `<https://`+"elsewhere.example"+`/>; rel="prev", <`+next+
				`>; title="a, b"; rel="last next"`)
		}
	}
	return http.StatusOK, page
}

// eventsBetween returns the events between two times, both excluded, in their order.
func (f *Fake) eventsBetween(since, until time.Time) (all []thing) {
	for i, body := range f.events {
		if at := f.times[i]; at.After(since) && at.Before(until) {
			all = append(all, thing{fmt.Sprintf("%06d", i), at, json.RawMessage(body)})
		}
	}
	return all
}

func timeParameter(text string, otherwise time.Time) (time.Time, error) {
	if text == "" {
		return otherwise, nil
	}
	return time.Parse(time.RFC3339, text)
}

// objectsChangedBetween returns the things that changed after since and not after until, as lists
// show them, by id.
func (f *Fake) objectsChangedBetween(since, until time.Time) (all []thing) {
	at := f.Now().Add(-f.ListAge - f.randomAge(f.options.Faults.Lag) - f.randomAge(f.options.Faults.ListLag))
	for _, id := range slices.Sorted(maps.Keys(f.things)) {
		o := f.object(id, at)
		if o == nil || f.hidden[id] {
			continue
		}
		changed, err := time.Parse(time.RFC3339, o["changed"].(string))
		if err != nil {
			panic(err) // object wrote it
		}
		if changed.After(since) && !changed.After(until) {
			all = append(all, thing{id, changed, o})
		}
	}
	return all
}
