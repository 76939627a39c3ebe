package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/operations"
	"github.com/postern-gateway/postern/internal/postgres"
)

// The exit statuses of the command.
const (
	statusDone      = 0
	statusFailed    = 1
	statusUsage     = 2
	statusNotFound  = 3
	statusAmbiguous = 4
)

// errUsage matches all errors in the use of the command line.
var errUsage = errors.New("usage")

// usageError prints without a prefix.
type usageError struct{ text string }

func (e *usageError) Error() string        { return e.text }
func (e *usageError) Is(target error) bool { return target == errUsage }

func usagef(format string, args ...any) error { return &usageError{fmt.Sprintf(format, args...)} }

// errReported means that the error is printed already.
var errReported = errors.New("reported")

// report prints an error in one line and returns the exit status.
func report(err error, errs io.Writer) int {
	if err == nil {
		return statusDone
	}
	status, suffix := classify(err)
	if !errors.Is(err, errReported) {
		fmt.Fprintf(errs, "postern: %s%s\n", escapeControl(strings.ReplaceAll(err.Error(), "\n", "; ")), suffix)
	}
	return status
}

// classify returns the exit status of an error, and a text to append to the error's message.
func classify(err error) (status int, suffix string) {
	var objects *operations.SeveralObjectsError
	var keys *events.AmbiguousKeyError
	switch {
	case errors.Is(err, errUsage), errors.Is(err, events.ErrInvalid):
		return statusUsage, ""
	case errors.Is(err, events.ErrNotFound):
		return statusNotFound, ""
	case errors.As(err, &objects), errors.As(err, &keys):
		return statusAmbiguous, ""
	case errors.Is(err, context.Canceled):
		return statusFailed, " (interrupted)"
	case postgres.Code(err) == "42P01", postgres.Code(err) == "42703", postgres.Code(err) == "3F000":
		return statusFailed, ": the database's schema does not fit this command; see postern migrate status"
	}
	return statusFailed, ""
}
