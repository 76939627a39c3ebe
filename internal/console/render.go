package console

import (
	"bytes"
	"cmp"
	"embed"
	"fmt"
	"html/template"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/admin"
	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
)

//go:embed templates/*.html
var templateFiles embed.FS

func parseTemplates(files *assets) (*template.Template, error) {
	t, err := template.New("").Funcs(template.FuncMap{
		"asset": func(name string) string { return Prefix + "assets/" + files.names[name] },
		"shown": shown,
		"sub":   func(a, b int) int { return a - b },
		"add":   func(a, b int) int { return a + b },
		"mul":   func(a, b int) int { return a * b },
		"isNumber": func(t *table, column int) bool {
			return len(t.Rows) > 0 && column < len(t.Rows[0]) && t.Rows[0][column].Number
		},
		"part": func(of any, f *frame) part { return part{of, f} },
	}).ParseFS(templateFiles, "templates/*.html")
	if err != nil {
		return nil, fmt.Errorf("parse the console's templates: %w", err)
	}
	return t, nil
}

// part is a part of a page together with the page.
type part struct {
	Block any
	Frame *frame
}

// frame is a page with everything around its view.
type frame struct {
	*view
	Instance, Version, Who, Role, Nonce, FormToken, Theme, Zone, Clock, Self, SearchText string
	ReadOnly, LoggedIn, Open, KeysOff                                                    bool
	// Notice is the result of the change before the page.
	Notice *note
	Nav    []navGroup
}

type navGroup struct {
	Heading string
	Items   []navItem
}

type navItem struct {
	Label, Href, Key string
	Current          bool
	// Badge is how many things on the page wait for an operator; "" for none.
	Badge string
}

// navigation is the menu: groups of pages, with the key that opens each after g.
var navigation = []navGroup{
	{"", []navItem{{Label: "Overview", Href: "", Key: "o"}, {Label: "Events", Href: "events", Key: "e"},
		{Label: "Objects", Href: "objects", Key: "b"}}},
	{"Problems", []navItem{{Label: "Rejections", Href: "rejections", Key: "r"},
		{Label: "Failures", Href: "failures", Key: "f"}, {Label: "Conflicts", Href: "conflicts", Key: "c"},
		{Label: "Refetches", Href: "refetches"}, {Label: "Outcomes", Href: "outcomes"}}},
	{"Work", []navItem{{Label: "Runs", Href: "runs", Key: "u"}, {Label: "Schedules", Href: "schedules", Key: "s"},
		{Label: "Effects", Href: "effects", Key: "x"},
		{Label: "Reconciliation", Href: "reconciliation", Key: "d"}}},
	{"Instance", []navItem{{Label: "Sources", Href: "sources", Key: "q"}, {Label: "Health", Href: "health", Key: "h"},
		{Label: "Audit", Href: "audit", Key: "a"},
		{Label: "Retention", Href: "retention", Key: "t"}}},
}

func (r *request) frame(v *view) *frame {
	f := &frame{view: v, Instance: r.c.Name, Version: r.c.Version, Who: r.who.name, Role: string(r.who.role),
		Nonce: r.nonce, FormToken: r.who.formToken, Theme: themeOf(r.Request), Zone: r.zone.String(),
		Clock: r.now.In(r.zone).Format("15:04:05"), Self: r.page(), ReadOnly: r.c.ReadOnly,
		LoggedIn: r.who.name != "", Open: !r.c.RequireTokens, KeysOff: keysOff(r.Request),
		SearchText: r.URL.Query().Get("q")}
	for _, g := range navigation {
		group := navGroup{Heading: g.Heading}
		for _, item := range g.Items {
			if n := r.badges[item.Href]; n > 0 {
				item.Badge = groupDigits(n)
				if n >= operations.MaxWaiting {
					item.Badge += "+"
				}
			}
			item.Href = Prefix + item.Href
			item.Current = r.URL.Path == item.Href || item.Href != Prefix &&
				strings.HasPrefix(r.URL.Path, item.Href+"/")
			group.Items = append(group.Items, item)
		}
		f.Nav = append(f.Nav, group)
	}
	return f
}

