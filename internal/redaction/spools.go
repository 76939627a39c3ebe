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

const drainedSQL = `SELECT spool, place FROM spools WHERE empty_at <= $1 ORDER BY empty_at, spool LIMIT 1`

// spoolsAgain is how long a run waits before it looks at the spools again.
const spoolsAgain = time.Second

// drained waits until all that gateways had acknowledged when the redaction was asked for is in the log, where it finds it: what a gateway has in its spool nobody else can
// read. A gateway that is gone with something in its spool is waited for until a person says that it does not come again.
func (w *work) drained(ctx context.Context) error {
	var spool, place string
	err := w.Pool.QueryRow(ctx, drainedSQL, w.hold.MadeAt.Time).Scan(&spool, &place)
	switch {
	case errors.Is(err, pgx.ErrNoRows):
		return nil
	case err != nil:
		return fmt.Errorf("look whether spools are empty: %w", err)
	}
	return runs.Later(spoolsAgain, fmt.Sprintf("waits until the gateway with the spool %s says that nothing older is in it: start that gateway if it does not run; if its disk is lost, postern spool forget %s", place, spool))
}

// SpoolLate is how long a gateway may say nothing of its spool; one that runs and reaches the database tells every two seconds, also while it drains it.
const SpoolLate = 5 * time.Minute

// Spool is one that the database knows: that of a gateway which runs, or ended without the time to say that nothing is left.
type Spool struct {
	Name string `json:"spool"`
	// Place is the machine and the folder.
	Place string `json:"place"`
	// KnownSince is zero where the row is older than the keeping of it.
	KnownSince events.Instant `json:"known_since"`
	// ToldAt is when the gateway last told of it, EmptyAt when it was last known to be empty; zero: never.
	ToldAt  events.Instant `json:"told_at"`
	EmptyAt events.Instant `json:"empty_at"`
	// Deliveries and Bytes are what was in it at ToldAt; nil where a gateway of an earlier version told.
	Deliveries *int64 `json:"deliveries"`
	Bytes      *int64 `json:"bytes"`
	// OldestAt is not after the oldest of them was acknowledged; zero where there were none, or nobody knows.
	OldestAt events.Instant `json:"oldest_at"`
	// Redactions are the runs that wait for it.
	Redactions []int64 `json:"redactions"`
}

// toldSQL is when spool s was last told of; null: never, as far as is known.
const toldSQL = `greatest(s.told_at, CASE WHEN isfinite(s.empty_at) THEN s.empty_at END)`

// spoolColumns are a Spool's; $1 is the name of the job.
const spoolColumns = `s.spool, s.place, s.known_at, ` + toldSQL + `, CASE WHEN isfinite(s.empty_at) THEN s.empty_at END, s.deliveries, s.bytes, s.oldest_at,
  ARRAY(SELECT r.run FROM runs r WHERE r.job = $1 AND r.ended_at IS NULL AND r.bound IS NULL AND r.made_at >= s.empty_at ORDER BY r.run)`

const (
	spoolsSQL = `SELECT ` + spoolColumns + ` FROM spools s WHERE s.spool > $2 ORDER BY s.spool LIMIT $3`

	showSpoolSQL = `SELECT ` + spoolColumns + ` FROM spools s WHERE s.spool = $2`

	// forgetSpoolSQL looks again at a row that was told of meanwhile. A gateway of before told_at was kept says only that its spool is empty, and nothing while it is not: where such a one told last, nobody can say whether it runs.
	forgetSpoolSQL = `
DELETE FROM spools s WHERE s.spool = $2 AND ($3 OR s.told_at >= s.empty_at AND s.told_at < clock_now() - make_interval(secs => $4)) RETURNING ` + spoolColumns
)

// Spools returns a page of the spools, by name. Errors: events.ErrInvalid.
func Spools(ctx context.Context, db postgres.DB, cursor string, limit int) (events.Page[Spool], error) {
	var page events.Page[Spool]
	limit, err := events.PageSize(limit)
	if err != nil {
		return page, err
	}
	var after string
	if err := events.ReadCursor(cursor, &after); err != nil {
		return page, err
	}
	if page.Items, err = readSpools(ctx, db, spoolsSQL, Job, after, limit); err != nil {
		return page, fmt.Errorf("list spools: %w", err)
	}
	if len(page.Items) == limit {
		page.Next = events.MakeCursor(page.Items[limit-1].Name)
	}
	return page, nil
}

// ShowSpool returns one spool. Errors: events.ErrNotFound.
func ShowSpool(ctx context.Context, db postgres.DB, name string) (*Spool, error) {
	found, err := readSpools(ctx, db, showSpoolSQL, Job, name)
	switch {
	case err != nil:
		return nil, fmt.Errorf("show spool %s: %w", name, err)
	case len(found) == 0:
		return nil, fmt.Errorf("spool %s: %w: the database knows of none with this name", name, events.ErrNotFound)
	}
	return &found[0], nil
}

// ForgetSpool takes away what is known of a spool, so that no redaction waits for it, and returns it as it was. What is in it stays where it is. One that was told of within SpoolLate has a gateway,
// and one that a gateway of an earlier version told of last may have one: they are left unless force is set. Errors: events.ErrNotFound, events.ErrInvalid.
func ForgetSpool(ctx context.Context, db postgres.DB, name string, force bool) (*Spool, error) {
	gone, err := readSpools(ctx, db, forgetSpoolSQL, Job, name, force, SpoolLate.Seconds())
	switch {
	case err != nil:
		return nil, fmt.Errorf("forget spool %s: %w", name, err)
	case len(gone) == 1:
		return &gone[0], nil
	}
	s, err := ShowSpool(ctx, db, name)
	if err != nil {
		return nil, err
	}
	if s.Deliveries == nil || time.Since(s.ToldAt.Time) > SpoolLate {
		return nil, fmt.Errorf("%w: spool %s (%s): nothing says whether its gateway runs: one of an earlier version is silent while something is in its spool. See that it does not run and its disk is gone, then give --force (\"force\": true)", events.ErrInvalid, name, s.Place)
	}
	return nil, fmt.Errorf("%w: spool %s (%s) was told of at %s: a gateway that runs says so every two seconds, and has what is in it. Stop that gateway; where its disk is gone, wait until nobody has told of it for %s, or give --force (\"force\": true)",
		events.ErrInvalid, name, s.Place, s.ToldAt, SpoolLate)
}

// LocalSpool is a spool that the database knows and whose folder is on this machine.
type LocalSpool struct {
	Name, Dir string
	// Err says why this account cannot read the folder; Dir is "" then.
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
			if dir, err := spool.Local(s.Place, s.Name); dir != "" || err != nil {
				local = append(local, LocalSpool{Name: s.Name, Dir: dir, Err: err})
			}
		}
		if cursor = page.Next; cursor == "" {
			return local, nil
		}
	}
}

func readSpools(ctx context.Context, db postgres.DB, sql string, args ...any) ([]Spool, error) {
	rows, err := db.Query(ctx, sql, args...)
	if err != nil {
		return nil, err
	}
	return pgx.CollectRows(rows, func(row pgx.CollectableRow) (s Spool, err error) {
		var known, told, empty, oldest *time.Time
		err = row.Scan(&s.Name, &s.Place, &known, &told, &empty, &s.Deliveries, &s.Bytes, &oldest, &s.Redactions)
		s.KnownSince, s.ToldAt, s.EmptyAt, s.OldestAt = events.Optionally(known), events.Optionally(told), events.Optionally(empty), events.Optionally(oldest)
		return s, err
	})
}
