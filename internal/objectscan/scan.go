// Package objectscan compares the mirror with the provider's lists of objects. It refetches the
// objects that differ and those that are not listed, and appends the refetches to the log. Package
// reconcile runs it. It never changes the mirror directly.
package objectscan

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
	"github.com/postern-gateway/postern/internal/refetch"
	"github.com/postern-gateway/postern/internal/runs"
)

// The phases of the scan of a type.
const (
	// phaseList: the provider's list is read.
	phaseList = "list"
	// phaseOrphans: mirrored objects that were not listed are refetched, each with its own call.
	phaseOrphans = "orphans"
	// phaseTombstones: tombstones are written for the missing objects.
	phaseTombstones = "tombstones"
	// phaseAwaitingApproval: the tombstones need an approval, which is requested once the other
	// types are done.
	phaseAwaitingApproval = "awaiting_approval"
	phaseDone             = "done"
)

// maxRestarts is how often a list is started again because its cursor has expired.
const maxRestarts = 5

// Run is a reconciliation run that compares the objects of one account, or those of one type, with
// the provider's lists.
type Run struct {
	*refetch.Fetcher
	Params Params
	Lease  *runs.Lease
	Logger *slog.Logger
	// RetryDelay is the pause before a failed step is retried, MaxPollDelay the longest pause
	// between requests for a list that the provider is still preparing.
	RetryDelay, MaxPollDelay time.Duration
	// WaitForOutcomes waits until all of some events have their outcomes. The run continues if the
	// status is runs.Running.
	WaitForOutcomes func(ctx context.Context, ids []int64) (runs.Status, error)

	lister provider.ObjectLister
	// lists are the lists of the API by type, and types are those of the run, sorted.
	lists map[string]provider.List
	types []string
}

// Params are the parameters of an object scan.
type Params struct {
	// Account is the account as the mirror names it.
	Account string
	// Type is an object type; "" means every type that the API lists.
	Type string
	// Full: all objects are listed, even if the API can list only those that changed.
	Full bool
	// Since and Until bound the time of the changes, on the provider's clock. Zero means from the
	// watermark, less an overlap, and until now.
	Since, Until time.Time
	// DryRun: nothing is appended.
	DryRun bool
}

// objectScan compares all objects of one type with the provider's list.
type objectScan struct {
	*Run
	list       provider.List
	objectType string
	// remainingDetails is for how many more differing objects the run may store the fields.
	remainingDetails int
	// otherTypes are the counts of the run's other types.
	otherTypes ScanCounts
	// reportedAt is when the run's counts were last stored.
	reportedAt time.Time
	// sawEqualObject: this attempt, with its key, listed an object that is equal in the mirror.
	sawEqualObject bool
	// manyRepairs: the last step had many repairs, so the next one is small.
	manyRepairs bool
	// repeatedPages is how many pages in a row listed nothing new, and repeatedObjects how many
	// objects they had.
	repeatedPages, repeatedObjects int
	// waitRecorded: the run's detail says what its list waits for.
	waitRecorded bool
	// emptyPageCycle detects a cycle in a list whose pages may be empty.
	emptyPageCycle cycleDetector
	progress
}

// progress is the stored progress of a scan.
type progress struct {
	phase, cursor  string
	pendingRepairs []pendingRepair
	// changedFrom and changedUntil bound the requested changes; zero for everything.
	changedFrom, changedUntil time.Time
	// listedSince: the list contains all changes before this time.
	listedSince time.Time
	// scope is the scope of the list when the scan started.
	scope string
	// restarts is how often the list was started again.
	restarts int
	// rereads is how often it was started again for pending repairs.
	rereads int
	// skipped are the parts of the list that could not be read.
	skipped []SkippedPart
	// reason is the API's response if the type is not listable.
	reason string
	// approvalRequested is for how many tombstones approval was requested, 0 for none.
	approvalRequested int64
	ScanCounts
}

// pendingRepair is an object before the cursor whose repair has no result yet.
type pendingRepair struct {
	ID      string `json:"id"`
	Kind    kind   `json:"kind"`
	Counted bool   `json:"counted"`
}

// Prepare chooses the types to scan. Its errors are permanent.
func (r *Run) Prepare() error {
	var ok bool
	if r.lister, ok = r.Source.Reader.(provider.ObjectLister); !ok {
		return runs.Permanent(fmt.Errorf("the API of provider %s does not list objects", r.Source.Provider.Name()))
	}
	r.lists = r.lister.Lists(r.Source.Config, r.Source.API, r.Params.Account)
	r.types = slices.Sorted(maps.Keys(r.lists))
	if len(r.types) == 0 {
		return runs.Permanent(fmt.Errorf("with this configuration the API of source %s lists no objects of "+
			"account %q: name the lists in its section api (for GitHub: repositories), or use a key that belongs to "+
			"the account and its mode (test or live)", r.Source.Name, r.Params.Account))
	}
	if _, isListed := r.lists[r.Params.Type]; r.Params.Type != "" && !isListed {
		return runs.Permanent(fmt.Errorf("the API of source %s does not list objects of type %q; it lists %s",
			r.Source.Name, r.Params.Type, strings.Join(r.types, ", ")))
	}
	if r.Params.Type != "" {
		r.types = []string{r.Params.Type}
	}
	if bounded := !r.Params.Since.IsZero() || !r.Params.Until.IsZero(); bounded &&
		!slices.ContainsFunc(r.types, func(t string) bool { return r.lists[t].ByChange }) {
		return runs.Permanent(fmt.Errorf("the API of source %s cannot list the changes of an interval: none of "+
			"the requested lists can. Leave since and until out to compare everything", r.Source.Name))
	}
	return nil
}

