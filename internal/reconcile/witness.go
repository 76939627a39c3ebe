package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// silentError: no event that the API lists shows whose the key is.
type silentError struct {
	text string
	// quiet: it lists none any more. Else the newest is not in the log: it is of a type that nobody has subscribed to, on its way, or another account's.
	quiet bool
}

func (e *silentError) Error() string { return e.text }

// asking is what whoever asks for a look can do.
func (e *silentError) asking() error {
	return fmt.Errorf("%w; nothing else shows it either, so it is not believed: have anything change in the account that makes an event whose webhook comes here, and ask again", e)
}

// believe proves that an object is missing, as a fetcher does. Where the account is quiet, an object that this attempt, with the same key, has found the same here and there proves it too;
// without one the error is an *unseenError, since no later try would know more.
func (s *sweep) believe(ctx context.Context, k versioning.Key, at where) error {
	err := s.fetcher.believe(ctx, k, at)
	var silent *silentError
	switch {
	case !errors.As(err, &silent):
		return err
	case !silent.quiet:
		return s.despite(ctx, k, silent)
	case s.witnessed:
		return nil
	}
	return &unseenError{silent.text + ", and nothing that it lists is the same here: it is not believed"}
}

// despite has what is missing believed where the newest event that the API lists is not in the log, if the key is shown anew to be the account's: what showed it when the attempt began was asked for before. Where nothing
// shows it the error is an *unseenError, so that the sweep goes on, and a dry run that nothing has shown before ends.
func (s *sweep) despite(ctx context.Context, k versioning.Key, silent *silentError) error {
	if s.unshown != nil {
		return runs.Refuse(fmt.Errorf("%w; and %w", s.unshown, silent))
	}
	shown, err := s.ours(ctx, k.Account, k)
	switch {
	case shown:
		return nil
	case errors.As(err, new(*foreignError)):
		return runs.Refuse(err)
	case err != nil && !errors.As(err, new(*unshownError)):
		return err
	}
	return &unseenError{silent.asking().Error()}
}

// witness notes that an object is the same here and there.
func (s *sweep) witness(items []*item) {
	for _, it := range items {
		s.witnessed = s.witnessed || it.kind == equal && it.bad == "" && (it.look == nil || !it.in.State.Deleted)
	}
}
