package reconcile

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/versioning"
)

// wishSQL has a look at an object made at once, once for however many wishes: the last one's words stay.
const wishSQL = `
WITH h AS (
  INSERT INTO hints AS h (source, account, object_type, object_id, reason, wanted_by, made_at, due, after)
  SELECT $1, $2, $3, $4, $5, $6, n.at, n.at, 0 FROM (SELECT clock_now() AS at) n
  ON CONFLICT (source, account, object_type, object_id) DO UPDATE SET reason = excluded.reason, wanted_by = excluded.wanted_by,
    made_at = greatest(excluded.made_at, h.made_at + interval '1 microsecond'), due = excluded.due, attempts = 0, error = ''
  RETURNING *
)
SELECT ` + hintColumns + ` FROM h JOIN sources s ON s.number = h.source`

// Wish has somebody's look at an object made by a running processor at its next pass, as soon as what the object owes one for is past.
func Wish(ctx context.Context, db postgres.DB, k versioning.Key, who, reason string) (*HintView, error) {
	return one(ctx, db, k, "enter", wishSQL, k.Source, k.Account, k.Type, k.ID, events.Text(reason), events.Text(who))
}

// readSQL says whether some processor has the source's API to read: each opens the budget of the key's account when it begins.
const readSQL = `SELECT EXISTS (SELECT FROM budgets WHERE source = $1)`

// Read says whether a processor has had a source whose API it reads, since nobody else makes its looks.
func Read(ctx context.Context, pool *pgxpool.Pool, source int32) (read bool, err error) {
	if err := pool.QueryRow(ctx, readSQL, source).Scan(&read); err != nil {
		return false, fmt.Errorf("see whether the API of source %d is read: %w", source, err)
	}
	return read, nil
}

// forgetSQL takes a hint back. The mirror makes it again where the object still owes a look.
const forgetSQL = `
WITH h AS (
  DELETE FROM hints h WHERE h.source = $1 AND h.account = $2 AND h.object_type = $3 AND h.object_id = $4 RETURNING *
)
SELECT ` + hintColumns + ` FROM h JOIN sources s ON s.number = h.source`

// Forget takes a hint back: a wish, or one that nothing can be made of. A look under way is made all the same. Errors: events.ErrNotFound.
func Forget(ctx context.Context, db postgres.DB, k versioning.Key) (*HintView, error) {
	return one(ctx, db, k, "drop", forgetSQL, k.Source, k.Account, k.Type, k.ID)
}

func one(ctx context.Context, db postgres.DB, k versioning.Key, verb, sql string, args ...any) (*HintView, error) {
	rows, err := db.Query(ctx, sql, args...)
	var h HintView
	if err == nil {
		h, err = pgx.CollectExactlyOneRow(rows, scanHint)
	}
	if errors.Is(err, pgx.ErrNoRows) {
		err = events.ErrNotFound
	}
	if err != nil {
		return nil, fmt.Errorf("%s hint of %s %s: %w", verb, k.Type, k.ID, err)
	}
	return &h, nil
}

// wished is what is kept with a look that somebody wanted, in the place of what proves a delivery. The time makes each wish another.
func wished(one hint) ([]byte, error) {
	return json.Marshal(struct {
		Scheme   string    `json:"scheme"`
		WantedBy string    `json:"wanted_by"`
		Reason   string    `json:"reason"`
		WantedAt time.Time `json:"wanted_at"`
	}{"api", one.wantedBy, one.reason, one.madeAt.UTC()})
}

// wishKey is the key of a look that somebody wanted: it is an event of its own, so that the log says who did and why, also where another look has seen the same.
func wishKey(look string, proof []byte) string { return worded("wish:", look, proof) }
