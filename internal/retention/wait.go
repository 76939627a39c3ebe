package retention

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/runs"
)

// How often who waits looks whether it still should, and how long what was cancelled may take to end.
const (
	waitLook   = time.Second
	cancelWait = 5 * time.Second
)

// alter runs a statement over a partition that may wait long for others, whose processes the run's detail names meanwhile. A run that is not
// running any more ends the wait; whatever of the statement stands then is found by the next run.
func (w *work) alter(ctx context.Context, p *Partition, sql string) error {
	sql = fmt.Sprintf(sql, pgx.Identifier{p.Name}.Sanitize())
	waiting, stop := context.WithCancel(ctx)
	defer stop()
	pid := w.conn.PgConn().PID()
	ended := make(chan error, 1)
	go func() {
		_, err := w.conn.Exec(waiting, sql)
		ended <- err
	}()
	look := time.NewTicker(waitLook)
	defer look.Stop()
	said := ""
	for {
		select {
		case err := <-ended:
			if said != "" {
				err = errors.Join(err, w.hold.Note(ctx, ""))
			}
			return err
		case <-look.C:
		}
		if now, err := w.blockers(ctx, p, pid); err == nil && now != said {
			if err := w.hold.Note(ctx, now); err == nil {
				said = now
				w.log.Info("retention waits", "partition", p.Name, "detail", now)
			}
		}
		if err := w.advance(ctx); isStop(err) {
			w.cancel(ctx, stop, ended)
			return errors.Join(err, w.hold.Note(ctx, ""))
		}
	}
}

// isStop says whether a run is to end here; trouble with looking is none: the lease says who may go on.
func isStop(err error) bool {
	var stop *stopped
	return errors.As(err, &stop) || errors.Is(err, runs.ErrLost)
}

// cancel ends the statement and keeps its session, so that its lock can be given back; one that does not end loses its session.
func (w *work) cancel(ctx context.Context, stop context.CancelFunc, ended <-chan error) {
	ask, done := context.WithTimeout(context.WithoutCancel(ctx), cancelWait)
	defer done()
	if err := w.conn.PgConn().CancelRequest(ask); err != nil {
		stop()
	}
	select {
	case <-ended:
		return
	case <-ask.Done():
	}
	stop()
	<-ended
}

// blockersSQL: the name of an application is shown to roles of the same user, or with pg_read_all_stats; the user's name to all.
const blockersSQL = `
SELECT a.pid::text || ' (' || coalesce(nullif(a.application_name, ''), 'user ' || a.usename, '?') || ')'
FROM pg_stat_activity a WHERE a.pid = ANY(pg_blocking_pids($1)) ORDER BY a.pid LIMIT 5`

// blockers says whom a session waits for, "" where for nobody.
func (w *work) blockers(ctx context.Context, p *Partition, pid uint32) (string, error) {
	rows, err := w.Pool.Query(ctx, blockersSQL, int32(pid))
	if err != nil {
		return "", err
	}
	names, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil || len(names) == 0 {
		return "", err
	}
	return fmt.Sprintf("%s: waiting for pid %s", p.Name, strings.Join(names, ", ")), nil
}
