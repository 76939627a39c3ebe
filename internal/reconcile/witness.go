package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// quietError: the account has had no event for so long that none shows whose the key is.
type quietError struct{ text string }

func (e *quietError) Error() string { return e.text }

// unheardError: the newest event that the API lists is not in the log, or not yet.
type unheardError struct{ text string }

func (e *unheardError) Error() string { return e.text }

// asking is what whoever asks for a look can do: no later try would know more by itself.
func (e *quietError) asking() error {
	return fmt.Errorf("%w; no object of the mirror shows it either, so it is not believed: have anything change in the account that makes an event whose webhook comes here, and ask again", e)
}

// believe proves that an object is missing, as a fetcher does. Where the account is quiet, an object that this attempt, with the same key, has found the same here and there proves it too;
// without one the error is an *unseenError, since no later try would know more. Nor does one where a dry run's key was not shown, and the API lists an event that is none of ours: that ends the run.
func (s *sweep) believe(ctx context.Context, k versioning.Key, at where) error {
	err := s.fetcher.believe(ctx, k, at)
	var quiet *quietError
	switch {
	case s.unshown != nil && errors.As(err, new(*unheardError)):
		return runs.Refuse(fmt.Errorf("%w; and %w", s.unshown, err))
	case !errors.As(err, &quiet):
		return err
	case s.witnessed:
		return nil
	}
	return &unseenError{quiet.text + ", and nothing that it lists is the same here: it is not believed"}
}

// witness notes that an object is the same here and there.
func (s *sweep) witness(items []*item) {
	for _, it := range items {
		s.witnessed = s.witnessed || it.kind == equal && it.bad == "" && (it.look == nil || !it.in.State.Deleted)
	}
}
