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
	"github.com/postern-gateway/postern/internal/runs"
)

// What a sweep of a type goes through.
const (
	// inList: the provider's list is read.
	inList = "list"
	// inGhosts: what is here and was not listed is looked at, each by itself.
	inGhosts = "ghosts"
	// inGraves: what was missing there becomes a tombstone.
	inGraves = "graves"
	// inProposal: these would be many tombstones. A person is asked once the other types are done.
	inProposal = "proposed"
	inDone     = "done"
)

// maxRestarts is how often a list is begun again because its cursor has expired.
const maxRestarts = 5

// sweep goes through all objects of one type.
type sweep struct {
	*work
	lister     provider.ObjectLister
	list       provider.List
	objectType string
	// details is how many objects that differ the run may still tell of field by field.
	details int
	// others are the counts of the run's other types.
	others Tally
	// told is when the ledger last heard of the run.
	told time.Time
	// witnessed: an object was the same here and there, as this process was told with the key that it has.
	witnessed bool
	// crowded: much had to be mended in the last step, so the next is a small one.
	crowded bool
	// idle is how many pages in a row have told of nothing new, and stale how many objects were on them.
	idle, stale int
	// waiting: the run says what its list waits for.
	waiting bool
	// sparse finds the circles of a list whose pages may be empty.
	sparse circle
	progress
}

// progress is how far a sweep is, as it is stored.
type progress struct {
	phase, cursor string
	hand          []handed
	// from and upTo bound the changes that are asked for, zero: everything is.
	from, upTo time.Time
	// began: what happened before is told by the list at least.
	began time.Time
	// scope is what the list was asked for when the sweep began.
	scope string
	// restarts is how often the list was begun again.
	restarts int
	// rereads is how often it was begun again for what was in hand.
	rereads int
	// passed are the parts of the list that could not be read.
	passed []PassedOver
	// why is what the API answered of a type that is unlisted.
	why string
	// asked is how many tombstones a person was asked for, 0 where nobody was.
	asked int64
	Tally
}

// handed is an object before the cursor that is not mended yet.
type handed struct {
	ID      string `json:"id"`
	Kind    kind   `json:"kind"`
	Counted bool   `json:"counted"`
}

// objects holds all objects of the types asked for against what the provider lists, type by type. What differs is fetched and appended as a look.
func (w *work) objects(ctx context.Context) (runs.Status, error) {
	lister, ok := w.source.Reader.(provider.ObjectLister)
	if !ok {
		return "", runs.Refuse(fmt.Errorf("the API of provider %s does not list objects", w.source.Provider.Name()))
	}
	lists := lister.Lists(w.source.Config, w.source.API, w.order.Account)
	types := slices.Sorted(maps.Keys(lists))
	if len(types) == 0 {
		return "", runs.Refuse(fmt.Errorf("with this configuration the API of source %s lists no objects of account %q: name what is to be listed in its section api (as repositories of GitHub); or the account is none of the key's, or of another mode than the key (test or live)",
			w.source.Name, w.order.Account))
	}
	if _, known := lists[w.order.Type]; w.order.Type != "" && !known {
		return "", runs.Refuse(fmt.Errorf("the API of source %s does not list objects of type %q; it lists %s", w.source.Name, w.order.Type, strings.Join(types, ", ")))
	}
	if w.order.Type != "" {
		types = []string{w.order.Type}
	}
	if bounded := !w.order.Since.IsZero() || !w.order.Until.IsZero(); bounded && !slices.ContainsFunc(types, func(t string) bool { return lists[t].ByChange }) {
		return "", runs.Refuse(fmt.Errorf("the API of source %s cannot be asked for what changed in a time: none of the lists that were asked for can. Leave since and until out, and everything is compared", w.source.Name))
	}
	w.types = types
	if status, err := w.own(ctx); err != nil || status != runs.Running {
		return status, err
	}
	if err := w.forget(ctx); err != nil {
		return "", err
	}
	if err := w.passRare(ctx, types, lists); err != nil {
		return "", err
	}
	details, err := w.details(ctx)
	if err != nil {
		return "", err
	}
	var done Tally
	var over passing
	var waits, its *waitsError
	for _, t := range types {
		s := &sweep{work: w, lister: lister, list: lists[t], objectType: t, others: done, details: details}
		if status, err := s.carry(ctx); errors.As(err, &its) {
			waits = waits.soonest(its)
		} else if err != nil {
			if err := s.past(ctx, err, &over); err != nil {
				return "", w.lasting(ctx, err)
			}
		} else if status != runs.Running {
			return status, nil
		}
		over.count(s)
		done, details = done.plus(s.Tally), s.details
	}
	if waits != nil { // the run goes on where nothing but that is left to do
		return "", runs.Later(min(waits.wait, w.Settings.Poll), notYet+waits.why)
	}
	if status, err := w.propose(ctx, over.troubled); err != nil || status != runs.Running {
		return status, err
	}
	switch {
	case over.troubled != nil:
		return "", w.lasting(ctx, over.troubled)
	case over.unlisted > 0 && over.unlisted == len(types)-over.rare: // the key is good for nothing
		return "", over.last
	}
	return w.swept(ctx, done, over.counts())
}

