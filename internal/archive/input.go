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
	reader     reader
	close      func()
}

// open opens a file and detects its format. stdin is read for Stdin.
func (im *ImportParams) open(path string) (*input, error) {
	in := &input{name: filepath.Base(path), path: path, format: im.Format, modified: im.Now, close: func() {}}
	if path == Stdin {
		in.name, in.path, in.stdin = "stdin", "stdin", true
		return in, in.chooseReader(im.Stdin)
	}
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	in.close = func() { _ = f.Close() } // it was only read
	info, err := f.Stat()
	if err == nil {
		in.modified = info.ModTime()
		err = in.chooseReader(f)
	}
	if err != nil {
		in.close()
		return nil, err
	}
	return in, nil
}

// chooseReader sets the reader of a file.
func (in *input) chooseReader(from io.Reader) error {
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
	switch in.format {
	case Postern:
		in.reader = &posternReader{lineReader{in: buf}}
	case Events:
		in.reader = &eventsReader{lineReader{in: buf}}
	case List:
		in.reader = &listReader{in: buf}
	default:
		return fmt.Errorf("%s: format %q is not known: use %s", in.path, in.format, FormatNames)
	}
	return nil
}

var (
	exportPattern = regexp.MustCompile(`^\s*\{\s*"postern"\s*:\s*\d`)
	pagePattern   = regexp.MustCompile(`^\s*\{\s*"(object"\s*:\s*"list"|data"\s*:\s*\[)`)
)

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
	case pagePattern.Match(start), bytes.HasPrefix(first, []byte("[")):
		return List, nil
	case bytes.HasPrefix(first, []byte("{")):
		return Events, nil
	case len(first) == 0:
		return Postern, nil // like an empty export
	}
	return "", fmt.Errorf("the format cannot be detected: name it with --format (%s)", FormatNames)
}