// takeNotice returns the result of the change before this page, and deletes it.
func takeNotice(w http.ResponseWriter, r *request) *note {
	cookie, err := r.Cookie(noticeCookie)
	if err != nil || len(cookie.Value) > 4000 {
		return nil
	}
	setCookie(w, r.Request, noticeCookie, "", -1)
	text, err := url.QueryUnescape(cookie.Value)
	switch {
	case err != nil || text == "":
		return nil
	case strings.HasPrefix(text, doneText):
		return &note{Tone: "good", Text: text}
	}
	return &note{Tone: "warning", Text: text}
}

// isEmpty reports whether a field has no value. A page leaves it out.
func isEmpty(f field) bool {
	return !slices.ContainsFunc(f.Cells, func(c cell) bool { return c.Text != "" || c.HasBar })
}

// render writes a page. A template that fails writes nothing of the page.
func (c *Console) render(w http.ResponseWriter, r *request, status int, v *view) {
	for i := range v.Blocks {
		v.Blocks[i].Fields = slices.DeleteFunc(v.Blocks[i].Fields, isEmpty)
		if t := v.Blocks[i].Table; t != nil && len(v.Blocks) > 1 && t.Label == "" {
			t.Label = cmp.Or(v.Blocks[i].Heading, v.Title)
		}
		for j := range v.Blocks[i].Actions {
			if r.who.role != "" {
				r.limitAction(&v.Blocks[i].Actions[j])
			}
		}
	}
	var b bytes.Buffer
	f := r.frame(v)
	if v.Login == nil {
		f.Notice = takeNotice(w, r)
	}
	if err := c.templates.ExecuteTemplate(&b, "page", f); err != nil {
		c.Logger.Error("console page not rendered", "path", r.URL.Path, "error", err)
		http.Error(w, "The page could not be rendered; see the log of the process.", http.StatusInternalServerError)
		return
	}
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.WriteHeader(status)
	_, _ = w.Write(b.Bytes()) // the client may have disconnected
}

// limitAction disables an action that the operator may not request. Of several changes it keeps
// those that he may.
func (r *request) limitAction(a *action) {
	denied := r.mayChange(a.Path)
	if a.Paths != nil {
		denied = r.mayChange(a.Paths[0].Value)
		a.Paths = slices.DeleteFunc(slices.Clone(a.Paths), func(p value) bool { return r.mayChange(p.Value) != "" })
	}
	if r.c.ReadOnly {
		denied = "read-only" // the top of the page says the rest
	}
	a.Disabled = cmp.Or(denied, a.Disabled)
}

// problemView is the page of an error.
func problemView(r *request, p *admin.Problem) *view {
	v := &view{Kind: fmt.Sprintf("Error %d", p.Status), Title: sentenceCase(p.Title),
		Notes: []note{{Tone: "bad", Text: visible(strings.TrimPrefix(p.Detail, events.ErrInvalid.Error()+": "))}}}
	if matches := matchTable(r, p); matches != nil {
		v.Blocks = []block{{Table: matches}}
	}
	if r.Method == http.MethodPost && r.who.formToken != "" { // not the form of another web site
		v.Notes[0].Text += visible(reasonText(r))
		back := link("Back to the page", r.page())
		v.Notes[0].Link = &back
		if p.Status >= http.StatusInternalServerError && r.URL.Path == changePath && r.c.checkForm(r) == nil {
			v.Blocks = append(v.Blocks, block{Actions: []action{repeatAction(r)}})
		}
	} else if r.Method == http.MethodGet && p.Status >= http.StatusInternalServerError {
		v.Blocks = []block{{Text: "The rest of the console may work. This page was requested at " +
			r.now.In(r.zone).Format(time.TimeOnly) + ".", Fields: []field{{"Try again", []cell{link(r.URL.Path,
			r.URL.RequestURI())}}, {"Still available", []cell{link("Health", path("health"))}}}}}
	}
	if r.filter != nil && p.Status < http.StatusInternalServerError {
		v.Blocks = append(v.Blocks, block{Filter: r.filter})
	}
	return v
}

func loginView(next, problem string) *view {
	return &view{Title: "Log in", Login: &loginForm{ownPath(next), problem}}
}

func sentenceCase(s string) string {
	if s == "" {
		return s
	}
	return strings.ToUpper(s[:1]) + s[1:]
}
