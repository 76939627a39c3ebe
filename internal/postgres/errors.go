package postgres

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"strings"
	"syscall"

	"github.com/jackc/pgx/v5/pgconn"
)

// Code returns the SQLSTATE of an error, "" where it has none.
func Code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// IsUnavailable reports whether an error is caused by the state of PostgreSQL and not by the data.
// The same call may succeed later, and other data would not help. It is true for lost and rejected
// connections, for a server that starts, stops, is full or read-only, and for conflicts with other
// transactions. It is also true for cancelled calls and timeouts, and for commits whose wait for
// the standby was cancelled.
func IsUnavailable(err error) bool {
	if err == nil {
		return false
	}
	if code := Code(err); code != "" {
		return unavailableCode(code)
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) || pgconn.SafeToRetry(err) || isOneOf(err,
		ErrUnconfirmed, context.DeadlineExceeded, context.Canceled, os.ErrDeadlineExceeded, io.EOF, io.ErrUnexpectedEOF,
		net.ErrClosed, syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT, syscall.ENOENT)
}

func isOneOf(err error, targets ...error) bool {
	for _, one := range targets {
		if errors.Is(err, one) {
			return true
		}
	}
	return false
}

// unavailableCode is true for the classes 08 (connection), 53 (disk full, memory, connections) and
// 58 (system). It is also true for the codes of shutdown, failover, a terminated session, a session
// or transaction timeout, a cancelled statement and a transaction conflict.
func unavailableCode(code string) bool {
	switch code {
	case "57P01", "57P02", "57P03", "57P04", "57P05", "57014", "25006", "25P03", "25P04", "40001", "40P01":
		return true
	}
	return strings.HasPrefix(code, "08") || strings.HasPrefix(code, "53") || strings.HasPrefix(code, "58")
}

// NeedsOperator reports whether PostgreSQL rejects such statements until an operator changes
// something, whatever the data is: a login, database, privilege, table or column is missing or
// different (SQLSTATE classes 28, 3D, 3F and 42), or an object is in use (55).
func NeedsOperator(err error) bool {
	code := Code(err)
	for _, class := range []string{"28", "3D", "3F", "42", "55"} {
		if strings.HasPrefix(code, class) {
			return true
		}
	}
	return false
}