// Scan compares all objects of the prepared types with the provider's lists, type by type. It
// refetches and repairs those that differ. The caller has checked the account. With the status
// runs.Running everything is done, and the lease has the counts of all types.
func (r *Run) Scan(ctx context.Context) (runs.Status, error) {
	if err := r.deleteEndedState(ctx); err != nil {
		return "", err
	}
	if err := r.skipUnmirroredTypes(ctx); err != nil {
		return "", err
	}
	details, err := r.remainingDetails(ctx)
	if err != nil {
		return "", err
	}
	var total ScanCounts
	var skipped skippedTypes
	var notReady, notReadyErr *notReadyError
	for _, t := range r.types {
		s := &objectScan{Run: r, list: r.lists[t], objectType: t, otherTypes: total, remainingDetails: details}
		if status, err := s.scanObjects(ctx); errors.As(err, &notReadyErr) {
			notReady = notReady.sooner(notReadyErr)
		} else if err != nil {
			if err := s.skipType(ctx, err); err != nil {
				return "", err
			}
		} else if status != runs.Running {
			return status, nil
		}
		skipped.addType(s)
		total, details = total.add(s.ScanCounts), s.remainingDetails
	}
	if notReady != nil { // the run continues unless only waiting types are left
		return "", runs.Requeue(min(notReady.wait, r.MaxPollDelay), listNotReady+notReady.reason)
	}
	if status, err := r.requestApproval(ctx); err != nil || status != runs.Running {
		return status, err
	}
	if skipped.notListable > 0 && skipped.notListable == len(r.types)-skipped.unmirrored { // the key can read nothing
		return "", skipped.lastFailure
	}
	r.Lease.Counts = total.asCounts()
	for name, n := range skipped.counts() {
		if n > 0 {
			r.Lease.Counts[name] = int64(n)
		}
	}
	return runs.Running, nil
}

// listError: the API's list cannot be used, while other calls may work.
type listError struct{ error }

func (e *listError) Unwrap() error { return e.error }

// scanObjects continues the scan to its end.
func (s *objectScan) scanObjects(ctx context.Context) (status runs.Status, err error) {
	if err := s.prepare(ctx); err != nil {
		return "", err
	}
	if status, err := s.resume(ctx); err != nil || status != runs.Running {
		return status, err
	}
	// An earlier attempt finished it. Reporting it again would count as progress, and so reset the
	// failures of later types.
	if s.isFinished() {
		return runs.Running, nil
	}
	for !s.isFinished() {
		switch s.phase {
		case phaseList:
			status, err = s.scanList(ctx)
		case phaseOrphans:
			status, err = s.findOrphans(ctx)
		case phaseTombstones:
			status, err = s.writeTombstones(ctx)
		}
		if err != nil || status != runs.Running {
			return status, err
		}
	}
	return s.report(ctx, true)
}

// isFinished reports whether the type needs no more work in this attempt.
func (s *objectScan) isFinished() bool {
	return s.phase == phaseDone || s.phase == phaseAwaitingApproval || s.phase == PhaseSkipped ||
		s.phase == PhaseNotListable
}

// scanList reads the list from the cursor on and repairs what differs.
func (s *objectScan) scanList(ctx context.Context) (runs.Status, error) {
	s.waitRecorded = strings.HasPrefix(s.Lease.Detail, listNotReady) // an ended process may have recorded it
	reading, stop := context.WithCancel(ctx)
	pages := s.readPages(reading)
	defer func() {
		stop()
		for range pages { // until the readers have ended
		}
	}()
	for {
		batch, err := nextPages(ctx, pages, s.manyRepairs)
		var w *notReadyError
		if len(batch) > 0 {
			if err := s.clearWaiting(ctx); err != nil {
				return "", err
			}
			if status, err := s.comparePages(ctx, batch); err != nil || status != runs.Running {
				return status, err
			}
		}
		switch {
		case errors.As(err, &w) && w.wait > maxWaitInRun:
			return "", w
		case errors.As(err, &w):
			if err := s.recordWaiting(ctx, w); err != nil {
				return "", err
			}
		case errors.Is(err, providerapi.ErrExpired):
			return s.restartExpiredList(ctx, err)
		case err != nil:
			return "", err
		case s.phase != phaseList:
			return s.report(ctx, true)
		}
	}
}

