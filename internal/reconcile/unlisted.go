package reconcile

import (
	"context"
	"fmt"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/runs"
)

// InUnlisted is the phase of a type that a sweep over all types has passed over, since the API refuses its list to the key. Nothing is proven of it, and the run does not ask again.
const InUnlisted = "unlisted"

// unlistedSQL ends the sweep of a type whose list is refused; one that could not even begin has no row yet.
const unlistedSQL = `
INSERT INTO sweeps AS s (run, source, account, object_type, phase, why, began, updated_at) VALUES ($1, $3, $4, $2, 'unlisted', $5, to_timestamp(0), clock_now())
ON CONFLICT (run, object_type) DO UPDATE SET phase = excluded.phase, why = excluded.why, cursor = '', began = excluded.began, updated_at = excluded.updated_at RETURNING ` + progressColumns

// unlist keeps that the list of the type is refused, and why. What was listed of it, and said to be missing, is forgotten: no tombstone comes of it.
func (s *sweep) unlist(ctx context.Context, why error) error {
	return s.change(ctx, "pass over a type", func(ctx context.Context, tx pgx.Tx) error {
		for _, sql := range []string{unlistSQL, dropGhostsSQL} {
			if _, err := tx.Exec(ctx, sql, s.hold.Run.Run, s.objectType); err != nil {
				return err
			}
		}
		return s.scan(tx.QueryRow(ctx, unlistedSQL, s.hold.Run.Run, s.objectType, s.order.Source, s.order.Account, events.Text(why.Error())))
	})
}

// passing are the types of a sweep over all of them that it has passed over, and the parts of lists.
type passing struct {
	// unlisted are those whose lists are refused, last the last of these answers.
	unlisted int
	last     error
	// rare are those that the mirror has nothing of and whose lists cost much, and parts the parts of lists that could not be read.
	rare, parts int
	// troubled is what the lists of others met, nil for nothing: the run ends with it, once the other types are done.
	troubled error
}

// count takes a type that the run has come to the end of.
func (o *passing) count(s *sweep) {
	switch s.phase {
	case InUnlisted:
		o.unlisted, o.last = o.unlisted+1, runs.Refuse(&refusedError{text: s.why})
	case InRare:
		o.rare++
	}
	o.parts += len(s.passed)
}

// trouble keeps what a type's list has met.
func (o *passing) trouble(s *sweep, err error) {
	err = fmt.Errorf("type %s was passed over: %w", s.objectType, err)
	if o.troubled != nil {
		err = fmt.Errorf("%w; %w", o.troubled, err)
	}
	o.troubled = err
}

// counts are as the ledger has them.
func (o *passing) counts() map[string]int {
	return map[string]int{Unlisted: o.unlisted, Rare: o.rare, Passed: o.parts}
}
