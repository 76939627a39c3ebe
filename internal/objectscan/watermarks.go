package objectscan

import (
	"context"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/watermarks"
)

// listScope is a digest of what the list covers: the call for its first page, and the repositories
// in their order. With another scope the list may contain objects from before a watermark, and
// cursors are not valid.
func (s *objectScan) listScope() string {
	paged := *s.Source.API
	paged.Bulk = nil // a file lists the same objects
	c := s.lister.ListObjects(s.Source.Config, &paged, s.Params.Account, s.objectType, time.Time{}, time.Time{}, "")
	return watermarks.Scope(append(watermarks.CallParts(c), s.Source.API.Repositories...))
}

// listMargin is how long before the list a row may have been observed and still count as newer than
// it. A Date has seconds only, the list may lag, and its response may be slow.
func (s *objectScan) listMargin() time.Duration {
	return time.Second + s.Source.Reader.Lag() + s.Source.Caller.MaxLatency()
}

// raiseWatermarks raises the watermarks of the type, unless an object is unrepaired or a part of
// the list was skipped. A full list raises the watermark of all objects. If the API lists changes,
// a full list and a list of changes raise the watermark of the changes. The watermark of all
// objects replaces that of versions.
func (s *objectScan) raiseWatermarks(ctx context.Context, tx pgx.Tx) error {
	since, until, subjects := watermarks.Epoch, s.listedSince.Add(-s.listMargin()),
		[]string{watermarks.OfType(s.objectType)}
	if s.list.VersionsOnly {
		subjects[0] = watermarks.OfVersions(s.objectType)
	}
	if s.list.ByChange {
		subjects = append(subjects, watermarks.OfChanges(s.objectType))
	}
	if !s.listsEverything() {
		since, subjects = s.changedFrom, []string{watermarks.OfChanges(s.objectType)}
	}
	if !s.changedUntil.IsZero() && s.changedUntil.Before(until) {
		until = s.changedUntil
	}
	if s.Params.DryRun || s.Unrepaired > 0 || len(s.skipped) > 0 || !since.Before(until) {
		return nil
	}
	if err := watermarks.RaiseObjects(ctx, tx, &watermarks.Interval{Source: s.Source.Number, Account: s.Params.Account,
		Scope: s.scope, Since: since, Until: until, Run: s.Lease.Run.ID}, subjects...); err != nil {
		return err
	}
	if subjects[0] != watermarks.OfType(s.objectType) {
		return nil
	}
	return watermarks.Delete(ctx, tx, s.Source.Number, s.Params.Account, watermarks.OfVersions(s.objectType))
}