// listError is what ended a list.
type listError struct{ error }

func (e *listError) Unwrap() error { return e.error }

// past passes over a type whose list ended with an error, while the key is good for something. A key that may only read need not read everything, and an account has not every product.
// What ends the run at once is returned.
func (s *sweep) past(ctx context.Context, err error, over *passing) error {
	var list *listError
	var not *refusedError
	refused := errors.As(err, &not)
	if s.order.Type != "" || ctx.Err() != nil || !refused && !errors.As(err, &list) {
		return err
	}
	if _, bad := s.control(ctx, s.order.Account); bad != nil { // it is not the type's trouble
		return bad
	}
	s.log.Warn("type passed over, for its list cannot be read", "source", s.source.Name, "type", s.objectType, "refused", refused, "error", err)
	if refused {
		return s.unlist(ctx, err)
	}
	over.trouble(s, err)
	return nil
}

// swept tells the ledger of all types, and how many of them, or of their parts, were passed over.
func (w *work) swept(ctx context.Context, done Tally, over map[string]int) (runs.Status, error) {
	w.hold.Counts = done.counts()
	for what, n := range over {
		if n > 0 {
			w.hold.Counts[what] = int64(n)
		}
	}
	w.skewed()
	return w.hold.Advance(ctx, w.hold.Cursor+1)
}

// carry goes on with the sweep to its end.
func (s *sweep) carry(ctx context.Context) (status runs.Status, err error) {
	if err := s.open(ctx); err != nil {
		return "", err
	}
	if status, err := s.again(ctx); err != nil || status != runs.Running {
		return status, err
	}
	if s.still() { // by an earlier try: to tell of it again would be no progress, and so end the trouble of what comes after it
		return runs.Running, nil
	}
	for !s.still() {
		switch s.phase {
		case inList:
			status, err = s.listed(ctx)
		case inGhosts:
			status, err = s.walk(ctx)
		case inGraves:
			status, err = s.graves(ctx)
		}
		if err != nil || status != runs.Running {
			return status, err
		}
	}
	return s.tell(ctx, true)
}

// still: there is nothing to do for the type, or not before a person was asked.
func (s *sweep) still() bool {
	return s.phase == inDone || s.phase == inProposal || s.phase == InRare || s.phase == InUnlisted
}

// listed reads the list from the cursor on and mends what differs.
func (s *sweep) listed(ctx context.Context) (runs.Status, error) {
	s.waiting = strings.HasPrefix(s.hold.Detail, notYet) // a process that has ended may have said so
	reading, stop := context.WithCancel(ctx)
	pages := s.read(reading)
	defer func() {
		stop()
		for range pages { // until the readers have ended
		}
	}()
	for {
		some, err := gather(ctx, pages, s.crowded)
		var w *waitsError
		if len(some) > 0 {
			if err := s.awaited(ctx); err != nil {
				return "", err
			}
			if status, err := s.step(ctx, some); err != nil || status != runs.Running {
				return status, err
			}
		}
		switch {
		case errors.As(err, &w) && w.wait > staysFor:
			return "", w
		case errors.As(err, &w):
			if err := s.awaits(ctx, w); err != nil {
				return "", err
			}
		case errors.Is(err, errExpired):
			return s.restart(ctx, err)
		case err != nil:
			return "", &listError{err}
		case s.phase != inList:
			return s.tell(ctx, true)
		}
	}
}

