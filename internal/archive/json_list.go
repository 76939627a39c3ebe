package archive

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
)

// listReader reads the elements of consecutive JSON arrays, alone or under "data" of objects. The
// exact bytes of each element are a body.
type listReader struct {
	in   *bufio.Reader
	line int
	// inArray: inside an array; inObject: inside an object.
	inArray, inObject bool
	// objectLine is the line where the object begins. objectBytes are its bytes until its array
	// begins, and then nil.
	objectLine  int
	objectBytes []byte
	// hasMore: the object announces further pages. lastHasMore is the announcement of the last
	// object with an array, and sawPage reports that there was one.
	hasMore, lastHasMore, sawPage bool
	// ended: the rest of the file cannot be split.
	ended bool
}

// errNoList is the error of an object that may be one event, a page of another form, or an error of
// an API.
var errNoList = errors.New(`an object without a list under "data"`)

func (r *listReader) next() (entry, error) {
	for !r.ended {
		if !r.inArray {
			switch err := r.nextArray(); {
			case errors.Is(err, errNoList):
				return entry{line: r.objectLine, raw: bytes.Clone(r.objectBytes), err: err}, nil
			case err != nil && r.objectBytes != nil:
				return r.endWithError(bytes.Clone(r.objectBytes), r.objectLine, err)
			case err != nil:
				return r.endWithError(nil, r.line, err)
			}
			continue
		}
		line, raw, err := r.nextElement()
		switch {
		case err != nil:
			return r.endWithError(raw, line, err)
		case raw != nil:
			return bodyEntry(line, append(bytes.Clone(raw), '\n'), raw), nil
		}
		r.inArray = false
	}
	return entry{}, io.EOF
}

// endWithError returns the last entry of a file that stops being a list.
func (r *listReader) endWithError(raw []byte, line int, err error) (entry, error) {
	r.ended = true
	if errors.Is(err, io.EOF) {
		if raw == nil && !r.inArray && !r.inObject {
			return entry{}, io.EOF
		}
		err = errors.New("the file ends in the middle of a list")
	}
	return entry{line: max(line, 1), raw: raw, err: err}, nil
}

// nextArray reads to the first element of the next array, or to the end of the current object.
func (r *listReader) nextArray() error {
	if r.inObject {
		return r.skipMembers()
	}
	r.objectBytes = nil
	c, err := r.nextToken()
	if err != nil {
		return err
	}
	switch c {
	case '[':
		r.inArray = true
		return nil
	case '{':
		r.inObject, r.hasMore, r.objectLine, r.objectBytes = true, false, r.line, []byte{c}
		return r.skipMembers()
	}
	return fmt.Errorf("%q where a list must begin", c)
}

// skipMembers reads the members of an object until its "data" begins, or to the object's end.
// Errors: errNoList if it had none.
func (r *listReader) skipMembers() error {
	for {
		if len(r.objectBytes) > maxTextBytes {
			return fmt.Errorf("more than %d MiB of an object before its list", maxTextBytes>>20)
		}
		c, err := r.nextToken()
		switch {
		case err != nil:
			return err
		case c == '}':
			return r.endObject()
		case c == ',':
			continue
		case c != '"':
			return fmt.Errorf("%q where a member of a page must begin", c)
		}
		if err := r.readMember(c); err != nil || r.inArray {
			return err
		}
	}
}

// endObject ends an object.
func (r *listReader) endObject() error {
	r.inObject = false
	if r.objectBytes != nil {
		return errNoList
	}
	r.sawPage, r.lastHasMore = true, r.hasMore
	return nil
}

// readMember reads a member whose name begins with c, or up to the array that is its value.
func (r *listReader) readMember(c byte) error {
	name, err := r.readValue(c)
	if err != nil {
		return err
	}
	if c, err = r.nextToken(); err == nil && c != ':' {
		err = fmt.Errorf("%q where a colon must be", c)
	}
	if err == nil {
		c, err = r.nextToken()
	}
	if err != nil {
		return err
	}
	if string(name) == `"data"` && c == '[' {
		r.inArray, r.objectBytes = true, nil
		return nil
	}
	value, err := r.readValue(c)
	switch {
	case string(name) == `"has_more"`:
		r.hasMore = string(value) == "true"
	case string(name) == `"data"` && string(value) == "null": // some programs write an empty list like this
		r.objectBytes = nil
	}
	return err
}

// readByte returns the next byte.
func (r *listReader) readByte() (byte, error) {
	c, err := r.in.ReadByte()
	if err == nil && r.objectBytes != nil {
		r.objectBytes = append(r.objectBytes, c)
	}
	return c, err
}

// nextElement returns the next element of the array; nil at its end.
func (r *listReader) nextElement() (line int, raw []byte, err error) {
	for {
		c, err := r.nextToken()
		line := r.line
		switch {
		case err != nil || c == ']':
			return line, nil, err
		case c == ',':
			continue
		}
		raw, err := r.readValue(c)
		return line, raw, err
	}
}

// nextToken returns the next byte that is not white space.
func (r *listReader) nextToken() (byte, error) {
	for {
		c, err := r.readByte()
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

// readValue reads to the end of the value that begins with c: to its closing bracket, or to the end
// of a number or word. It does not check that the value is valid.
func (r *listReader) readValue(c byte) (raw []byte, err error) {
	var depth int
	for quoted := false; ; {
		raw = append(raw, c)
		switch {
		case quoted && c == '\\':
			if c, err = r.readByte(); err != nil {
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
			if c == '"' || c == '}' || c == ']' || r.isValueEnd() {
				return raw, nil
			}
		}
		if len(raw) > maxTextBytes {
			return raw, fmt.Errorf("a value is longer than %d MiB", maxTextBytes>>20)
		}
		if c, err = r.readByte(); err != nil {
			return raw, err
		}
	}
}

// isValueEnd reports whether the next byte ends a number or word.
func (r *listReader) isValueEnd() bool {
	next, err := r.in.Peek(1)
	return err != nil || bytes.IndexByte([]byte(",]} \t\r\n"), next[0]) >= 0
}
