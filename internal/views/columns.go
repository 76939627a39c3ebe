package views

import (
	"bytes"
	"cmp"
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/provider/declared"
)

// Kind says how a column reads its field.
type Kind string

// The kinds of columns, in the words of a column's comment.
const (
	Text        Kind = "text"
	IndexedText Kind = "text of at most 2000 bytes"
	Boolean     Kind = "boolean"
	Whole       Kind = "whole number"
	Number      Kind = "number"
	UnixTime    Kind = "Unix time in seconds"
	UnixMS      Kind = "Unix time in milliseconds"
	Time        Kind = "RFC 3339 time"
	JSON        Kind = "JSON"
)

// kinds has the SQL type of each kind, and the expression that reads a field: $1 stands for the
// state and $2 for the field's name. No expression fails, whatever the field holds.
var kinds = map[Kind]struct{ sqlType, expression string }{
	Text:        {"text", "($1 ->> $2)"},
	IndexedText: {"text", "postern.as_indexed_text($1 ->> $2)"},
	Boolean:     {"boolean", "postern.as_boolean($1 -> $2)"},
	Whole:       {"bigint", "postern.as_bigint($1 -> $2)"},
	Number:      {"numeric", "postern.as_numeric($1 ->> $2)"},
	UnixTime:    {"timestamp with time zone", "postern.as_unix_time($1 -> $2)"},
	UnixMS:      {"timestamp with time zone", "postern.as_unix_ms_time($1 -> $2)"},
	Time:        {"timestamp with time zone", "postern.as_time($1 ->> $2)"},
	JSON:        {"jsonb", "nullif($1 -> $2, 'null')"},
}

// Column is a column of a view that reads a field of the state.
type Column struct {
	Name string `json:"name"`
	// Field is the name of the field in the state.
	Field string `json:"field"`
	Kind  Kind   `json:"kind"`
	Type  string `json:"type"`
}

// Choices are the kinds that a user can choose, by their words.
var Choices = map[string]Kind{"text": Text, "boolean": Boolean, "bigint": Whole, "numeric": Number, "jsonb": JSON,
	"unix": UnixTime, "unix_ms": UnixMS, "rfc3339": Time}

// expression reads the column's field from a state.
func (c Column) expression(state string) string {
	before, after, _ := strings.Cut(kinds[c.Kind].expression, "$1")
	operator, end, _ := strings.Cut(after, "$2")
	return before + state + operator + quoteLiteral(c.Field) + end
}

// leadingColumns is how many fixed columns are before those that read fields.
const leadingColumns = 2

// fixedColumns are the columns that every view has. Each reads columns of the objects.
var fixedColumns = []part{
	{name: "id", reads: "object_id", comment: "The provider's id of the object."},
	{name: "account", reads: "account", comment: "Tenant inside the source. Empty where there is none."},
	{name: "deleted", reads: "deleted OR o.version_at = -9223372036854775808 AND o.refetch_after = 0",
		comment: "The object is deleted, or no stored event makes it any more."},
	{name: "ambiguous", reads: "ambiguous", comment: "The tied states do not tell which of them is current."},
	{name: "revision", reads: "revision", comment: "Grows with each change of state, deleted or ambiguous."},
	{name: "updated_at", reads: "updated_at", comment: "Time of the last change of this row."},
	{name: "state", reads: "state",
		comment: "The object's state. Null after redaction, or where the provider sent none."},
}

// isFixed reports whether a name is that of a fixed column.
func isFixed(name string) bool {
	return slices.ContainsFunc(fixedColumns, func(p part) bool { return p.name == name })
}

// The comments of a column are `Field "created": Unix time in seconds.` They are where the field
// and the kind are stored.
const fieldComment = "Field "

func (c Column) comment() string {
	return fieldComment + quoteJSON(c.Field) + ": " + string(c.Kind) + "."
}

// readComment reads a column's comment; false if it is not one of comment.
func readComment(name, text string) (Column, bool) {
	text, ok := strings.CutPrefix(text, fieldComment)
	field, kind, ok2 := cutJSON(text)
	c := Column{Name: name, Field: field, Kind: Kind(strings.TrimSuffix(strings.TrimPrefix(kind, ": "), "."))}
	k, ok3 := kinds[c.Kind]
	c.Type = k.sqlType
	return c, ok && ok2 && ok3
}

// quoteJSON writes a text as JSON, and does not escape what is only special in HTML.
func quoteJSON(text string) string {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	_ = e.Encode(text) // a text can always be encoded, to a buffer
	return strings.TrimSuffix(b.String(), "\n")
}

// cutJSON reads a text in JSON at the beginning of another, and returns the rest.
func cutJSON(text string) (first, rest string, ok bool) {
	d := json.NewDecoder(strings.NewReader(text))
	err := d.Decode(&first)
	return first, text[min(int(d.InputOffset()), len(text)):], err == nil
}

