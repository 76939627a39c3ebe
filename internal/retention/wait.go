package retention

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
)

// waitPoll is the interval of checks whether an operator has stopped the run meanwhile.
// cancelWait bounds the time that a cancelled statement may take to end.
const (
	waitPoll   = time.Second
	cancelWait = 5 * time.Second
)

// execWaiting runs a statement on a partition that may wait long for other sessions. Meanwhile the
// run's detail names their processes. If the run is stopped, the wait ends. The next run finishes
// a statement that took effect in part.
func (w *work) execWaiting(ctx context.Context, p *Partition, sql string) error {
	sql = fmt.Sprintf(sql, pgx.Identifier{p.Name}.Sanitize())
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	pid := w.conn.PgConn().PID()
	ended := make(chan error, 1)
	go func() {
		_, err := w.conn.Exec(waiting, sql)
		ended <- err
	}()
	tick := time.NewTicker(waitPoll)
	defer tick.Stop()
	reported := ""
	for {
		select {
		case err := <-ended:
			if reported != "" {
				err = errors.Join(err, w.lease.SetDetail(ctx, ""))
			}
			return err
		case <-tick.C:
		}
		if now, err := w.blockers(ctx, p, pid); err == nil && now != reported {
			if err := w.lease.SetDetail(ctx, now); err == nil {
				reported = now
				w.log.Info("retention waits", "partition", p.Name, "detail", now)
			}
		}
		if err := w.advance(ctx); isStop(err) {
			w.cancel(ctx, stop, ended)
			return errors.Join(err, w.lease.SetDetail(ctx, ""))
		}
	}
}

// isStop reports whether the run must end here. A failed check does not end it, because the lease
// decides which process may continue.
func isStop(err error) bool {
	var stop *stoppedError
	return errors.As(err, &stop) || errors.Is(err, runs.ErrLeaseLost)
}

// cancel ends the statement but keeps its session, so that the lock can be released. If the
// statement does not end, the session is closed.
func (w *work) cancel(ctx context.Context, stop context.CancelFunc, ended <-chan error) {
	cancelCtx, done := context.WithTimeout(context.WithoutCancel(ctx), cancelWait)
	defer done()
	if err := w.conn.PgConn().CancelRequest(cancelCtx); err != nil {
		stop()
	}
	select {
	case <-ended:
		return
	case <-cancelCtx.Done():
	}
	stop()
	<-ended
}

// blockersSQL names the sessions that block another. PostgreSQL shows the application name only to
// roles of the same user or with pg_read_all_stats, and the user's name to all.
const blockersSQL = `
SELECT a.pid::text || ' (' || coalesce(nullif(a.application_name, ''), 'user ' || a.usename, '?') || ')'
FROM pg_stat_activity a WHERE a.pid = ANY(pg_blocking_pids($1)) ORDER BY a.pid LIMIT 5`

// blockers describes the sessions that a session waits for, "" if there is none.
func (w *work) blockers(ctx context.Context, p *Partition, pid uint32) (string, error) {
	names, err := postgres.Collect(ctx, w.Pool, pgx.RowTo[string], blockersSQL, int32(pid))
	if err != nil || len(names) == 0 {
		return "", err
	}
	return fmt.Sprintf("%s: waiting for pid %s", p.Name, strings.Join(names, ", ")), nil
}
