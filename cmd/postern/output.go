package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"strings"
	"text/tabwriter"
	"unicode"
)

// column is a column of a table.
type column[T any] struct {
	title string
	cell  func(T) string
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
		fmt.Fprintln(w, s.joinCells(func(c column[T]) string { return orDash(escapeControl(c.cell(item))) }))
	}
	s.printed += len(items)
	return w.Flush()
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
func printFields(out io.Writer, pairs ...string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(w, "%s\t%s\n", pairs[i], escapeControl(pairs[i+1]))
		}
	}
	return w.Flush()
}
