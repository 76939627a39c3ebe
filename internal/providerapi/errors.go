package providerapi

import (
	"errors"
	"strconv"
)

// ErrExpired: the cursor of a list is no longer valid, or the resource that it names no longer
// exists.
var ErrExpired = errors.New("the list's cursor has expired")

// TemporaryError is a failure of the API that may be over at the next call.
type TemporaryError struct {
	Text string
	// Throttled: there were too many calls, so the failure says nothing about the requested object.
	Throttled bool
}

func (e *TemporaryError) Error() string { return e.Text }

// SizeError: a file ends before the byte to start at.
type SizeError struct{ Bytes string }

func (e *SizeError) Error() string {
	if _, err := strconv.ParseInt(e.Bytes, 10, 64); err != nil {
		return "the file has fewer bytes"
	}
	return "the file has " + e.Bytes + " bytes"
}
