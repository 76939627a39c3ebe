package reconcile

import (
	"context"
	"errors"
	"fmt"

	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// CheckMissingAt checks that an object is missing, as a fetcher does. If the API lists no events,
// the check succeeds if this attempt has found an equal object with the same key. Without one, the
// error is a *MissingUnconfirmedError, because a later attempt would not find more.
func (s *objectScan) checkMissingAt(ctx context.Context, k versioning.Key, at refetch.Location) error {
	err := s.Fetcher.CheckMissingAt(ctx, k, at)
	var inconclusive *refetch.InconclusiveListError
	switch {
	case !errors.As(err, &inconclusive):
		return err
	case !inconclusive.ListEmpty:
		return s.checkMissingByAccount(ctx, k, inconclusive)
	case s.sawEqualObject:
		return nil
	}
	return &refetch.MissingUnconfirmedError{Text: inconclusive.Text +
		", and no listed object is equal in the mirror: it does not " +
		"count as deleted"}
}

// checkMissingByAccount accepts a missing object, although the newest listed event is not in the
// log, if a new account check succeeds. The check at the start of the attempt is too old. Without a
// result the error is a *MissingUnconfirmedError, so that the scan continues. A dry run without an
// account check fails.
func (s *objectScan) checkMissingByAccount(ctx context.Context, k versioning.Key,
	inconclusive *refetch.InconclusiveListError) error {
	if s.unverified != nil {
		return runs.Permanent(fmt.Errorf("%w; and %w", s.unverified, inconclusive))
	}
	verified, err := s.CheckAccount(ctx, k.Account, k)
	switch {
	case verified:
		return nil
	case errors.As(err, new(*refetch.OtherAccountError)):
		return runs.Permanent(err)
	case err != nil && !errors.As(err, new(*refetch.AccountUnverifiedError)):
		return err
	}
	return &refetch.MissingUnconfirmedError{Text: inconclusive.WithAdvice().Error()}
}

// recordEqual records that an object is equal in the mirror and at the provider.
func (s *objectScan) recordEqual(items []*item) {
	for _, it := range items {
		s.sawEqualObject = s.sawEqualObject || it.kind == equal && it.problem == "" &&
			(it.refetch == nil || !it.input.State.Deleted)
	}
}
