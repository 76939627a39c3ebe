package restfake

import (
	"cmp"
	"maps"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"time"
)

// thing is a listed thing.
type thing struct {
	id      string
	changed time.Time
	object  map[string]any
}

// list answers a page of a kind: of things by id or, for window, by their time of change.
func (f *Fake) list(header http.Header, kind string, at *url.URL) (int, any) {
	q := at.Query()
	limit, err := strconv.Atoi(cmp.Or(q.Get("limit"), "1000"))
	since, bad1 := moment(q.Get("since"), time.Time{})
	until, bad2 := moment(q.Get("until"), f.now)
	if err != nil || bad1 != nil || bad2 != nil {
		return http.StatusBadRequest, failure("no_such_query")
	}
	all := f.changed(since, until)
	after := q.Get("after")
	if kind == "window" {
		slices.SortStableFunc(all, func(a, b thing) int { return a.changed.Compare(b.changed) })
		after = ""
	}
	all = slices.DeleteFunc(all, func(t thing) bool { return after != "" && t.id <= after })
	more := len(all) > limit
	all = all[:min(limit, len(all))]
	items := []any{}
	for _, t := range all {
		items = append(items, map[string]any{"thing": t.object})
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
		case "url":
			page["meta"] = map[string]any{"next": at.Path + next}
		case "link":
			header.Set("Link", `<https://`+"elsewhere.example"+`/>; rel="prev", <`+next+`>; title="a, b"; rel="last next"`)
		}
	}
	return http.StatusOK, page
}

func moment(text string, otherwise time.Time) (time.Time, error) {
	if text == "" {
		return otherwise, nil
	}
	return time.Parse(time.RFC3339, text)
}

// changed are the things that changed between two times, neither of which belongs to it, as lists know them, by id.
func (f *Fake) changed(since, until time.Time) (all []thing) {
	for _, id := range slices.Sorted(maps.Keys(f.things)) {
		o := f.object(id, f.now.Add(-f.Late))
		if o == nil {
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
