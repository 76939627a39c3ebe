package archive

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// listReader reads the elements of JSON arrays, bare or under "data" of objects, one behind the other. The exact bytes of each element are a body.
type listReader struct {
	in   *bufio.Reader
	line int
	// inside an array; page: inside an object.
	inside, page bool
	// begin is the line that the object begins in, and kept its bytes for as long as its array has not begun; then it is nil.
	begin int
	kept  []byte
	// has: the object says that more pages follow. more is what the last object with an array has said, and paged that there was one.
	has, more, paged bool
	// over: what follows cannot be told apart any more.
	over bool
}

// errNoList is of an object that may be one event, a page of another make, or an API's complaint.
var errNoList = errors.New(`an object without a list under "data"`)

func (r *listReader) next() (entry, error) {
	for !r.over {
		if !r.inside {
			switch err := r.enter(); {
			case errors.Is(err, errNoList):
				return entry{line: r.begin, raw: bytes.Clone(r.kept), err: err}, nil
			case err != nil && r.kept != nil:
				return r.broken(bytes.Clone(r.kept), r.begin, err)
			case err != nil:
				return r.broken(nil, r.line, err)
			}
			continue
		}
		line, raw, err := r.element()
		switch {
		case err != nil:
			return r.broken(raw, line, err)
		case raw != nil:
			return bodyEntry(line, append(bytes.Clone(raw), '\n'), raw), nil
		}
		r.inside = false
	}
	return entry{}, io.EOF
}

// broken is the last entry of a file that stops being a list.
func (r *listReader) broken(raw []byte, line int, err error) (entry, error) {
	r.over = true
	if errors.Is(err, io.EOF) {
		if raw == nil && !r.inside && !r.page {
			return entry{}, io.EOF
		}
		err = errors.New("the file ends in the middle of a list")
	}
	return entry{line: max(line, 1), raw: raw, err: err}, nil
}

// enter goes to the first element of the next array, or to the end of the object that it is in.
func (r *listReader) enter() error {
	if r.page {
		return r.members()
	}
	r.kept = nil
	c, err := r.token()
	if err != nil {
		return err
	}
	switch c {
	case '[':
		r.inside = true
		return nil
	case '{':
		r.page, r.has, r.begin, r.kept = true, false, r.line, []byte{c}
		return r.members()
	}
	return fmt.Errorf("%q where a list should begin", c)
}

// members goes through what an object has until its "data" begins, or to the object's end. Errors: errNoList, where it had none.
func (r *listReader) members() error {
	for {
		if len(r.kept) > maxText {
			return fmt.Errorf("more than %d MiB of an object before its list", maxText>>20)
		}
		c, err := r.token()
		switch {
		case err != nil:
			return err
		case c == '}':
			return r.closed()
		case c == ',':
			continue
		case c != '"':
			return fmt.Errorf("%q where a member of a page should begin", c)
		}
		if err := r.member(c); err != nil || r.inside {
			return err
		}
	}
}

// closed is the end of an object.
func (r *listReader) closed() error {
	r.page = false
	if r.kept != nil {
		return errNoList
	}
	r.paged, r.more = true, r.has
	return nil
}

// member reads a member whose name begins with c, or up to the array that it is.
func (r *listReader) member(c byte) error {
	name, err := r.value(c)
	if err != nil {
		return err
	}
	if c, err = r.token(); err == nil && c != ':' {
		err = fmt.Errorf("%q where a colon should be", c)
	}
	if err == nil {
		c, err = r.token()
	}
	if err != nil {
		return err
	}
	if string(name) == `"data"` && c == '[' {
		r.inside, r.kept = true, nil
		return nil
	}
	value, err := r.value(c)
	switch {
	case string(name) == `"has_more"`:
		r.has = string(value) == "true"
	case string(name) == `"data"` && string(value) == "null": // as some programs write an empty list
		r.kept = nil
	}
	return err
}

// read is the next byte.
func (r *listReader) read() (byte, error) {
	c, err := r.in.ReadByte()
	if err == nil && r.kept != nil {
		r.kept = append(r.kept, c)
	}
	return c, err
}

// element is the next of the array; nil at its end.
func (r *listReader) element() (line int, raw []byte, err error) {
	for {
		c, err := r.token()
		line := r.line
		switch {
		case err != nil || c == ']':
			return line, nil, err
		case c == ',':
			continue
		}
		raw, err := r.value(c)
		return line, raw, err
	}
}

// token is the next byte that is no space.
func (r *listReader) token() (byte, error) {
	for {
		c, err := r.read()
		if err != nil {
			return 0, err
		}
		r.line = max(r.line, 1)
		switch c {
		case '\n':
			r.line++
		case ' ', '\t', '\r':
		default:
			return c, nil
		}
	}
}

// value reads on to the end of the value that begins with c: to the bracket that closes it, or to what ends a number or word. Whether it is valid is
// not its matter.
func (r *listReader) value(c byte) (raw []byte, err error) {
	var depth int
	for quoted := false; ; {
		raw = append(raw, c)
		switch {
		case quoted && c == '\\':
			if c, err = r.read(); err != nil {
				return raw, err
			}
			raw = append(raw, c)
		case c == '"':
			quoted = !quoted
		case quoted:
		case c == '{' || c == '[':
			depth++
		case c == '}' || c == ']':
			depth--
		}
		if c == '\n' {
			r.line++
		}
		if depth <= 0 && !quoted {
			if c == '"' || c == '}' || c == ']' || r.ends() {
				return raw, nil
			}
		}
		if len(raw) > maxText {
			return raw, fmt.Errorf("a value is longer than %d MiB", maxText>>20)
		}
		if c, err = r.read(); err != nil {
			return raw, err
		}
	}
}

// ends tells whether what follows ends a number or word.
func (r *listReader) ends() bool {
	next, err := r.in.Peek(1)
	return err != nil || bytes.IndexByte([]byte(",]} \t\r\n"), next[0]) >= 0
}
