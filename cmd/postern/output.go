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

// column is one of a table's.
type column[T any] struct {
	head string
	cell func(T) string
}

// sink prints a list piece by piece: a table, or one JSON array.
type sink[T any] struct {
	out     io.Writer
	json    bool
	columns []column[T]
	// none is what a person reads where the list is empty; "" for nothing.
	none    string
	printed int
}

func (s *sink[T]) add(items []T) error {
	if s.json {
		return s.addJSON(items)
	}
	if len(items) == 0 {
		return nil
	}
	w := tabwriter.NewWriter(s.out, 0, 0, 2, ' ', 0)
	if s.printed == 0 {
		fmt.Fprintln(w, s.line(func(c column[T]) string { return c.head }))
	}
	for _, item := range items {
		fmt.Fprintln(w, s.line(func(c column[T]) string { return orDash(plain(c.cell(item))) }))
	}
	s.printed += len(items)
	return w.Flush()
}

func (s *sink[T]) line(cell func(column[T]) string) string {
	var cells []string
	for _, c := range s.columns {
		cells = append(cells, cell(c))
	}
	return strings.Join(cells, "\t")
}

func (s *sink[T]) addJSON(items []T) error {
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

// end closes the list.
func (s *sink[T]) end() error {
	var err error
	switch {
	case s.json && s.printed == 0:
		_, err = fmt.Fprintln(s.out, "[]")
	case s.json:
		_, err = fmt.Fprintln(s.out, "\n]")
	case s.printed == 0 && s.none != "":
		_, err = fmt.Fprintln(s.out, s.none)
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

// plain shows text that strangers may have written: control characters, which a terminal would obey, become a dot.
func plain(s string) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || unicode.IsPrint(r) {
			return r
		}
		return '·'
	}, s)
}

// plainLines is plain for text of several lines.
func plainLines(s string) string {
	lines := strings.Split(s, "\n")
	for i := range lines {
		lines[i] = plain(strings.ReplaceAll(lines[i], "\t", "    "))
	}
	return strings.Join(lines, "\n")
}

// counted is a number of things in words.
func counted(n int, thing string) string {
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

// pretty is a body or state for a person: JSON indented, anything else as it is.
func pretty(body []byte) string {
	var out bytes.Buffer
	if json.Indent(&out, body, "", "  ") != nil {
		return plainLines(string(body))
	}
	return plainLines(out.String())
}

// facts prints aligned lines of a name and what it is; empty ones are left out.
func facts(out io.Writer, pairs ...string) error {
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for i := 0; i+1 < len(pairs); i += 2 {
		if pairs[i+1] != "" {
			fmt.Fprintf(w, "%s\t%s\n", pairs[i], plain(pairs[i+1]))
		}
	}
	return w.Flush()
}
