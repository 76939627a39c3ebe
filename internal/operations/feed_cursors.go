package operations

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/adminauth"
	"github.com/postern-gateway/postern/internal/changes"
	"github.com/postern-gateway/postern/internal/events"
)

// FeedCursorParams are the report of a reader who has processed changes.
type FeedCursorParams struct {
	Name        string  `json:"name"`
	After       *string `json:"after,omitzero"`
	StallsAfter *string `json:"stalls_after,omitzero"`
	Rewind      bool    `json:"rewind,omitzero"`
	Reason      string  `json:"reason,omitzero"`
}

// SetFeedCursor stores how far a reader has processed the changes. A reader's report of progress,
// which is frequent, has no audit entry. A command has one, and so has a report that moves a cursor
// back, or that of another token than before. A token below operator may not move a cursor of
// another one. Errors: events.ErrInvalid, changes.ErrCursorEnded, changes.ErrCursorBack,
// changes.ErrOtherReader.
func SetFeedCursor(ctx context.Context, pool *pgxpool.Pool, p FeedCursorParams,
	by Requester) (*changes.NamedCursor, error) {
	r := changes.CursorReport{Name: p.Name, Rewind: p.Rewind, By: cmp.Or(by.Name, string(by.Via)),
		ByReader: by.Verified() && !by.Role.Includes(adminauth.Operator)}
	if p.After != nil {
		if r.Latest = *p.After == latestChange; !r.Latest {
			after, err := changes.ParseCursor(*p.After)
			if err != nil {
				return nil, err
			}
			r.After = &after
		}
	}
	if p.StallsAfter != nil {
		var d time.Duration
		var err error
		if *p.StallsAfter != "" {
			d, err = duration(*p.StallsAfter)
		}
		if err != nil || d < 0 || d > 365*24*time.Hour {
			return nil, invalid("stalls_after %q: give a duration such as 15m, or nothing for no alert", *p.StallsAfter)
		}
		r.StallsAfter = &d
	}
	return change(ctx, pool, by, "feed set", strings.TrimSpace(p.Reason), func(ctx context.Context, tx pgx.Tx,
		e *adminauth.AuditEntry) (*changes.NamedCursor, error) {
		audited, err := changes.MoveCursor(ctx, tx, r)
		if err != nil {
			return nil, err
		}
		c, err := changes.ShowCursor(ctx, tx, p.Name)
		if err != nil {
			return nil, err
		}
		if !audited && by.Via != adminauth.ViaCommand {
			e.Action = ""
		}
		e.Target = fmt.Sprintf("feed cursor %s, to %s", p.Name, c.Cursor)
		return c, nil
	})
}

// FeedCursorName names a cursor to remove.
type FeedCursorName struct {
	Name   string `json:"name"`
	Reason string `json:"reason,omitzero"`
}

// RemoveFeedCursor removes a named cursor and returns its last state. Errors: events.ErrNotFound.
func RemoveFeedCursor(ctx context.Context, pool *pgxpool.Pool, p FeedCursorName,
	by Requester) (*changes.NamedCursor, error) {
	return change(ctx, pool, by, "feed remove", strings.TrimSpace(p.Reason), func(ctx context.Context, tx pgx.Tx,
		e *adminauth.AuditEntry) (*changes.NamedCursor, error) {
		c, err := changes.ShowCursor(ctx, tx, p.Name)
		if errors.Is(err, events.ErrNotFound) {
			err = fmt.Errorf("%w: see postern feed list", err)
		}
		if err != nil {
			return nil, err
		}
		e.Target = fmt.Sprintf("feed cursor %s at %s", c.Name, c.Cursor)
		return c, changes.RemoveCursor(ctx, tx, p.Name)
	})
}

// FeedEpoch is an epoch of the numbers of changes.
type FeedEpoch struct {
	// Name with which the cursors of the epoch begin.
	Epoch string `json:"epoch"`
}

// BeginFeedEpoch ends all cursors of readers of changes, so that they start again. A reason is
// required. Errors: events.ErrInvalid.
func BeginFeedEpoch(ctx context.Context, pool *pgxpool.Pool, p ReasonParams, by Requester) (*FeedEpoch, error) {
	reason := strings.TrimSpace(p.Reason)
	if reason == "" {
		return nil, invalid("give a reason: all readers of changes must start again, and the audit records why")
	}
	return change(ctx, pool, by, "feed new-epoch", reason, func(ctx context.Context, tx pgx.Tx,
		e *adminauth.AuditEntry) (*FeedEpoch, error) {
		epoch, err := changes.EndEpochs(ctx, tx)
		e.Target = "epoch " + epoch
		return &FeedEpoch{epoch}, err
	})
}