// seenField is what a sample of states shows of one field: how many values there are of each type
// of JSON without null, and what all of them are.
type seenField struct {
	Name                                         string
	Texts, Booleans, Numbers, Others             int
	Whole, Seconds, Milliseconds, Times, Numeric bool
	// IsID: every value is the object's id.
	IsID bool
}

// clockNames are names of fields that may hold a time as a number, where the provider describes
// none.
var clockNames = []string{"created", "updated", "date", "time", "timestamp", "expires", "*_at", "*At", "*_on", "*_date",
	"*Date", "*_time", "*Time", "*_timestamp", "*Timestamp", "*_ts"}

// kind returns the kind of a column for the field, and "" if the sample has no value and the
// provider does not describe the field.
func (f seenField) kind(described provider.FieldUnit) Kind {
	switch {
	case f.Others > 0:
		return JSON
	case f.Texts+f.Booleans+f.Numbers == 0 && described == provider.UnixSeconds:
		return UnixTime
	case f.Texts+f.Booleans+f.Numbers == 0:
		return ""
	case f.Booleans > 0 && f.Texts+f.Numbers == 0:
		return Boolean
	case f.Numbers > 0 && f.Texts+f.Booleans == 0:
		return f.numberKind(described)
	case f.Texts > 0 && f.Booleans+f.Numbers == 0 && f.Times:
		return Time
	case f.Texts > 0 && f.Booleans == 0 && f.Numeric && described == provider.DecimalText:
		return Number
	}
	return Text
}

func (f seenField) numberKind(described provider.FieldUnit) Kind {
	isClock := declared.Matches(clockNames, f.Name)
	switch {
	case described == provider.UnixSeconds, isClock && f.Seconds:
		return UnixTime
	case isClock && f.Milliseconds:
		return UnixMS
	case f.Whole:
		return Whole
	}
	return Number
}

// fits reports whether all values of the sample fit into a column of a kind.
func (f seenField) fits(k Kind) bool {
	scalars := f.Texts + f.Booleans + f.Numbers
	switch k {
	case Text, IndexedText, JSON:
		return true
	case Boolean:
		return f.Booleans == scalars && f.Others == 0
	case Whole:
		return f.Numbers == scalars && f.Others == 0 && (f.Whole || scalars == 0)
	case Number:
		return f.Numbers+f.Texts == scalars && f.Others == 0 && (f.Numeric || f.Texts == 0)
	case Time:
		return f.Texts == scalars && f.Others == 0 && (f.Times || scalars == 0)
	}
	return f.Numbers == scalars && f.Others == 0
}

// unitOf returns the unit of a field as the provider describes it; "" if it does not.
func unitOf(p provider.Provider, field string) provider.FieldUnit {
	if catalog, ok := p.(provider.FieldCatalog); ok {
		for unit, names := range catalog.FieldUnits() {
			if declared.Matches(names, field) {
				return unit
			}
		}
	}
	return ""
}

// addColumns returns the columns for seen fields that have none yet. noValue and beyond are the
// numbers of fields that get none: no value is known, or the view has the most columns it may have.
// No new column has the name of a reserved word.
func addColumns(have []Column, seen []seenField, chosen map[string]Kind, reserved []string,
	unit func(string) provider.FieldUnit) (added []Column, noValue, beyond int) {
	names, fields := map[string]bool{}, map[string]bool{}
	for _, c := range have {
		names[c.Name], fields[c.Field] = true, true
	}
	// A field whose name is a column's name gets it before another field that is only similar.
	seen = slices.Clone(seen)
	for _, field := range slices.Sorted(maps.Keys(chosen)) { // it may have no value in the sample
		if !slices.ContainsFunc(seen, func(f seenField) bool { return f.Name == field }) {
			seen = append(seen, seenField{Name: field})
		}
	}
	slices.SortStableFunc(seen, func(a, b seenField) int {
		exact := func(f seenField) int { return map[bool]int{true: 0, false: 1}[safeName(f.Name) == f.Name] }
		return exact(a) - exact(b)
	})
	for _, f := range seen {
		kind := cmp.Or(chosen[f.Name], f.kind(unit(f.Name)))
		switch {
		case fields[f.Name], f.Name == "id" && f.IsID:
		case kind == "":
			noValue++
		case len(have)+len(added) >= maxColumns:
			beyond++
		default:
			name := safeName(f.Name)
			if isFixed(name) || slices.Contains(reserved, name) {
				name += "_field"
			}
			name = uniqueName(name, f.Name, func(n string) bool { return names[n] || isFixed(n) })
			names[name] = true
			added = append(added, Column{Name: name, Field: f.Name, Kind: kind, Type: kinds[kind].sqlType})
		}
	}
	slices.SortFunc(added, func(a, b Column) int { return strings.Compare(a.Name, b.Name) })
	return added, noValue, beyond
}

// quote writes a name in quotes, so that no word is reserved.
func quote(names ...string) string { return pgx.Identifier(names).Sanitize() }
