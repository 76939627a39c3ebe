package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// inconclusiveListError: no event in the API's list shows which account the key belongs to.
type inconclusiveListError struct {
	text string
	// listEmpty: the list has no events. Otherwise the log lacks the newest listed event: its type
	// is not subscribed, it is on its way, or it belongs to another account.
	listEmpty bool
}

func (e *inconclusiveListError) Error() string { return e.text }

// withAdvice adds what the operator can do.
func (e *inconclusiveListError) withAdvice() error {
	return fmt.Errorf("%w. Nothing else shows it either, so the object does not count as deleted: change anything in "+
		"the account that sends a webhook to this source, and try again", e)
}

// checkMissingAt checks that an object is missing, as a fetcher does. If the API lists no events,
// the check succeeds if this attempt has found an equal object with the same key. Without one, the
// error is a *missingUnconfirmedError, because a later attempt would not find more.
func (s *objectScan) checkMissingAt(ctx context.Context, k versioning.Key, at location) error {
	err := s.fetcher.checkMissingAt(ctx, k, at)
	var inconclusive *inconclusiveListError
	switch {
	case !errors.As(err, &inconclusive):
		return err
	case !inconclusive.listEmpty:
		return s.checkMissingByAccount(ctx, k, inconclusive)
	case s.sawEqualObject:
		return nil
	}
	return &missingUnconfirmedError{inconclusive.text + ", and no listed object is equal in the mirror: it does not " +
		"count as deleted"}
}

// checkMissingByAccount accepts a missing object, although the newest listed event is not in the
// log, if a new account check succeeds. The check at the start of the attempt is too old. Without a
// result the error is a *missingUnconfirmedError, so that the scan continues. A dry run without an
// account check fails.
func (s *objectScan) checkMissingByAccount(ctx context.Context, k versioning.Key,
	inconclusive *inconclusiveListError) error {
	if s.unverified != nil {
		return runs.Permanent(fmt.Errorf("%w; and %w", s.unverified, inconclusive))
	}
	verified, err := s.checkAccount(ctx, k.Account, k)
	switch {
	case verified:
		return nil
	case errors.As(err, new(*otherAccountError)):
		return runs.Permanent(err)
	case err != nil && !errors.As(err, new(*accountUnverifiedError)):
		return err
	}
	return &missingUnconfirmedError{inconclusive.withAdvice().Error()}
}

// recordEqual records that an object is equal in the mirror and at the provider.
func (s *objectScan) recordEqual(items []*item) {
	for _, it := range items {
		s.sawEqualObject = s.sawEqualObject || it.kind == equal && it.problem == "" &&
			(it.refetch == nil || !it.input.State.Deleted)
	}
}
