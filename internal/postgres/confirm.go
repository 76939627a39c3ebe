package postgres

import (
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrUnconfirmed is the error of a commit whose wait for the synchronous standby somebody ended (pg_cancel_backend): the primary has it, and nobody knows whether the standby does. PostgreSQL
// itself reports it as done, with a warning.
var ErrUnconfirmed = errors.New("the wait for the synchronous standby was cancelled: the standby may not have the commit")

// standbyWait is the function of PostgreSQL that waits for a standby. Its one warning to a session that lives on is that the wait was cancelled; the text is translated, this is not.
const standbyWait = "SyncRepWaitForLSN"

// unconfirmed is under which name a session keeps that it had such a commit.
const unconfirmed = "postern_unconfirmed"

// noticed marks the session of a commit that did not wait to the end.
func noticed(conn *pgconn.PgConn, n *pgconn.Notice) {
	if n.Routine == standbyWait {
		conn.CustomData()[unconfirmed] = true
	}
}

// Confirmed is nil where all that a session has committed has waited for the standby, if there is one to wait for, and else ErrUnconfirmed, for as long as the session lasts: a pool gives it to
// nobody again.
func Confirmed(conn *pgx.Conn) error {
	if conn.PgConn().CustomData()[unconfirmed] != nil {
		return ErrUnconfirmed
	}
	return nil
}
