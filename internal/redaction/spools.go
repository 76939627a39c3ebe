package redaction

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/spool"
)

const nonEmptySpoolSQL = `SELECT spool, location FROM spools WHERE drained_at <= $1 ORDER BY drained_at, spool LIMIT 1`

// spoolPollEvery is how long a run waits before it checks the spools again.
const spoolPollEvery = time.Second

// waitForSpools waits until all deliveries that gateways had acknowledged before the request are in
// the log. Only a gateway can read its own spool. If a gateway is lost with deliveries in its
// spool, the run waits until an operator confirms the loss.
func (w *execution) waitForSpools(ctx context.Context) error {
	var spool, place string
	err := w.Pool.QueryRow(ctx, nonEmptySpoolSQL, w.lease.CreatedAt.Time).Scan(&spool, &place)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("check whether spools are empty: %w", err)
	}
	return runs.Requeue(spoolPollEvery, fmt.Sprintf("waits until the gateway with the spool %s reports that nothing "+
		"older is in it: start that gateway if it does not run; if its disk is lost, run postern spool remove %s",
		place, spool))
}

// SpoolSilentAfter is the time without a report after which a gateway may not be running. A running
// gateway with a database connection reports every two seconds, also while it drains the spool.
const SpoolSilentAfter = 5 * time.Minute

// Spool is a spool that is registered in the database. Its gateway runs, or ended before it could
// report an empty spool.
type Spool struct {
	Name string `json:"spool"`
	// Location is the machine and the folder.
	Location string `json:"location"`
	// RegisteredAt is zero for rows that are older than the column.
	RegisteredAt events.Instant `json:"registered_at"`
	// ReportedAt is the gateway's last report, EmptyAt its last report of an empty spool; zero if
	// there is none.
	ReportedAt events.Instant `json:"reported_at"`
	EmptyAt    events.Instant `json:"drained_at"`
	// Deliveries and Bytes are the content at ReportedAt; nil if an earlier version of the gateway
	// reported.
	Deliveries *int64 `json:"deliveries"`
	Bytes      *int64 `json:"bytes"`
	// OldestAt is not later than the acknowledgement of the oldest delivery; zero if there is none,
	// or it is unknown.
	OldestAt events.Instant `json:"oldest_at"`
	// Redactions are the runs that wait for it.
	Redactions []int64 `json:"redactions"`
}

// reportedSQL is the time of the last report of spool s; null if there is none.
const reportedSQL = `greatest(s.reported_at, CASE WHEN isfinite(s.drained_at) THEN s.drained_at END)`

// spoolColumns are the columns of a Spool; $1 is the name of the job.
const spoolColumns = `s.spool, s.location, s.registered_at, ` + reportedSQL + `, CASE WHEN isfinite(s.drained_at) THEN
	s.drained_at
	END,
	s.deliveries, s.bytes, s.oldest_at,
  ARRAY(SELECT r.run FROM runs r WHERE r.job = $1 AND r.ended_at IS NULL AND r.bound IS NULL
  	AND r.created_at >= s.drained_at
  	ORDER BY r.run)`

const (
	spoolsSQL = `SELECT ` + spoolColumns + ` FROM spools s WHERE s.spool > $2 ORDER BY s.spool LIMIT $3`

	showSpoolSQL = `SELECT ` + spoolColumns + ` FROM spools s WHERE s.spool = $2`

	// removeSpoolSQL checks the row again, because the gateway may have reported meanwhile. A
	// gateway of a version without reported_at reports only an empty spool. After such a report
	// it is unknown whether the gateway runs.
	removeSpoolSQL = `
DELETE FROM spools s WHERE s.spool = $2 AND ($3 OR s.reported_at >= s.drained_at
	AND s.reported_at < clock_now() - make_interval(secs => $4)) RETURNING ` + spoolColumns
)

// Spools returns a page of the spools, by name. Errors: events.ErrInvalid.
func Spools(ctx context.Context, db postgres.DB, cursor string, limit int) (events.Page[Spool], error) {
	return events.ReadPage("list spools", cursor, limit, "", func(s *Spool) string { return s.Name },
		func(after string, limit int) ([]Spool, error) {
			return postgres.Collect(ctx, db, pgx.RowToStructByPos[Spool], spoolsSQL, Job, after, limit)
		})
}

// ShowSpool returns one spool. Errors: events.ErrNotFound.
func ShowSpool(ctx context.Context, db postgres.DB, name string) (*Spool, error) {
	found, err := postgres.Collect(ctx, db, pgx.RowToStructByPos[Spool], showSpoolSQL, Job, name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("show spool %s: %w", name, err)
	case len(found) == 0:
		return nil, fmt.Errorf("spool %s: %w: the database has no spool of this name", name, events.ErrNotFound)
	}
	return &found[0], nil
}

// RemoveSpool deletes the registration of a spool, so that no redaction waits for it, and returns
// the deleted row. The content of the spool stays on its disk. A spool that reported within
// SpoolSilentAfter has a running gateway. One that an earlier version reported may have one. Both
// are kept unless force is set. Errors: events.ErrNotFound, events.ErrInvalid.
func RemoveSpool(ctx context.Context, db postgres.DB, name string, force bool) (*Spool, error) {
	removed, err := postgres.Collect(ctx, db, pgx.RowToStructByPos[Spool], removeSpoolSQL, Job, name, force,
		SpoolSilentAfter.Seconds())
	switch {
	case err != nil:
		return nil, fmt.Errorf("remove spool %s: %w", name, err)
	case len(removed) == 1:
		return &removed[0], nil
	}
	s, err := ShowSpool(ctx, db, name)
	if err != nil {
		return nil, err
	}
	if s.Deliveries == nil || time.Since(s.ReportedAt.Time) > SpoolSilentAfter {
		return nil, fmt.Errorf("%w: spool %s (%s): it is unknown whether its gateway runs: an earlier version does "+
			"not report a spool that is not empty. Check that it does not run and that its disk is lost, then pass "+
			"--force (\"force\": true)", events.ErrInvalid, name, s.Location)
	}
	return nil, fmt.Errorf("%w: spool %s (%s) was reported at %s: a running gateway reports every two seconds, and "+
		"has its content. Stop that gateway. If its disk is lost, wait until there is no report for %s, or pass "+
		"--force (\"force\": true)", events.ErrInvalid, name, s.Location, s.ReportedAt, SpoolSilentAfter)
}

// LocalSpool is a registered spool whose folder is on this machine.
type LocalSpool struct {
	Name, Dir string
	// Err says why this account cannot read the folder; then Dir is "".
	Err error
}

// LocalSpools returns the spools whose gateways run on this machine, or were killed on it.
func LocalSpools(ctx context.Context, db postgres.DB) ([]LocalSpool, error) {
	var local []LocalSpool
	for cursor := ""; ; {
		page, err := Spools(ctx, db, cursor, events.MaxLimit)
		if err != nil {
			return nil, fmt.Errorf("list the spools: %w", err)
		}
		for _, s := range page.Items {
			if dir, err := spool.LocalFolder(s.Location, s.Name); dir != "" || err != nil {
				local = append(local, LocalSpool{Name: s.Name, Dir: dir, Err: err})
			}
		}
		if cursor = page.Next; cursor == "" {
			return local, nil
		}
	}
}
