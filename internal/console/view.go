package console

import (
	"fmt"
	"net/url"
	"strconv"
	"strings"
	"time"
	"unicode"

	"github.com/postern-gateway/postern/internal/events"
)

// view is what a page shows: a title, a sentence or two, and blocks.
type view struct {
	Title string
	// Kind is a word above the title: the kind of the thing.
	Kind string
	// Lead are cells after the title, such as a status.
	Lead []cell
	// Text explains the page in a sentence or two.
	Text string
	// Notes are messages above the blocks.
	Notes  []note
	Blocks []block
	// Refresh is the number of seconds after which the page's content is read again; 0: never.
	Refresh int
	// Login, where set, makes the page a form for a token.
	Login *loginForm
}

// note is a message. Tone is info, good, warning or bad.
type note struct {
	Tone string
	Text string
	Link *cell
}

// block is a part of a page. It shows those of its parts that are set, in this order.
type block struct {
	// ID is the anchor of the block, and Heading its heading; both may be empty.
	ID, Heading string
	Text        string
	Notes       []note
	// Presets are links to useful selections.
	Presets []cell
	Filter  *filter
	Fields  []field
	Chart   *chart
	// Charts are side by side where there is room, each with its label as heading.
	Charts   []*chart
	Timeline *timeline
	Orders   *orders
	Table    *table
	Document *document
	Actions  []action
	// Folded shows only the heading until the operator opens it.
	Folded bool
}

// field is a name with its values. A page leaves out a field without values.
type field struct {
	Name  string
	Cells []cell
}

// table is a list of things. The first cell of a row is usually its link.
type table struct {
	// Label names the table among the others of the page. The page sets it.
	Label   string
	Columns []string
	Rows    [][]cell
	// Empty is shown where there are no rows. It says what would be here, and the next step.
	Empty string
	// More is the address of the next page, and SearchedTo how far back a search has read.
	More, SearchedTo string
	// MoreLabel is the text of the link to the next page; "": Show older ones.
	MoreLabel string
	// Live is the stream of new rows, and Nonce the page's nonce with it; "" if the list does not
	// follow. LiveLink starts or stops that.
	Live, Nonce string
	LiveLink    cell
	// Command and Curl are the same list as a command and as an HTTP request.
	Command, Curl string
}

// rows returns the rows of a table, one for each thing.
func rows[T any](r *request, all []T, row func(*request, *T) []cell) (found [][]cell) {
	for i := range all {
		found = append(found, row(r, &all[i]))
	}
	return found
}

// cell is a value with its form.
type cell struct {
	Text string
	// Href is a path of the console; "" for plain text.
	Href string
	// Sub is a second line in small letters, and Title a text that appears on pointing.
	Sub, Title string
	// Tone colours a badge: good, info, warning, bad or quiet. Badge shows the text as a badge.
	Tone  string
	Badge bool
	// Code shows an id, a key or a value; Number aligns to the right.
	Code, Number bool
	// Wide keeps a text from becoming a narrow column.
	Wide bool
	// Time is the time in RFC 3339 that the text shows.
	Time string
	// Key is the key that follows the link.
	Key string
	// Select is the id that a checkbox adds to the form of the page's selection; "": no checkbox.
	Select string
	// Bar is a bar of 0 to 100 percent.
	Bar    int
	HasBar bool
}

// action is a form that requests one change from the API.
type action struct {
	// Label names the change; Text says what it does. Danger marks one that cannot be undone.
	Label, Text string
	Danger      bool
	// Href is the page that prepares the change; where it is set, the action is a link.
	Href string
	// Path is the path of the API, and Values its fixed parameters.
	Path   string
	Values []value
	// Paths are paths of the API to choose from, each with its name. The form changes the things
	// whose checkboxes are set.
	Paths []value
	// Empty are names of parameters that are sent with an empty value. Another empty value is not
	// sent.
	Empty []string
	// Inputs are parameters that the operator enters.
	Inputs []input
	// Reason is "required", "optional" or "" for none.
	Reason string
	// Then is the page after the change; {id} stands for the id in the response.
	Then string
	// Disabled is why the operator may not do it; "" if he may.
	Disabled string
	// Key is the idempotency key of the form.
	Key string
	// Open shows the form at once, without a button that opens it.
	Open bool
	// Expected is the number of events that a preview showed. Typed asks the operator for it.
	Expected int64
	Typed    bool
}

