package operations

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/config"
	"github.com/postern-gateway/postern/internal/events"
)

const (
	// maxChangeWait is the longest time that a request may wait for changes.
	maxChangeWait = time.Minute
	// changePageBytes limits the states on a page, streamPageBytes on a part of a stream, of which
	// each reader may hold one.
	changePageBytes = 8 << 20
	streamPageBytes = 128 << 10
	streamPageItems = 100
	// moveInterval is how often a stream reports that its cursor has moved without changes.
	moveInterval = 15 * time.Second
	// latestChange is the value of after that selects only what comes later.
	latestChange = "latest"
)

// ChangeParams select changes of the mirror.
type ChangeParams struct {
	After      string  `json:"after,omitzero"`
	FeedCursor string  `json:"feed_cursor,omitzero"`
	Source     string  `json:"source,omitzero"`
	Account    *string `json:"account,omitzero"`
	Type       string  `json:"type,omitzero"`
	ID         string  `json:"id,omitzero"`
	Limit      *int    `json:"limit,omitzero" validate:"omitnil,page_size"`
	Wait       string  `json:"wait,omitzero"`
	States     *bool   `json:"states,omitzero"`
}

// query returns the query, and how long to wait. Errors: events.ErrInvalid, events.ErrNotFound for
// the named cursor.
func (p *ChangeParams) query(ctx context.Context, r *changes.Reader, endpoints func() []config.Endpoint) (
	q changes.Query, wait time.Duration, err error) {
	q = changes.Query{Filter: changes.Filter{Account: p.Account, Type: p.Type, ID: p.ID}, Limit: events.DefaultLimit,
		States: p.States == nil || *p.States, MaxBytes: changePageBytes, Latest: p.After == latestChange}
	if q.Source, err = checkSource(ctx, r.Pool, *p, p.Source); err != nil {
		return q, 0, err
	}
	if p.Limit != nil {
		q.Limit = *p.Limit
	}
	if p.Wait != "" {
		if wait, err = duration(p.Wait); err != nil || wait < 0 || wait > maxChangeWait {
			return q, 0, invalid("wait %q: give a duration up to %s, such as 30s", p.Wait, maxChangeWait)
		}
	}
	switch {
	case p.FeedCursor != "" && p.After != "":
		return q, 0, invalid("give either after or feed_cursor")
	case p.FeedCursor != "":
		named, err := changes.ShowCursor(ctx, r.Pool, p.FeedCursor)
		if errors.Is(err, events.ErrNotFound) {
			err = fmt.Errorf("%w: create it with PUT /api/v1/feed-cursors/%s, or read with after", err, p.FeedCursor)
		}
		if err != nil {
			return q, 0, err
		}
		if named.Ended {
			return q, 0, changes.ErrCursorEnded
		}
		q.After = named.At()
	case !q.Latest:
		q.After, err = changes.ParseCursor(p.After)
	}
	if err == nil && p.Type != "" && q.After == (changes.Cursor{}) {
		err = p.checkType(ctx, r.Pool, endpoints(), q.Source)
	}
	return q, wait, err
}

// maxTypeAccounts is how many accounts of a source are searched for an object of a type.
const maxTypeAccounts = 1000

// hasTypeSQL returns whether the source $1 has an object of type $2, or more than $3 accounts. It
// walks the accounts through the primary key.
const hasTypeSQL = `
WITH RECURSIVE hop AS (
  (SELECT o.account, 1 AS n FROM objects o WHERE o.source = $1 ORDER BY o.account LIMIT 1)
  UNION ALL
  SELECT k.account, hop.n + 1 FROM hop CROSS JOIN LATERAL (
    SELECT o.account FROM objects o WHERE o.source = $1 AND o.account > hop.account ORDER BY o.account LIMIT 1) k
  WHERE hop.n <= $3
)
SELECT EXISTS (SELECT FROM hop WHERE hop.n > $3 OR EXISTS (SELECT FROM objects o
  WHERE o.source = $1 AND o.account = hop.account AND o.object_type = $2 OFFSET 0))`

// checkType checks the type of a reader who starts to read a source. A type of which no object
// exists is probably misspelt if the provider has one with a similar name. Errors:
// events.ErrInvalid.
func (p *ChangeParams) checkType(ctx context.Context, pool *pgxpool.Pool, endpoints []config.Endpoint,
	number int32) error {
	i := slices.IndexFunc(endpoints, func(e config.Endpoint) bool { return e.Source.Name == p.Source })
	if i < 0 {
		return nil
	}
	similar := endpoints[i].SimilarType(p.Type)
	if similar == "" {
		return nil
	}
	var exists bool
	err := pool.QueryRow(ctx, hasTypeSQL, number, p.Type, maxTypeAccounts).Scan(&exists)
	if err == nil && !exists {
		err = invalid("no object has the type %q; did you mean %s?", p.Type, similar)
	}
	return err
}

// Changes returns a page of changes. With a wait it waits until there are some. Errors:
// events.ErrInvalid, events.ErrNotFound, changes.ErrCursorEnded, changes.ErrTooManyReaders,
// changes.ErrReaderClosed.
func Changes(ctx context.Context, r *changes.Reader, endpoints func() []config.Endpoint, p ChangeParams) (changes.Page,
	error) {
	q, wait, err := p.query(ctx, r, endpoints)
	if err != nil {
		return changes.Page{}, err
	}
	if wait == 0 {
		return r.Read(ctx, q)
	}
	leave, err := r.Join()
	if err != nil {
		return changes.Page{}, err
	}
	defer leave()
	waiting, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	return r.Wait(waiting, q)
}

// FollowChanges returns a channel with the changes after a cursor, and with those that come later,
// until ctx ends or the cursor has ended. Errors: those of Changes.
func FollowChanges(ctx context.Context, r *changes.Reader, endpoints func() []config.Endpoint,
	p ChangeParams) (<-chan changes.Page, error) {
	q, _, err := p.query(ctx, r, endpoints)
	if err != nil {
		return nil, err
	}
	q.Limit, q.MaxBytes = min(q.Limit, streamPageItems), streamPageBytes
	leave, err := r.Join()
	if err != nil {
		return nil, err
	}
	first, err := r.Read(ctx, q)
	if err != nil {
		leave()
		return nil, err
	}
	out := make(chan changes.Page)
	go func() {
		defer leave()
		defer close(out)
		r.Follow(ctx, q, first, moveInterval, out)
	}()
	return out, nil
}