// nextPages returns the next page and those after it that are ready; with single only one. The
// error is what ended the list.
func nextPages(ctx context.Context, pages <-chan *listPage, single bool) (batch []*listPage, err error) {
	for n := 0; ; {
		var p *listPage
		select {
		case p = <-pages:
		default:
			if len(batch) > 0 {
				return batch, nil
			}
			select {
			case p = <-pages:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		switch {
		case p == nil:
			return batch, cmp.Or(context.Cause(ctx), errors.New("the list ended before its last page"))
		case p.err != nil:
			return batch, p.err
		case p.notReady != nil:
			return batch, p.notReady
		}
		batch, n = append(batch, p), n+len(p.items)
		if single || p.next == "" || n >= compareBatch {
			return batch, nil
		}
	}
}

// comparePages compares pages with the mirror, stores the progress, and repairs what differs.
func (s *objectScan) comparePages(ctx context.Context, pages []*listPage) (runs.Status, error) {
	var items []*item
	added := map[string]bool{}
	position := &scanPosition{phase: s.phase, cursor: pages[len(pages)-1].next}
	for _, p := range pages {
		position.skipped = append(position.skipped, p.skipped...)
		for _, it := range p.items {
			if !added[it.id] { // an object that moved within the list may be listed twice
				added[it.id], items = true, append(items, it)
			}
		}
	}
	position.compared = items
	if position.cursor == "" {
		if position.phase = phaseTombstones; s.listsEverything() {
			position.phase = phaseOrphans
		}
	}
	before := s.Checked
	if status, err := s.compareAndRepair(ctx, items, position); err != nil || status != runs.Running ||
		position.cursor == "" {
		return status, err
	}
	return runs.Running, s.checkCycle(pages, s.Checked > before)
}

// compareAndRepair compares items, stores the position after them, and repairs what differs.
func (s *objectScan) compareAndRepair(ctx context.Context, items []*item, to *scanPosition) (runs.Status, error) {
	if err := s.compare(ctx, items); err != nil {
		return "", err
	}
	unconfirmedItems := filter(items, func(it *item) bool { return it.kind == unconfirmed })
	toRefetch := filter(items, func(it *item) bool { return it.kind == unconfirmed || it.kind.needsRepair() })
	s.manyRepairs = len(toRefetch) > compareBatch/10
	if err := s.refetchAndClassify(ctx, filter(toRefetch, s.needsRefetch)); err != nil {
		return "", err
	}
	s.recordEqual(items)
	if err := s.storeProgress(ctx, to, items); err != nil {
		return "", err
	}
	if !s.Params.DryRun {
		if status, err := s.repair(ctx, append(filter(items, func(it *item) bool { return it.kind.needsRepair() }),
			filter(unconfirmedItems, (*item).confirmsState)...)); err != nil || status != runs.Running {
			return status, err
		}
	}
	return s.report(ctx, false)
}

func filter(items []*item, want func(*item) bool) (some []*item) {
	for _, it := range items {
		if want(it) {
			some = append(some, it)
		}
	}
	return some
}

// needsRefetch reports whether an object that differs or is unconfirmed must be refetched by its id
// to repair it. A whole listed object that is missing in the mirror, or decisive, needs no refetch.
// A dry run refetches only if the list has neither a state nor a version.
func (s *objectScan) needsRefetch(it *item) bool {
	switch {
	case it.problem != "" || it.fetchedByID:
		return false
	case it.refetch == nil && !it.hasAt:
		return true
	}
	return !s.Params.DryRun && (it.refetch == nil || it.kind != missing && !it.isDecisive())
}

// restartExpiredList starts a list again whose cursor has expired. cause is the error that says so.
func (s *objectScan) restartExpiredList(ctx context.Context, cause error) (runs.Status, error) {
	if s.restarts == maxRestarts {
		return "", &listError{fmt.Errorf("the cursor of the API of source %s for type %s has expired "+
			"%d times; the API keeps a cursor for a shorter time than its list takes: raise the source's api.rate, "+
			"or start the run when there is less to do; the last error: %w",
			s.Source.Name, s.objectType, maxRestarts+1, cause)}
	}
	if err := s.restartList(ctx); err != nil {
		return "", err
	}
	s.repeatedPages, s.repeatedObjects, s.emptyPageCycle = 0, 0, cycleDetector{}
	return s.report(ctx, true)
}

// report stores the counts of the run, at most once per RetryDelay unless immediately is set, and
// returns the run's status.
func (s *objectScan) report(ctx context.Context, immediately bool) (runs.Status, error) {
	if !immediately && time.Since(s.reportedAt) < s.RetryDelay {
		return runs.Running, nil
	}
	s.reportedAt = time.Now()
	s.Lease.Counts = s.otherTypes.add(s.ScanCounts).asCounts()
	return s.Lease.Advance(ctx, s.Lease.Cursor+1)
}
