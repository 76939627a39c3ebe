package console

import (
	"context"
	"maps"
	"net/url"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
)

// list describes a page that lists things. Its address has the parameters of the operation, as the
// API and the command have them.
type list[P, T any] struct {
	title, text string
	// command lists the same things (events list), and api is the path in the API.
	command, api string
	// main are the parameters that are always visible in the filter.
	main    []string
	presets []preset
	// aliases are second names of parameters. The filter has them only where they are set.
	aliases []string
	columns []string
	row     func(r *request, item *T) []cell
	read    func(context.Context, *pgxpool.Pool, P) (events.Page[T], error)
	empty   string
	// more is the link to the next page; "": Show older ones.
	more string
	// follow returns the id of a thing, after which the list can follow new events; nil: it cannot.
	follow func(item *T) int64
	// extra are blocks above the list; nil: none.
	extra func(ctx context.Context, r *request, p *P) ([]block, error)
	// actions are changes of everything that the filter selects; nil: none.
	actions func(r *request, p *P) []action
}

// preset is a useful selection of a list.
type preset struct{ label, query string }

// formMark is the parameter of a submitted filter form, whose empty fields do not count.
const formMark = "filter"

// liveMark is the parameter of a list that follows new events.
const liveMark = "live"

// page returns the page of a list.
func (l list[P, T]) page() page {
	return func(ctx context.Context, r *request) (*view, error) {
		texts := r.texts
		live := l.follow != nil && texts[liveMark] == "1"
		delete(texts, liveMark)
		var p P
		filter, err := r.filterOf(ctx, p, l.main, l.aliases, l.presets)
		if err == nil {
			err = operations.Parse(&p, texts)
		}
		if err != nil {
			return nil, err
		}
		found, err := l.read(ctx, r.c.Pages, p)
		if err != nil {
			return nil, err
		}
		v := &view{Title: l.title, Text: l.text}
		if l.extra != nil {
			if v.Blocks, err = l.extra(ctx, r, &p); err != nil {
				return nil, err
			}
		}
		t := &table{Columns: l.columns, Rows: rows(r, found.Items, l.row), Empty: l.empty, MoreLabel: l.more,
			Command: commandLine(l.command, texts), Curl: curlLine(r, l.api, texts)}
		if found.Next != "" {
			next := maps.Clone(texts)
			next["cursor"] = found.Next
			t.More = r.URL.Path + "?" + encode(next)
			t.SearchedTo = r.at(found.SearchedTo).Text
		}
		if l.follow != nil {
			var newest int64
			for i := range found.Items {
				newest = max(newest, l.follow(&found.Items[i]))
			}
			r.offerLive(t, texts, live, newest)
		}
		b := block{Table: t, Filter: filter}
		if len(v.Blocks) > 0 { // the filter selects the other blocks too
			v.Blocks = slices.Insert(v.Blocks, 0, block{Filter: filter})
			b.Filter = nil
		}
		if l.actions != nil {
			b.Actions = l.actions(r, &p)
		}
		v.Blocks = append(v.Blocks, b)
		return v, nil
	}
}

// embed returns a table of things of the list for another page.
func (l list[P, T]) embed(r *request, items []T, empty string) *table {
	return &table{Columns: l.columns, Rows: rows(r, items, l.row), Empty: empty}
}

// queryTexts returns the parameters of an address. A submitted form leads to the address of its
// page: without empty fields and surrounding spaces, and with times that name their zone. Errors:
// events.ErrInvalid for a doubled parameter, *redirectError.
func (r *request) queryTexts() (map[string]string, error) {
	u := r.URL
	texts := map[string]string{}
	for name, given := range u.Query() {
		if len(given) > 1 {
			return nil, admin.NewProblem("invalid", "The parameter "+visible(name)+" is in the address more than once.")
		}
		texts[name] = given[0]
	}
	if _, ok := texts[formMark]; !ok {
		return texts, nil
	}
	delete(texts, formMark)
	for name, text := range texts {
		texts[name] = strings.TrimSpace(text)
		if slices.Contains(timeParams, name) {
			texts[name] = r.localTime(texts[name], strings.HasSuffix(name, "until"))
		}
	}
	maps.DeleteFunc(texts, func(_, text string) bool { return text == "" })
	to := u.Path
	if len(texts) > 0 {
		to += "?" + encode(texts)
	}
	return nil, &redirectError{to}
}

// timeParams are the parameters of filters that are times.
var timeParams = []string{"since", "until", "occurred_since", "occurred_until", "time"}

// localTime reads a time as the pages show it: a date, the last time of a clock, or both, in the
// operator's zone. The result names the zone. When clocks go back, an hour comes twice: isEnd takes
// the second one. Another text stays as it is.
func (r *request) localTime(text string, isEnd bool) string {
	for _, layout := range []string{time.DateTime, "2006-01-02 15:04", time.DateOnly, time.TimeOnly, "15:04"} {
		at, err := time.ParseInLocation(layout, text, r.zone)
		if err != nil {
			continue
		}
		if at.Year() == 0 { // the layout has no date
			y, m, d := r.now.In(r.zone).Date()
			at = time.Date(y, m, d, at.Hour(), at.Minute(), at.Second(), at.Nanosecond(), r.zone)
			if at.After(r.now) { // a page from before midnight
				at = at.AddDate(0, 0, -1)
			}
		}
		other := at.Add(-time.Hour)
		if isEnd {
			other = at.Add(time.Hour)
		}
		if other.Format(time.DateTime) == at.Format(time.DateTime) {
			at = other
		}
		return at.Format(time.RFC3339Nano)
	}
	return text
}

