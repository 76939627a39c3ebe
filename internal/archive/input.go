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

// Stdin is the path of standard input.
const Stdin = "-"

// input is an open file.
type input struct {
	// name is the file's name without its folder; path is as given.
	name, path string
	stdin      bool
	format     Format
	modified   time.Time
	next       func() (entry, *rowFields, error)
	// pages is the reader of a file of lists, nil for others.
	pages *listReader
	// head is the beginning of the file of bad entries: the names of the columns of a CSV file.
	head  []byte
	close func()
}

// open opens a file and detects its format. stdin is read for Stdin.
func (im *ImportParams) open(path string) (*input, error) {
	in := &input{name: filepath.Base(path), path: path, format: im.Format, modified: im.Now, close: func() {}}
	if path == Stdin {
		in.name, in.path, in.stdin = "stdin", "stdin", true
		return in, in.chooseReader(im, im.Stdin)
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
		return nil, fmt.Errorf("%s is not a folder: format %s reads one file per delivery from a folder", path, Bodies)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	in.close = func() { _ = f.Close() } // it was only read
	if err := in.chooseReader(im, f); err != nil {
		in.close()
		return nil, err
	}
	return in, nil
}

// chooseReader sets the reader of a file that is not a folder.
func (in *input) chooseReader(im *ImportParams, from io.Reader) error {
	unpacked, err := decompress(from)
	if err != nil {
		return fmt.Errorf("%s: %w", in.path, err)
	}
	before := in.close
	in.close = func() {
		_ = unpacked.Close() // its contents were read
		before()
	}
	buf := bufio.NewReaderSize(unpacked, readBufferSize)
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
		in.next, in.head = rows.next, rows.header
		return nil
	default:
		return fmt.Errorf("%s: format %s needs a folder", in.path, in.format)
	}
	in.next = func() (entry, *rowFields, error) {
		e, err := r.next()
		return e, &rowFields{}, err
	}
	return nil
}

var (
	exportPattern = regexp.MustCompile(`^\s*\{\s*"postern"\s*:\s*\d`)
	pagePattern   = regexp.MustCompile(`^\s*\{\s*"(object"\s*:\s*"list"|data"\s*:\s*\[)`)
)

// detect determines a file's format from its name and its beginning.
func detect(in *bufio.Reader, name string) (Format, error) {
	start, err := in.Peek(4 << 10)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	for _, suffix := range []string{".gz", ".zst"} {
		name = strings.TrimSuffix(name, suffix)
	}
	first, _, _ := bytes.Cut(bytes.TrimSpace(start), []byte("\n"))
	switch {
	case strings.HasSuffix(name, ".csv"):
		return CSV, nil
	case exportPattern.Match(first):
		return Postern, nil
	case pagePattern.Match(start), bytes.HasPrefix(first, []byte("[")):
		return List, nil
	case bytes.HasPrefix(first, []byte("{")):
		return Events, nil
	case len(first) == 0:
		return Postern, nil // like an empty export
	}
	return "", fmt.Errorf("the format cannot be detected: name it with --format (%s)",
		joinFormats(slices.Values(Formats)))
}

func joinFormats(all func(func(Format) bool)) string {
	var out []string
	for f := range all {
		out = append(out, string(f))
	}
	return strings.Join(out, ", ")
}
