package reconcile

import (
	"errors"
	"strconv"
)

// errExpired: the cursor of a list is no longer valid, or the resource that it names no longer
// exists.
var errExpired = errors.New("the list's cursor has expired")

// temporaryError is a failure of the API that may be over at the next call.
type temporaryError struct {
	text string
	// throttled: there were too many calls, so the failure says nothing about the requested object.
	throttled bool
}

func (e *temporaryError) Error() string { return e.text }

// sizeError: a file ends before the byte to start at.
type sizeError struct{ bytes string }

func (e *sizeError) Error() string {
	if _, err := strconv.ParseInt(e.bytes, 10, 64); err != nil {
		return "the file has fewer bytes"
	}
	return "the file has " + e.bytes + " bytes"
}
