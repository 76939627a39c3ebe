package postgres

import (
	"context"
	"errors"
	"net"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgproto3"
)

// errBusy is the error of a run on a connection whose last response was not read completely.
var errBusy = errors.New("the connection is still reading another response")

// Run runs the statement, in the connection's transaction if there is one. It passes each row to a
// function (nil: rows are ignored) and returns the number of affected rows. Rows arrive before the
// statement has ended: if Run returns an error, its own or the first of the function, they must be
// discarded. Run may be called again with the same parameters.
//
// An error of the server keeps the connection usable, unless it ended the session. If the prepared
// statement is no longer valid (26000, 0A000), the next run prepares it again. Any other error of
// sending or receiving closes the connection. The end of ctx closes it too, and Run returns its
// error. The statement may have been executed nevertheless. IsUnavailable is true for these errors.
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
	affected, err = sendAndReceive(ctx, c, message, each)
	return affected, p.forgetPrepared(ctx, err)
}

// sendAndReceive writes a message and reads the response.
func sendAndReceive(ctx context.Context, c *pgconn.PgConn, message []byte, each func(Row) error) (affected int64,
	err error) {
	var r response
	stop := context.AfterFunc(ctx, func() { _ = c.Conn().Close() })
	defer func() {
		if stop() && r.complete {
			return
		}
		closeConn(c)
		if ctx.Err() != nil {
			err = ctx.Err()
		}
	}()
	// pgx reads in the background while it writes, because a server with unread responses stops
	// reading. Here the server responds only after it has read the whole message, except for
	// notices, which always fit into the buffers.
	if _, err := c.Conn().Write(message); err != nil {
		return 0, err
	}
	for !r.complete {
		m, err := c.ReceiveMessage(context.Background())
		if err != nil {
			return 0, err
		}
		r.handle(m, each)
	}
	switch {
	case r.serverErr != nil:
		return 0, r.serverErr
	case r.err != nil:
		return 0, r.err
	}
	return r.affected, nil
}

// response is the response to a statement so far.
type response struct {
	affected int64
	// serverErr is the server's error, err the first error of the function that reads rows.
	serverErr, err error
	complete       bool
}

func (r *response) handle(m pgproto3.BackendMessage, each func(Row) error) {
	switch m := m.(type) {
	case *pgproto3.DataRow:
		if each != nil && r.err == nil {
			r.err = each(m.Values)
		}
	case *pgproto3.CommandComplete:
		r.affected = pgconn.NewCommandTag(string(m.CommandTag)).RowsAffected()
	case *pgproto3.ErrorResponse:
		r.serverErr = pgconn.ErrorResponseToPgError(m)
	case *pgproto3.ReadyForQuery:
		r.complete = true
	}
}

// closeConn closes a connection in the middle of a response.
func closeConn(c *pgconn.PgConn) {
	_ = c.Conn().Close()
	for !c.IsClosed() { // ReceiveMessage first returns the messages that are already buffered
		// pgx notices that the connection is closed, and requests that the server cancels the
		// statement
		_, _ = c.ReceiveMessage(context.Background())
	}
}

// preparesKey is the key in a connection's custom data of whether it prepares statements.
const preparesKey = "postern prepares"

// canPrepare reports whether the connection prepares statements. The database's URL may disable it,
// for a pooler.
func canPrepare(conn *pgx.Conn) bool {
	data := conn.PgConn().CustomData()
	prepares, ok := data[preparesKey].(bool)
	if !ok {
		// Config copies the complete configuration, so the result is stored
		prepares = conn.Config().DefaultQueryExecMode == pgx.QueryExecModeCacheStatement
		data[preparesKey] = prepares
	}
	return prepares
}

// Prepare prepares the statement, once per connection. Run does it too. Call Prepare before a
// transaction for a statement with SetupSQL.
func (p *Params) Prepare(ctx context.Context) error {
	if !canPrepare(p.conn) {
		return nil
	}
	data := p.conn.PgConn().CustomData()
	if _, ok := data[p.statement.Name]; ok {
		return nil
	}
	if p.statement.SetupSQL != "" {
		if err := p.conn.PgConn().Exec(ctx, p.statement.SetupSQL).Close(); err != nil {
			return err
		}
	}
	if _, err := p.conn.Prepare(ctx, p.statement.Name, p.statement.SQL); err != nil {
		return err
	}
	data[p.statement.Name] = struct{}{}
	return nil
}

// forgetPrepared makes the next run prepare the statement again, if err says that its tables
// changed or that the session lost it.
func (p *Params) forgetPrepared(ctx context.Context, err error) error {
	code := Code(err)
	if code != "26000" && code != "0A000" || !canPrepare(p.conn) {
		return err
	}
	delete(p.conn.PgConn().CustomData(), p.statement.Name)
	return errors.Join(err, p.conn.Deallocate(ctx, p.statement.Name))
}
