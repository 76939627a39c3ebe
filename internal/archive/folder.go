package archive

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"net/textproto"
	"os"
	"path/filepath"
	"strings"

	"github.com/postern-gateway/postern/internal/events"
)

// headersSuffix is the suffix of a file with the headers of a delivery.
const headersSuffix = ".headers"

// folderReader reads one delivery from each file of a folder, in the order of their names. It
// ignores hidden files.
type folderReader struct {
	path  string
	files []fs.DirEntry
}

func newFolderReader(path string) (*folderReader, error) {
	found, err := os.ReadDir(path)
	if err != nil {
		return nil, err
	}
	r := &folderReader{path: path}
	for _, f := range found {
		if !strings.HasPrefix(f.Name(), ".") && !strings.HasSuffix(f.Name(), headersSuffix) {
			r.files = append(r.files, f)
		}
	}
	return r, nil
}

func (r *folderReader) next() (entry, *rowFields, error) {
	if len(r.files) == 0 {
		return entry{}, nil, io.EOF
	}
	f := r.files[0]
	r.files = r.files[1:]
	e, m := entry{file: filepath.Join(r.path, f.Name())}, &rowFields{}
	info, err := os.Stat(e.file)
	switch {
	case err != nil:
		return entry{}, nil, err
	case !info.Mode().IsRegular():
		e.err = errors.New("not a regular file; its contents are not read")
		return e, m, nil
	case info.Size() > maxTextBytes:
		e.err = fmt.Errorf("larger than %d MiB", maxTextBytes>>20)
		return e, m, nil
	}
	body, err := os.ReadFile(e.file)
	if err != nil {
		return entry{}, nil, err
	}
	e.receivedAt = info.ModTime()
	e.delivery = events.Delivery{Body: body}
	m.header, e.err = readHeaders(e.file + headersSuffix)
	return e, m, nil
}

// readHeaders reads the headers of a delivery, one "Name: value" per line. Without the file there
// are none.
func readHeaders(path string) (http.Header, error) {
	text, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	header, err := ParseHeader(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	return header, nil
}

// ParseHeader reads lines of the form "Name: value".
func ParseHeader(text []byte) (http.Header, error) {
	text = append(bytes.TrimSpace(text), "\r\n\r\n"...)
	header, err := textproto.NewReader(bufio.NewReader(bytes.NewReader(text))).ReadMIMEHeader()
	if err != nil {
		return nil, fmt.Errorf("read headers, one \"Name: value\" per line: %w", err)
	}
	return http.Header(header), nil
}
