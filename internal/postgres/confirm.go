package postgres

import (
	"errors"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// ErrUnconfirmed is the error of a commit whose wait for the synchronous standby was cancelled
// (pg_cancel_backend). The primary has the commit; whether the standby has it is unknown.
// PostgreSQL itself reports success, with a warning.
var ErrUnconfirmed = errors.New("the wait for the synchronous standby was cancelled: the standby may not " +
	"have the commit")

// standbyWait is the PostgreSQL function that waits for a standby. Its only warning to a live
// session says that the wait was cancelled. The warning's text is translated; the function's name
// is not.
const standbyWait = "SyncRepWaitForLSN"

// unconfirmedKey marks a session that had such a commit.
const unconfirmedKey = "postern_unconfirmed"

// recordNotice marks the session of a commit whose wait for the standby was cancelled.
func recordNotice(conn *pgconn.PgConn, n *pgconn.Notice) {
	if n.Routine == standbyWait {
		conn.CustomData()[unconfirmedKey] = true
	}
}

// CheckConfirmed returns ErrUnconfirmed if a commit of the session did not wait for the synchronous
// standby, for as long as the session lasts. A pool does not use such a session again.
func CheckConfirmed(conn *pgx.Conn) error {
	if conn.PgConn().CustomData()[unconfirmedKey] != nil {
		return ErrUnconfirmed
	}
	return nil
}
