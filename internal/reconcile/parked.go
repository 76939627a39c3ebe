package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/versioning"
)

// errParked is what a parked hint says.
var errParked = fmt.Errorf("%w: no look can be made, so none is tried until a configuration or a release can; the doubt ends with the object's next event", errNoFetch)

// olderAnswers is after how many attempts a refetch is suspended because the API still answers an older version than the mirror
// has. The waits between them add up to some eight minutes, which is more than a copy of the provider's data lags behind.
const olderAnswers = 8

// errWentBack is the reason of such a suspended refetch.
var errWentBack = fmt.Errorf("%s than the mirror has, again and again: the provider may have been restored from a backup. Compare both, "+
	"and run postern objects settle to overwrite the object from the API", versioning.WentBack)

// hopeless is why no look can be made as long as nothing changes, nil where another try may do better. A gap that is parked would be forgotten, since its object is in no doubt: on a quiet account it is tried on.
func (one *hint) hopeless(err error) error {
	var silent *silentError
	switch {
	case errors.As(err, &silent) && silent.quiet && (!one.gaps || one.wantedBy != ""):
		return fmt.Errorf("%w, and no look is tried until a processor starts; the doubt ends with the object's next event", silent.asking())
	case errors.Is(err, errNoFetch):
		return errParked
	case moved(err):
		return fmt.Errorf("%w; no look is tried until a processor starts, or somebody asks for one; the doubt ends with the object's next event", err)
	}
	return nil
}

// moved says whether the API answered another object than the one that was asked for.
func moved(err error) bool {
	var dead *provider.Dead
	return errors.As(err, &dead) && dead.Moved
}

// unfit is why a look tells too little of its object to end any doubt, nil where it tells enough: a number that grows with each change says nothing of an object that is gone, and an
// answer may be cut. Another look would be the same.
func (f *fetcher) unfit(d *events.Delivery) (why, err error) {
	l, err := provider.DecodeLook(d.Body)
	if err != nil {
		return nil, err
	}
	obs, err := f.source.Reader.Snapshot(f.source.Config, &l.Snapshot)
	if err != nil || obs.Partial == "" {
		return nil, f.hide(err)
	}
	return fmt.Errorf("the API does not answer the object's whole state: %s; no look is tried until the object is in doubt anew, a processor starts, or somebody asks for one",
		f.source.API.Hide(obs.Partial)), nil
}

// parking is why a hint is parked, and what its object owes so far: more than that wakes it. Granted: who wanted a look has had it.
type parking struct {
	why     error
	after   int64
	granted bool
}

// parkSQL parks a hint, unless another reason to look has come meanwhile, which $8 would tell: for that it stays due.
const parkSQL = `
UPDATE hints SET due = CASE WHEN made_at = $8 THEN 'infinity' ELSE due END, taken_by = '', taken_until = '-infinity', attempts = attempts + 1, error = $6, after = $7,
  wanted_by = CASE WHEN made_at = $8 AND $9 THEN '' ELSE wanted_by END, reason = CASE WHEN made_at = $8 AND $9 THEN 'in doubt' ELSE reason END
WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4 AND taken_by = $5`

// park lays a hint back for as long as the source is read as it is now: the API has no call that would settle it, or answers another object, or too little of it.
func (h *hinted) park(ctx context.Context, one hint, p parking) error {
	h.looks.Logger.Warn("look not possible", "source", h.source.Name, "type", one.key.Type, "object", one.key.ID, "error", p.why)
	if _, err := h.Pool.Exec(ctx, parkSQL, h.source.Number, one.key.Account, one.key.Type, one.key.ID, h.looks.ID, events.Text(p.why.Error()), p.after, one.madeAt, p.granted); err != nil {
		return fmt.Errorf("park hint: %w", err)
	}
	return nil
}

const parkedSQL = `
SELECT h.account, h.object_type, h.object_id FROM hints h
WHERE h.source = $1 AND h.due = 'infinity' AND (h.account, h.object_type, h.object_id) > ($2, $3, $4)
ORDER BY h.account, h.object_type, h.object_id LIMIT $5`

