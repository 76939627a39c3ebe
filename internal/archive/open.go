package archive

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"
)

// Stdin is the path that stands for standard input.
const Stdin = "-"

// input is a file that is open.
type input struct {
	// name is the file's without its folder, path as it was given.
	name, path string
	stdin      bool
	format     Format
	modified   time.Time
	next       func() (entry, *mapped, error)
	// pages is what reads a file of lists, nil for others.
	pages *listReader
	// head is what a file of bad entries begins with.
	head  []byte
	close func()
}

// open opens a file and finds out what is in it. stdin is read for Stdin.
func (im *Importing) open(path string) (*input, error) {
	in := &input{name: filepath.Base(path), path: path, format: im.Format, modified: im.Now, close: func() {}}
	if path == Stdin {
		in.name, in.path, in.stdin = "stdin", "stdin", true
		return in, in.read(im, im.Stdin)
	}
	info, err := os.Stat(path)
	if err != nil {
		return nil, err
	}
	in.modified = info.ModTime()
	if info.IsDir() {
		if in.format != "" && in.format != Bodies {
			return nil, fmt.Errorf("%s is a folder, not a file of format %s", path, in.format)
		}
		r, err := newFolderReader(path)
		if err != nil {
			return nil, err
		}
		in.format, in.next = Bodies, r.next
		return in, nil
	}
	if in.format == Bodies {
		return nil, fmt.Errorf("%s is no folder: format %s reads a file for each delivery from one", path, Bodies)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	in.close = func() { _ = f.Close() } // it was only read
	if err := in.read(im, f); err != nil {
		in.close()
		return nil, err
	}
	return in, nil
}

// read chooses the reader of a file that is no folder.
func (in *input) read(im *Importing, from io.Reader) error {
	unpacked, err := unpack(from)
	if err != nil {
		return fmt.Errorf("%s: %w", in.path, err)
	}
	before := in.close
	in.close = func() {
		_ = unpacked.Close() // what it read was read
		before()
	}
	buf := bufio.NewReaderSize(unpacked, readAhead)
	if in.format == "" {
		if in.format, err = detect(buf, in.name); err != nil {
			return fmt.Errorf("%s: %w", in.path, err)
		}
	}
	var r reader
	switch in.format {
	case Postern:
		r = &posternReader{lineReader{in: buf}}
	case Events:
		r = &eventsReader{lineReader{in: buf}}
	case List:
		in.pages = &listReader{in: buf}
		r = in.pages
	case CSV:
		rows, err := newCSVReader(buf, im.Map)
		if err != nil {
			return fmt.Errorf("%s: %w", in.path, err)
		}
		in.next, in.head = rows.next, rows.head
		return nil
	default:
		return fmt.Errorf("%s: format %s needs a folder", in.path, in.format)
	}
	in.next = func() (entry, *mapped, error) {
		e, err := r.next()
		return e, &mapped{}, err
	}
	return nil
}

var (
	posternBegin = regexp.MustCompile(`^\s*\{\s*"postern"\s*:\s*\d`)
	pageBegin    = regexp.MustCompile(`^\s*\{\s*"(object"\s*:\s*"list"|data"\s*:\s*\[)`)
)

// detect tells a file's format from its name and how it begins.
func detect(in *bufio.Reader, name string) (Format, error) {
	begin, err := in.Peek(4 << 10)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	for _, suffix := range []string{".gz", ".zst"} {
		name = strings.TrimSuffix(name, suffix)
	}
	first, _, _ := bytes.Cut(bytes.TrimSpace(begin), []byte("\n"))
	switch {
	case strings.HasSuffix(name, ".csv"):
		return CSV, nil
	case posternBegin.Match(first):
		return Postern, nil
	case pageBegin.Match(begin), bytes.HasPrefix(first, []byte("[")):
		return List, nil
	case bytes.HasPrefix(first, []byte("{")):
		return Events, nil
	case len(first) == 0:
		return Postern, nil // as an export of nothing is
	}
	return "", fmt.Errorf("what this is cannot be told: name its format with --format (%s)", words(slices.Values(Formats)))
}

func words(all func(func(Format) bool)) string {
	var out []string
	for f := range all {
		out = append(out, string(f))
	}
	return strings.Join(out, ", ")
}
