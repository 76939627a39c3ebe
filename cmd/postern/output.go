package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/postern-gateway/postern/internal/terminal"
)

// column is a column of a table.
type column[T any] struct {
	title string
	cell  func(T) any
}

// listPrinter prints a list in several parts, as a table or as one JSON array.
type listPrinter[T any] struct {
	out     io.Writer
	json    bool
	columns []column[T]
	// emptyText is printed for an empty table; "" for none.
	emptyText string
	printed   int
	// pending are rows that are not printed yet.
	pending []T
}

// alignedRows is how many rows addOne collects before it prints them aligned.
const alignedRows = 100

// addOne adds a row to a table whose rows are found one by one. It prints up to alignedRows rows
// together, so that their columns are aligned; end prints the rest.
func (s *listPrinter[T]) addOne(item T) error {
	s.pending = append(s.pending, item)
	if !s.json && len(s.pending) < alignedRows {
		return nil
	}
	return s.flush()
}

func (s *listPrinter[T]) flush() error {
	items := s.pending
	s.pending = nil
	return s.add(items)
}

func (s *listPrinter[T]) add(items []T) error {
	if s.json {
		return s.addJSON(items)
	}
	if len(items) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	if s.printed == 0 {
		fmt.Fprintln(w, s.joinCells(func(c column[T]) string { return c.title }))
	}
	for _, item := range items {
		fmt.Fprintln(w, s.joinCells(func(c column[T]) string { return orDash(escapeControl(toText(c.cell(item)))) }))
	}
	s.printed += len(items)
	return w.Flush()
}

// toText formats a value; nil and a nil pointer become "".
func toText(value any) string {
	v := reflect.ValueOf(value)
	if v.Kind() == reflect.Pointer {
		v = v.Elem()
	}
	if !v.IsValid() {
		return ""
	}
	return fmt.Sprint(v.Interface())
}

func (s *listPrinter[T]) joinCells(cell func(column[T]) string) string {
	var cells []string
	for _, c := range s.columns {
		cells = append(cells, cell(c))
	}
	return strings.Join(cells, "\t")
}

func (s *listPrinter[T]) addJSON(items []T) error {
	for _, item := range items {
		b, err := json.Marshal(item)
		if err != nil {
			return err
		}
		before := ",\n"
		if s.printed == 0 {
			before = "[\n"
		}
		if _, err := fmt.Fprintf(s.out, "%s%s", before, b); err != nil {
			return err
		}
		s.printed++
	}
	return nil
}

// end ends the list.
func (s *listPrinter[T]) end() error {
	if err := s.flush(); err != nil {
		return err
	}
	var err error
	switch {
	case s.json && s.printed == 0:
		_, err = fmt.Fprintln(s.out, "[]")
	case s.json:
		_, err = fmt.Fprintln(s.out, "\n]")
	case s.printed == 0 && s.emptyText != "":
		_, err = fmt.Fprintln(s.out, s.emptyText)
	}
	return err
}

// printList prints a complete list.
func printList[T any](x *call, items []T, columns []column[T], emptyText string) error {
	list := &listPrinter[T]{out: x.out, json: x.json(), columns: columns, emptyText: emptyText}
	return errors.Join(list.add(items), list.end())
}

// printTable prints rows as a table, whatever the format of the output; nothing without rows.
func printTable[T any](out io.Writer, items []T, columns []column[T]) error {
	return (&listPrinter[T]{out: out, columns: columns}).add(items)
}

// printJSON prints one object.
func printJSON(out io.Writer, v any) error {
	b, err := json.MarshalIndent(v, "", "  ")
	if err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "%s\n", b)
	return err
}

// escapeControl replaces control characters with a dot. Unauthenticated clients may have written
// the text, and a terminal would execute the characters.
func escapeControl(s string) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || unicode.IsPrint(r) {
			return r
		}
		return '·'
	}, s)
}

// escapeControlLines is escapeControl for text with several lines.
func escapeControlLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = escapeControl(strings.ReplaceAll(lines[i], "\t", "    "))
	}
	return strings.Join(lines, "\n")
}

// countOf returns a number with its unit, in the singular or plural.
func countOf(n int, thing string) string {
	if n == 1 {
		return "1 " + thing
	}
	return strconv.Itoa(n) + " " + thing + "s"
}

func orDash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

// indentJSON indents JSON and returns other text unchanged.
func indentJSON(body []byte) string {
	var out bytes.Buffer
	if json.Indent(&out, body, "", "  ") != nil {
		return escapeControlLines(string(body))
	}
	return escapeControlLines(out.String())
}

// printFields prints aligned lines of a name and a value, without empty values.
func printFields(out io.Writer, pairs ...any) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for i := 0; i+1 < len(pairs); i += 2 {
		if text := toText(pairs[i+1]); text != "" {
			fmt.Fprintf(w, "%s\t%s\n", pairs[i], escapeControl(text))
		}
	}
	return w.Flush()
}

// progress shows the state of a long command: on a terminal in one line that it updates, otherwise
// in a new line at an interval.
type progress struct {
	out io.Writer
	// screen is out if out is a terminal.
	screen *terminal.Screen
	// interval is the time between lines without a terminal; 0 prints none.
	interval  time.Duration
	quiet     bool
	printedAt time.Time
	printed   bool
}

func newProgress(out io.Writer, interval time.Duration, quiet bool) progress {
	screen, _ := out.(*terminal.Screen)
	return progress{out: out, screen: screen, interval: interval, quiet: quiet}
}

// due reports whether the state is to be shown now, and assumes that it is.
func (p *progress) due(now time.Time) bool {
	if p.quiet || p.screen == nil && (p.interval == 0 || now.Sub(p.printedAt) < p.interval) {
		return false
	}
	p.printedAt = now
	return true
}

// show prints the state.
func (p *progress) show(line string) {
	p.printed = true
	if p.screen != nil {
		_ = p.screen.Line(line)
	} else {
		fmt.Fprintln(p.out, line)
	}
}

// above prints another line between two states.
func (p *progress) above(text string) {
	if p.screen != nil {
		_ = p.screen.Line("")
	}
	fmt.Fprintln(p.out, text)
}

// finish ends the line on a terminal.
func (p *progress) finish() {
	if p.screen != nil && p.printed {
		fmt.Fprintln(p.out)
	}
}
