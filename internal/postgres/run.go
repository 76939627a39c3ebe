package postgres

import (
	"context"
	"errors"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// errBusy is the error of a run on a connection whose last answer was not read to its end.
var errBusy = errors.New("the connection is in the middle of another answer")

// Run runs the statement, in the connection's transaction if it is in one, hands each row to a function (nil: rows are passed
// over) and returns how many rows were affected. Rows arrive before the statement has ended: none counts where Run returns an
// error, its own or the first that the function returned. It may be called again with the same parameters.
//
// An error of the server leaves the connection as it was, unless it ended the session; where the statement was not as prepared any more (26000, 0A000) the next
// run prepares it again. Any other error of sending or receiving closes the connection, and so does the end of ctx, whose error
// is then returned; the statement may have been carried out nevertheless. IsUnavailable holds for these.
func (p *Params) Run(ctx context.Context, each func(Row) error) (affected int64, err error) {
	c := p.conn.PgConn()
	switch {
	case ctx.Err() != nil:
		return 0, ctx.Err()
	case c.IsClosed():
		return 0, net.ErrClosed
	case c.IsBusy():
		return 0, errBusy
	}
	if err := p.Prepare(ctx); err != nil {
		return 0, err
	}
	message, err := p.message()
	if err != nil {
		return 0, err
	}
	affected, err = send(ctx, c, message, each)
	return affected, p.forget(ctx, err)
}

// send writes a message and reads its answer.
func send(ctx context.Context, c *pgconn.PgConn, message []byte, each func(Row) error) (affected int64, err error) {
	var a answer
	stop := context.AfterFunc(ctx, func() { _ = c.Conn().Close() })
	defer func() {
		if stop() && a.ended {
			return
		}
		giveUp(c)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
	}()
	// pgx reads in the background while it writes, since a server that waits for somebody to read its answers reads no more.
	// This one has nothing to answer before it has read all, but for a notice, for which there is always room.
	if _, err := c.Conn().Write(message); err != nil {
		return 0, err
	}
	for !a.ended {
		m, err := c.ReceiveMessage(context.Background())
		if err != nil {
			return 0, err
		}
		a.take(m, each)
	}
	switch {
	case a.refused != nil:
		return 0, a.refused
	case a.err != nil:
		return 0, a.err
	}
	return a.affected, nil
}

// answer is what is known of a statement's answer.
type answer struct {
	affected int64
	// refused is the server's error, err the first of whoever takes the rows.
	refused, err error
	ended        bool
}

func (a *answer) take(m pgproto3.BackendMessage, each func(Row) error) {
	switch m := m.(type) {
	case *pgproto3.DataRow:
		if each != nil && a.err == nil {
			a.err = each(m.Values)
		}
	case *pgproto3.CommandComplete:
		a.affected = pgconn.NewCommandTag(string(m.CommandTag)).RowsAffected()
	case *pgproto3.ErrorResponse:
		a.refused = pgconn.ErrorResponseToPgError(m)
	case *pgproto3.ReadyForQuery:
		a.ended = true
	}
}

// giveUp closes a connection in the middle of an answer.
func giveUp(c *pgconn.PgConn) {
	_ = c.Conn().Close()
	for !c.IsClosed() { // what was read before comes first
		// pgx finds that it is closed, and asks the server to end what it does for it.
		_, _ = c.ReceiveMessage(context.Background())
	}
}

// preparesKey is where a connection keeps whether statements are prepared on it.
const preparesKey = "postern prepares"

// prepares tells whether they are: the database's URL may forbid it, for a pooler's sake.
func prepares(conn *pgx.Conn) bool {
	known := conn.PgConn().CustomData()
	yes, ok := known[preparesKey].(bool)
	if !ok {
		yes = conn.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement // a copy of all there is, so asked once
		known[preparesKey] = yes
	}
	return yes
}

// Prepare prepares the statement, once for each connection. Run does it too; one that has a Session is prepared before a transaction in which it runs.
func (p *Params) Prepare(ctx context.Context) error {
	if !prepares(p.conn) {
		return nil
	}
	known := p.conn.PgConn().CustomData()
	if _, ok := known[p.statement.Name]; ok {
		return nil
	}
	if p.statement.Session != "" {
		if err := p.conn.PgConn().Exec(ctx, p.statement.Session).Close(); err != nil {
			return err
		}
	}
	if _, err := p.conn.Prepare(ctx, p.statement.Name, p.statement.SQL); err != nil {
		return err
	}
	known[p.statement.Name] = struct{}{}
	return nil
}

// forget has the statement prepared again where err says that somebody changed what it rests on, or took it from the session.
func (p *Params) forget(ctx context.Context, err error) error {
	code := Code(err)
	if code != "26000" && code != "0A000" || !prepares(p.conn) {
		return err
	}
	delete(p.conn.PgConn().CustomData(), p.statement.Name)
	return errors.Join(err, p.conn.Deallocate(ctx, p.statement.Name))
}