const wakeSQL = `
UPDATE hints h SET due = clock_now() FROM unnest($2::text[], $3::text[], $4::text[]) AS w(account, object_type, object_id)
WHERE h.source = $1 AND h.account = w.account AND h.object_type = w.object_type AND h.object_id = w.object_id AND h.due = 'infinity'`

// opened tells everybody that the source's API is read here.
func (h *hinted) opened(ctx context.Context) error {
	if _, err := h.Pool.Exec(ctx, openSQL, h.source.Number, "", burstOf(h.source.API)); err != nil {
		return fmt.Errorf("open the budget: %w", err)
	}
	return nil
}

// affordSQL has hints that wait for calls tried again, since more may be allowed by now.
const affordSQL = `UPDATE hints h SET due = clock_now() WHERE h.source = $1 AND h.due > (SELECT clock_now()) AND h.due < 'infinity' AND starts_with(h.error, $2)`

// wake makes those hints due that wait for calls, and those parked ones that the source, as it is read now, has a call for.
func (h *hinted) wake(ctx context.Context) error {
	if _, err := h.Pool.Exec(ctx, affordSQL, h.source.Number, spentWords); err != nil {
		return fmt.Errorf("wake hints that wait for calls: %w", err)
	}
	var from versioning.Key
	for {
		rows, err := h.Pool.Query(ctx, parkedSQL, h.source.Number, from.Account, from.Type, from.ID, gatherObjects)
		if err != nil {
			return fmt.Errorf("read parked hints: %w", err)
		}
		n := 0
		var accounts, types, ids []string
		_, err = pgx.ForEachRow(rows, []any{&from.Account, &from.Type, &from.ID}, func() error {
			n++
			_, ok := h.source.Reader.Fetch(h.source.Config, h.source.API, from.Account, from.Type, from.ID)
			if _, tries := h.source.Reader.(provider.Locator); ok || tries { // what is known of it tells, which may be more by now
				accounts, types, ids = append(accounts, from.Account), append(types, from.Type), append(ids, from.ID)
			}
			return nil
		})
		if err == nil && len(ids) > 0 {
			_, err = h.Pool.Exec(ctx, wakeSQL, h.source.Number, accounts, types, ids)
		}
		if err != nil {
			return fmt.Errorf("wake parked hints: %w", err)
		}
		if n < gatherObjects {
			return nil
		}
	}
}

// forgetParkedSQL forgets parked hints, of some at a time in the order of their keys, whose objects owe nothing any more in the mirror, or are not there. What stays: a hint for gaps, be it that a change
// does not fit or that an event came late, which only a look or the events end; and a wish that no look was made for yet. One whose look was made, and told too little, is no wish any more (parkSQL).
const forgetParkedSQL = `
WITH page AS MATERIALIZED (
  SELECT h.account, h.object_type, h.object_id FROM hints h
  WHERE h.source = $1 AND h.due = 'infinity' AND (h.account, h.object_type, h.object_id) > ($2, $3, $4)
  ORDER BY h.account, h.object_type, h.object_id LIMIT $5
), gone AS (
  DELETE FROM hints h USING page p
  WHERE h.source = $1 AND h.account = p.account AND h.object_type = p.object_type AND h.object_id = p.object_id AND h.due = 'infinity' AND h.wanted_by = '' AND h.gaps IS NULL
    AND NOT EXISTS (SELECT FROM objects o WHERE o.source = $1 AND o.account = p.account AND o.object_type = p.object_type AND o.object_id = p.object_id AND o.look_after <> 0)
)
SELECT p.account, p.object_type, p.object_id FROM page p ORDER BY p.account DESC, p.object_type DESC, p.object_id DESC LIMIT 1`

func (h *hinted) forget(ctx context.Context) error {
	err := h.Pool.QueryRow(ctx, forgetParkedSQL, h.source.Number, h.parked.Account, h.parked.Type, h.parked.ID, gatherObjects).Scan(&h.parked.Account, &h.parked.Type, &h.parked.ID)
	if errors.Is(err, pgx.ErrNoRows) {
		h.parked, err = versioning.Key{}, nil
	}
	if err != nil {
		return fmt.Errorf("forget parked hints: %w", err)
	}
	return nil
}