// ExpectedText is the number with grouped digits.
func (a action) ExpectedText() string { return groupDigits(a.Expected) }

type value struct{ Name, Value string }

// input is a parameter in a form.
type input struct {
	Name, Label, Help, Value string
	// Kind is the type of the control: text, select, number, checkbox, textarea.
	Kind    string
	Choices []value
	// Unset is the text of the empty choice; "": any.
	Unset string
	// Suggestions are values to choose from, in a text. A Name explains its value.
	Suggestions []value
	Required    bool
}

// filter is the form of a list.
type filter struct {
	// Path is where the form leads, and Label the text of its button; "": Apply.
	Path, Label string
	// Main are the parameters that are always visible, and Others the rest.
	Main, Others []input
	// OthersSet: one of the others is set.
	OthersSet bool
	// Presets are links to useful selections.
	Presets []cell
	// Hidden are parameters that stay.
	Hidden []value
}

type loginForm struct{ Next, Error string }

// Constructors of cells.

func text(s string) cell { return cell{Text: visible(s)} }

func code(s string) cell { return cell{Text: visible(s), Code: true} }

func link(s, href string) cell { return cell{Text: visible(s), Href: href} }

func codeLink(s, href string) cell { return cell{Text: visible(s), Href: href, Code: true} }

func number[T int | int32 | int64](n T) cell {
	return cell{Text: groupDigits(int64(n)), Number: true}
}

func yes(is bool, label, tone string) cell {
	if !is {
		return cell{}
	}
	return cell{Text: label, Badge: true, Tone: tone}
}

// badge shows a status in its tone.
func badge(status string) cell {
	return cell{Text: strings.ReplaceAll(status, "_", " "), Badge: true, Tone: toneOf[status]}
}

// toneOf is the tone of each status; those that are not here are quiet.
var toneOf = map[string]string{
	"applied": "good", "done": "good", "repaired": "good", "ready": "good", "ok": "good",
	"pending": "info", "running": "info", "queued": "info", "planned": "info",
	"stale": "quiet", "unchanged": "quiet", "ignored": "quiet", "cancelled": "quiet", "superseded": "quiet",
	"ambiguous": "warning", "failed": "warning", "awaiting_approval": "warning", "paused": "warning",
	"review":            "warning",
	"awaiting_decision": "warning", "unrepaired": "warning", "warn": "warning", "warning": "warning",
	"needs_review": "warning", "unknown": "warning", "reserved": "info", "checking": "info", "skipped": "quiet",
	"dead": "bad", "rejected": "bad", "expired": "bad", "error": "bad", "fail": "bad",
}

// at shows a time in the operator's zone, and its age.
func (r *request) at(i events.Instant) cell { return r.time(i.Time) }

func (r *request) time(t time.Time) cell {
	if t.IsZero() {
		return cell{}
	}
	layout := "2006-01-02 15:04:05"
	if t.Nanosecond() != 0 {
		layout += ".000"
	}
	shown := t.In(r.zone).Format(layout)
	return cell{Text: shown, Time: t.UTC().Format(time.RFC3339Nano), Title: t.UTC().Format(time.RFC3339Nano) + ", " +
		agoText(r.now.Sub(t))}
}

// shortTime shows a time of today without its date.
func (r *request) shortTime(t time.Time) cell {
	c := r.time(t)
	if !t.IsZero() && t.In(r.zone).Format(time.DateOnly) == r.now.In(r.zone).Format(time.DateOnly) {
		_, c.Text, _ = strings.Cut(c.Text, " ")
	}
	return c
}

