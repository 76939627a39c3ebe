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

// Code is the SQLSTATE of an error, "" where the server gave none.
func Code(err error) string {
	var pg *pgconn.PgError
	if errors.As(err, &pg) {
		return pg.Code
	}
	return ""
}

// IsUnavailable tells whether an error is PostgreSQL's trouble and not the data's: the same call may succeed later, and
// trying it with other data will not help. Lost and refused connections, a server that starts, stops, is full or read-only,
// conflicts with other transactions, calls that were given up (a deadline or a cancelled context), and commits whose wait for the standby was, count.
func IsUnavailable(err error) bool {
	if err == nil {
		return false
	}
	if code := Code(err); code != "" {
		return unavailableCode(code)
	}
	var connect *pgconn.ConnectError
	var network net.Error
	return errors.As(err, &connect) || errors.As(err, &network) || pgconn.SafeToRetry(err) || isAny(err,
		ErrUnconfirmed, context.DeadlineExceeded, context.Canceled, os.ErrDeadlineExceeded, io.EOF, io.ErrUnexpectedEOF, net.ErrClosed,
		syscall.ECONNREFUSED, syscall.ECONNRESET, syscall.EPIPE, syscall.ETIMEDOUT, syscall.ENOENT)
}

func isAny(err error, targets ...error) bool {
	for _, target := range targets {
		if errors.Is(err, target) {
			return true
		}
	}
	return false
}

// unavailableCode: classes 08 (connection), 53 (disk full, memory, connections), 58 (system) and what shutdown, failover,
// a killed session, one ended for being idle or long in a transaction, a given-up statement and a lost race report.
func unavailableCode(code string) bool {
	switch code {
	case "57P01", "57P02", "57P03", "57P04", "57P05", "57014", "25006", "25P03", "25P04", "40001", "40P01":
		return true
	}
	return strings.HasPrefix(code, "08") || strings.HasPrefix(code, "53") || strings.HasPrefix(code, "58")
}

// IsRefused tells whether PostgreSQL takes nothing of the kind, whatever the data are, until a person has mended it: a login, database, right, table or column is not what it was
// (SQLSTATE classes 28, 3D, 3F and 42), or somebody holds what is needed (55).
func IsRefused(err error) bool {
	code := Code(err)
	for _, class := range []string{"28", "3D", "3F", "42", "55"} {
		if strings.HasPrefix(code, class) {
			return true
		}
	}
	return false
}