func encode(texts map[string]string) string {
	values := url.Values{}
	for name, text := range texts {
		values.Set(name, text)
	}
	return values.Encode()
}

// timeSuggestions are relative times that a filter offers.
var timeSuggestions = []value{{"", "15m"}, {"", "1h"}, {"", "6h"}, {"", "24h"}, {"", "7d"}, {"", "30d"}}

// filterOf makes the form of a page from the parameters of its operation. Call it before they are
// read: a page about an invalid parameter has the form too.
func (r *request) filterOf(ctx context.Context, params any, main, aliases []string, presets []preset) (*filter,
	error) {
	texts, f := r.texts, &filter{Path: r.URL.Path}
	r.filter = f
	for _, p := range operations.Params(params, "cursor") {
		if texts[p.Name] == "" && slices.Contains(aliases, p.Name) {
			continue
		}
		in := inputOf(&p)
		in.Value = texts[p.Name]
		if in.Kind == "select" && in.Value != "" && !slices.ContainsFunc(in.Choices, func(v value) bool {
			return v.Value == in.Value
		}) {
			in.Choices = append(in.Choices, value{in.Value, in.Value}) // it stays until the operator corrects it
		}
		if slices.Contains(main, p.Name) {
			f.Main = append(f.Main, in)
			continue
		}
		f.Others = append(f.Others, in)
		f.OthersSet = f.OthersSet || in.Value != ""
	}
	slices.SortFunc(f.Main, func(a, b input) int {
		return slices.Index(main, a.Name) - slices.Index(main, b.Name)
	})
	for _, p := range presets {
		f.Presets = append(f.Presets, link(p.label, f.Path+p.query))
	}
	return f, r.offerSources(ctx, f.Main)
}

// maxOfferedSources is the number of sources up to which a filter offers them in a list.
const maxOfferedSources = 200

// offerSources makes the field of a source a choice of those in the log.
func (r *request) offerSources(ctx context.Context, inputs []input) error {
	i := slices.IndexFunc(inputs, func(in input) bool { return in.Name == "source" })
	if i < 0 {
		return nil
	}
	known, err := events.RegisterSources(ctx, r.c.Pages, nil)
	if err != nil || len(known.Number) > maxOfferedSources {
		return err
	}
	in := &inputs[i]
	in.Kind, in.Choices = "select", nil
	for _, name := range slices.Sorted(maps.Keys(known.Number)) {
		in.Choices = append(in.Choices, value{name, name})
	}
	if _, ok := known.Number[in.Value]; !ok && in.Value != "" {
		in.Choices = append(in.Choices, value{in.Value, in.Value})
	}
	return nil
}

// inputOf returns the control of a parameter.
func inputOf(p *operations.Param) input {
	in := input{Name: p.Name, Label: label(p.Name), Help: p.Help, Kind: "text"}
	switch t := p.Type; {
	case len(p.Values) > 0:
		in.Kind = "select"
		for _, v := range p.Values {
			in.Choices = append(in.Choices, value{label(v), v})
		}
	case t == reflect.TypeFor[operations.Time]():
		in.Suggestions = timeSuggestions
	case t == reflect.TypeFor[*bool]():
		in.Kind, in.Choices = "select", []value{{"yes", "true"}, {"no", "false"}}
	case t.Kind() == reflect.Bool: // false selects nothing
		in.Kind, in.Choices = "select", []value{{"yes", "true"}}
	case p.Name == "limit":
		in.Kind, in.Choices = "select", []value{{"25", "25"}, {"50", "50"}, {"100", "100"}, {"200", "200"}}
	}
	return in
}

// label is a parameter's name in words.
func label(name string) string { return strings.ReplaceAll(name, "_", " ") }

// commandLine is the command for the same list; "" on a later page: commands have no cursors, and
// list as much as their limit says.
func commandLine(command string, texts map[string]string) string {
	if command == "" || texts["cursor"] != "" {
		return ""
	}
	line := "postern " + command
	for _, name := range slices.Sorted(maps.Keys(texts)) {
		separator := " "
		if texts[name] == "true" || texts[name] == "false" { // of a flag that needs no value
			separator = "="
		}
		line += " --" + strings.ReplaceAll(name, "_", "-") + separator + quote(texts[name])
	}
	return line
}

// curlLine is the request for the same list.
func curlLine(r *request, api string, texts map[string]string) string {
	if api == "" {
		return ""
	}
	scheme := "http"
	if r.TLS != nil {
		scheme = "https"
	}
	address := scheme + "://" + r.Host + api
	if len(texts) > 0 {
		address += "?" + encode(texts)
	}
	line := "curl -sS "
	if r.c.RequireTokens {
		line += `-H "Authorization: Bearer $POSTERN_TOKEN" `
	}
	return line + quote(address)
}

// quote quotes a text for a shell where necessary.
func quote(s string) string {
	plain := func(c rune) bool {
		return c < 128 && (c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' ||
			strings.ContainsRune("_-.:/,@+", c))
	}
	if s != "" && !strings.ContainsFunc(s, func(c rune) bool { return !plain(c) }) {
		return s
	}
	return "'" + strings.ReplaceAll(visible(s), "'", `'\''`) + "'"
}
