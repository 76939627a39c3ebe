package reconcile

import (
	"context"
	"errors"

	"github.com/postern-gateway/postern/internal/versioning"
)

// quietError: the account has had no event for so long that none shows whose the key is.
type quietError struct{ text string }

func (e *quietError) Error() string { return e.text }

// believe proves that an object is missing, as a fetcher does. Where the account is quiet, an object that this attempt, with the same key, has found the same here and there proves it too;
// without one the error is an *unseenError, since no later try would know more.
func (s *sweep) believe(ctx context.Context, k versioning.Key, at where) error {
	err := s.fetcher.believe(ctx, k, at)
	var quiet *quietError
	switch {
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