// gather takes the next page and those behind it that are there already; one says that one is enough. The error is what ended the list.
func gather(ctx context.Context, pages <-chan *listPage, one bool) (some []*listPage, err error) {
	for n := 0; ; {
		var p *listPage
		select {
		case p = <-pages:
		default:
			if len(some) > 0 {
				return some, nil
			}
			select {
			case p = <-pages:
			case <-ctx.Done():
				return nil, context.Cause(ctx)
			}
		}
		switch {
		case p == nil:
			return some, cmp.Or(context.Cause(ctx), errors.New("the list ended before its last page"))
		case p.err != nil:
			return some, p.err
		case p.waits != nil:
			return some, p.waits
		}
		some, n = append(some, p), n+len(p.items)
		if one || p.next == "" || n >= compareAtOnce {
			return some, nil
		}
	}
}

// step holds pages against the mirror, keeps how far that is, and mends what differs.
func (s *sweep) step(ctx context.Context, pages []*listPage) (runs.Status, error) {
	var items []*item
	seen := map[string]bool{}
	place := &place{phase: s.phase, cursor: pages[len(pages)-1].next}
	for _, p := range pages {
		place.passed = append(place.passed, p.passed...)
		for _, it := range p.items {
			if !seen[it.id] { // what moved within the list may be told twice
				seen[it.id], items = true, append(items, it)
			}
		}
	}
	place.met = items
	if place.cursor == "" {
		if place.phase = inGraves; s.whole() {
			place.phase = inGhosts
		}
	}
	before := s.Checked
	if status, err := s.pass(ctx, items, place); err != nil || status != runs.Running || place.cursor == "" {
		return status, err
	}
	return runs.Running, s.circles(pages, s.Checked > before)
}

// pass compares items, keeps the place behind them, and mends what differs.
func (s *sweep) pass(ctx context.Context, items []*item, to *place) (runs.Status, error) {
	if err := s.compare(ctx, items); err != nil {
		return "", err
	}
	unsure := choose(items, func(it *item) bool { return it.kind == open })
	asked := choose(items, func(it *item) bool { return it.kind == open || it.kind.wrong() })
	s.crowded = len(asked) > compareAtOnce/10
	if err := s.visit(ctx, choose(asked, s.needsVisit)); err != nil {
		return "", err
	}
	s.witness(items)
	if err := s.keep(ctx, to, items); err != nil {
		return "", err
	}
	if !s.order.DryRun {
		if status, err := s.mend(ctx, append(choose(items, func(it *item) bool { return it.kind.wrong() }), choose(unsure, (*item).closes)...)); err != nil || status != runs.Running {
			return status, err
		}
	}
	return s.tell(ctx, false)
}

func choose(items []*item, want func(*item) bool) (some []*item) {
	for _, it := range items {
		if want(it) {
			some = append(some, it)
		}
	}
	return some
}

// needsVisit says whether an object is to be asked for by its name: all that differ, or that are open, but those that the list tells whole, and that are not here, or that this settles. A dry run asks only where the list says nothing.
func (s *sweep) needsVisit(it *item) bool {
	switch {
	case it.bad != "" || it.fetched:
		return false
	case it.look == nil && !it.hasAt:
		return true
	}
	return !s.order.DryRun && (it.look == nil || it.kind != missing && !it.settles())
}

// restart begins a list again whose cursor is no longer known, as why says.
func (s *sweep) restart(ctx context.Context, why error) (runs.Status, error) {
	if s.restarts == maxRestarts {
		return "", &listError{runs.Refuse(fmt.Errorf("the API of source %s forgot the cursor of type %s %d times; it keeps one for a shorter time than its list takes: raise the source's api.rate, or ask when there is less to do; the last time: %w",
			s.source.Name, s.objectType, maxRestarts+1, why))}
	}
	if err := s.renew(ctx); err != nil {
		return "", err
	}
	s.idle, s.stale, s.sparse = 0, 0, circle{}
	return s.tell(ctx, true)
}

// tell tells the ledger how far the run is, now and then or at once, and how the run stands.
func (s *sweep) tell(ctx context.Context, now bool) (runs.Status, error) {
	if !now && time.Since(s.told) < s.Settings.Again {
		return runs.Running, nil
	}
	s.told = time.Now()
	s.hold.Counts = s.others.plus(s.Tally).counts()
	return s.hold.Advance(ctx, s.hold.Cursor+1)
}
