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
	lines      lineReader
	close      func()
}

// open opens a file and detects its format. stdin is read for Stdin.
func (im *ImportParams) open(path string) (*input, error) {
	in := &input{name: filepath.Base(path), path: path, format: im.Format, modified: im.Now, close: func() {}}
	if path == Stdin {
		in.name, in.path, in.stdin = "stdin", "stdin", true
		return in, in.readFrom(im.Stdin)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	in.close = func() { _ = f.Close() } // it was only read
	info, err := f.Stat()
	if err == nil {
		in.modified = info.ModTime()
		err = in.readFrom(f)
	}
	if err != nil {
		in.close()
		return nil, err
	}
	return in, nil
}

// readFrom decompresses the contents and detects their format.
func (in *input) readFrom(from io.Reader) error {
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
		if in.format, err = detect(buf); err != nil {
			return fmt.Errorf("%s: %w", in.path, err)
		}
	}
	if !slices.Contains(Formats, in.format) {
		return fmt.Errorf("%s: format %q is not known: use %s", in.path, in.format, FormatNames)
	}
	in.lines.in = buf
	return nil
}

var (
	exportPattern = regexp.MustCompile(`^\s*\{\s*"postern"\s*:\s*\d`)
	pagePattern   = regexp.MustCompile(`^\s*\{\s*"(object"\s*:\s*"list"|data"\s*:\s*\[)`)
)

// commandsPage has commands that make one line per event.
const commandsPage = "docs/how-to/export-and-import.md"

// detect determines a file's format from its beginning.
func detect(in *bufio.Reader) (Format, error) {
	start, err := in.Peek(4 << 10)
	if err != nil && !errors.Is(err, io.EOF) {
		return "", err
	}
	first, _, _ := bytes.Cut(bytes.TrimSpace(start), []byte("\n"))
	switch {
	case exportPattern.Match(first):
		return Postern, nil
	case pagePattern.Match(start):
		return "", errors.New("a page of an API: import one event per line (" + commandsPage + " has the commands)")
	case bytes.HasPrefix(first, []byte("[")):
		return "", errors.New("a JSON array: import one event per line (" + commandsPage + " has the commands), " +
			"or use --format events if each line is a delivery with many events")
	case bytes.HasPrefix(first, []byte("{")):
		return Events, nil
	case len(first) == 0:
		return Postern, nil // like an empty export
	}
	return "", fmt.Errorf("the format cannot be detected: name it with --format (%s)", FormatNames)
}