// agoText says how long ago something was, or in how long it is.
func agoText(d time.Duration) string {
	if d < 0 {
		return "in " + durationText(-d)
	}
	return durationText(d) + " ago"
}

// durationText shows the largest one or two units of a duration.
func durationText(d time.Duration) string {
	switch {
	case d < time.Second:
		return fmt.Sprintf("%d ms", d.Milliseconds())
	case d < time.Minute:
		return strconv.FormatFloat(d.Seconds(), 'g', 3, 64) + " s"
	case d < time.Hour:
		return twoUnits(int(d.Minutes()), "min", int(d.Seconds())%60, "s")
	case d < 48*time.Hour:
		return twoUnits(int(d.Hours()), "h", int(d.Minutes())%60, "min")
	}
	return fmt.Sprintf("%d days", int(d.Hours())/24)
}

func twoUnits(n int, unit string, rest int, smaller string) string {
	if rest == 0 {
		return fmt.Sprintf("%d %s", n, unit)
	}
	return fmt.Sprintf("%d %s %d %s", n, unit, rest, smaller)
}

func groupDigits(n int64) string {
	digits := strconv.FormatInt(n, 10)
	start := len(digits) % 3
	if n < 0 {
		return digits
	}
	var b strings.Builder
	b.WriteString(digits[:start])
	for i := start; i < len(digits); i += 3 {
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(digits[i : i+3])
	}
	return b.String()
}

// visible shows control characters, and characters that change the direction of text, by their
// code. Others could make a page look different from its data.
func visible(s string) string {
	if !strings.ContainsFunc(s, isHidden) {
		return strings.ToValidUTF8(s, "�")
	}
	var b strings.Builder
	for _, c := range strings.ToValidUTF8(s, "�") {
		if isHidden(c) {
			fmt.Fprintf(&b, "⟨U+%04X⟩", c)
		} else {
			b.WriteRune(c)
		}
	}
	return b.String()
}

// shown makes texts of data visible in templates. Texts that are visible already stay as they are.
func shown(of any) any {
	if s, ok := of.(string); ok {
		return visible(s)
	}
	return of
}

func isHidden(c rune) bool {
	return c != '\n' && c != '\t' && (unicode.Is(unicode.Cc, c) || unicode.Is(unicode.Cf, c) && c != '\u200d' &&
		c != '\u200c' || c == '\u2028' || c == '\u2029')
}

// wide shows a text that is a sentence in a table.
func wide(c cell) cell {
	c.Wide = true
	return c
}

// button shows a link of a table as a button.
func button(c cell) cell {
	c.Badge = true
	return c
}

// maxTitleRunes limits a text that appears on pointing.
const maxTitleRunes = 1000

// shorten cuts a long text. More of the text appears on pointing.
func shorten(s string, most int) cell {
	runes := []rune(visible(s))
	if len(runes) <= most {
		return cell{Text: string(runes)}
	}
	return cell{Text: string(runes[:most]) + "…", Title: string(runes[:min(len(runes), maxTitleRunes)])}
}

// path builds an address of the console from path elements.
func path(elements ...string) string {
	var b strings.Builder
	b.WriteString(strings.TrimSuffix(Prefix, "/"))
	for _, e := range elements {
		b.WriteByte('/')
		b.WriteString(url.PathEscape(e))
	}
	return b.String()
}

// query appends parameters to an address; those without a value are left out.
func query(address string, namesAndValues ...string) string {
	values := url.Values{}
	for i := 0; i+1 < len(namesAndValues); i += 2 {
		if namesAndValues[i+1] != "" {
			values.Set(namesAndValues[i], namesAndValues[i+1])
		}
	}
	if len(values) == 0 {
		return address
	}
	return address + "?" + values.Encode()
}

// id shows a number of Postern without grouping.
func id(n int64) string { return strconv.FormatInt(n, 10) }
