package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/providerapi"
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

// objectScan compares all objects of one type with the provider's list.
type objectScan struct {
	*execution
	lister     provider.ObjectLister
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

// reconcileObjects compares all objects of the requested types with the provider's lists, type by
// type. It refetches and repairs those that differ.
func (w *execution) reconcileObjects(ctx context.Context) (runs.Status, error) {
	lister, ok := w.Source.Reader.(provider.ObjectLister)
	if !ok {
		return "", runs.Permanent(fmt.Errorf("the API of provider %s does not list objects", w.Source.Provider.Name()))
	}
	lists := lister.Lists(w.Source.Config, w.Source.API, w.params.Account)
	types := slices.Sorted(maps.Keys(lists))
	if len(types) == 0 {
		return "", runs.Permanent(fmt.Errorf("with this configuration the API of source %s lists no objects of "+
			"account %q: name the lists in its section api (for GitHub: repositories), or use a key that belongs to "+
			"the account and its mode (test or live)", w.Source.Name, w.params.Account))
	}
	if _, isListed := lists[w.params.Type]; w.params.Type != "" && !isListed {
		return "", runs.Permanent(fmt.Errorf("the API of source %s does not list objects of type %q; it lists %s",
			w.Source.Name, w.params.Type, strings.Join(types, ", ")))
	}
	if w.params.Type != "" {
		types = []string{w.params.Type}
	}
	if bounded := !w.params.Since.IsZero() || !w.params.Until.IsZero(); bounded &&
		!slices.ContainsFunc(types, func(t string) bool { return lists[t].ByChange }) {
		return "", runs.Permanent(fmt.Errorf("the API of source %s cannot list the changes of an interval: none of "+
			"the requested lists can. Leave since and until out to compare everything", w.Source.Name))
	}
	w.types = types
	if status, err := w.checkRunAccount(ctx); err != nil || status != runs.Running {
		return status, err
	}
	if err := w.deleteEndedState(ctx); err != nil {
		return "", err
	}
	if err := w.skipUnmirroredTypes(ctx, types, lists); err != nil {
		return "", err
	}
	details, err := w.remainingDetails(ctx)
	if err != nil {
		return "", err
	}
	var total ScanCounts
	var skipped skippedTypes
	var notReady, notReadyErr *notReadyError
	for _, t := range types {
		s := &objectScan{execution: w, lister: lister, list: lists[t], objectType: t, otherTypes: total,
			remainingDetails: details}
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
		return "", runs.Requeue(min(notReady.wait, w.settings.MaxPollDelay), listNotReady+notReady.reason)
	}
	if status, err := w.requestApproval(ctx); err != nil || status != runs.Running {
		return status, err
	}
	if skipped.notListable > 0 && skipped.notListable == len(types)-skipped.unmirrored { // the key can read nothing
		return "", skipped.lastFailure
	}
	return w.reportScanned(ctx, total, skipped.counts())
}

// listError: the API's list cannot be used, while other calls may work.
type listError struct{ error }

func (e *listError) Unwrap() error { return e.error }

// reportScanned stores the counts of all types, and the numbers of skipped types and parts.
func (w *execution) reportScanned(ctx context.Context, done ScanCounts, skipped map[string]int) (runs.Status, error) {
	w.lease.Counts = done.asCounts()
	for name, n := range skipped {
		if n > 0 {
			w.lease.Counts[name] = int64(n)
		}
	}
	w.recordSkew()
	return w.lease.Advance(ctx, w.lease.Cursor+1)
}

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
	s.waitRecorded = strings.HasPrefix(s.lease.Detail, listNotReady) // an ended process may have recorded it
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
	if !s.params.DryRun {
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
	return !s.params.DryRun && (it.refetch == nil || it.kind != missing && !it.isDecisive())
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
	if !immediately && time.Since(s.reportedAt) < s.settings.RetryDelay {
		return runs.Running, nil
	}
	s.reportedAt = time.Now()
	s.lease.Counts = s.otherTypes.add(s.ScanCounts).asCounts()
	return s.lease.Advance(ctx, s.lease.Cursor+1)
}
