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

	"github.com/jackc/pgx/v5"

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
	inDone   = "done"
)

// maxRestarts is how often a list is begun again because its cursor has expired.
const maxRestarts = 5

// maxIdle is how many pages in a row may tell of nothing new.
const maxIdle = 100

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
	// restarts is how often the list was begun again.
	restarts int
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

// Tally counts what a sweep has met; each object counts once.
type Tally struct {
	// Checked were listed, or asked for by their name because they were not.
	Checked int64 `json:"checked"`
	// Equal are the same here and there.
	Equal int64 `json:"equal"`
	// Missing are there and not here, Behind are older here, Ahead are newer here than the list can know, and Different are of one version and not the same.
	Missing   int64 `json:"missing"`
	Behind    int64 `json:"behind"`
	Ahead     int64 `json:"ahead"`
	Different int64 `json:"different"`
	// Ghosts are here and not there.
	Ghosts int64 `json:"ghosts"`
	// Mended are those that are right since, and Left those that are not.
	Mended int64 `json:"mended"`
	Left   int64 `json:"left"`
}

// plus is the sum of two.
func (t Tally) plus(u Tally) Tally {
	return Tally{t.Checked + u.Checked, t.Equal + u.Equal, t.Missing + u.Missing, t.Behind + u.Behind, t.Ahead + u.Ahead, t.Different + u.Different,
		t.Ghosts + u.Ghosts, t.Mended + u.Mended, t.Left + u.Left}
}

// Counts of a sweep beside Seen (all that was checked, and ghosts) and Missing.
const (
	Equal     = "equal"
	Behind    = "behind"
	Ahead     = "ahead"
	Different = "different"
	Ghosts    = "ghosts"
	Mended    = "mended"
	Left      = "left"
	// Unlisted are types whose lists the API refuses, so that a sweep over all types has passed over them: nothing is proven of them.
	Unlisted = "unlisted"
)

// counts are as the ledger has them.
func (t Tally) counts() map[string]int64 {
	return map[string]int64{Seen: t.Checked + t.Ghosts, Equal: t.Equal, Missing: t.Missing, Behind: t.Behind, Ahead: t.Ahead, Different: t.Different, Ghosts: t.Ghosts,
		Mended: t.Mended, Left: t.Left}
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
	if err := w.forget(ctx); err != nil {
		return "", err
	}
	details, err := w.details(ctx)
	if err != nil {
		return "", err
	}
	var done Tally
	var over passing
	for _, t := range types {
		s := &sweep{work: w, lister: lister, list: lists[t], objectType: t, others: done, details: details}
		if status, err := s.carry(ctx); err != nil {
			if err := over.pass(ctx, s, err); err != nil {
				return "", err
			}
		} else if status != runs.Running {
			return status, nil
		}
		done, details = done.plus(s.Tally), s.details
	}
	switch {
	case over.troubled != nil:
		return "", over.troubled
	case over.refused > 0 && over.refused == len(types): // the key is good for nothing
		return "", over.last
	}
	return w.swept(ctx, done, over.refused)
}

// passing are the types of a sweep over all of them that it has passed over.
type passing struct {
	// refused are those whose lists are refused, last the last of these answers.
	refused int
	last    error
	// troubled is what the lists of others met, nil for nothing: the run ends with it, once the other types are done.
	troubled error
}

// listError is what ended a list.
type listError struct{ error }

func (e *listError) Unwrap() error { return e.error }

// pass passes over a type whose list ended with an error, while the key is good for something. A key that may only read need not read everything, and an account has not every product.
// What ends the run at once is returned.
func (o *passing) pass(ctx context.Context, s *sweep, err error) error {
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
		o.refused, o.last = o.refused+1, err
		return nil
	}
	err = fmt.Errorf("type %s was passed over: %w", s.objectType, err)
	if o.troubled != nil {
		err = fmt.Errorf("%w; %w", o.troubled, err)
	}
	o.troubled = err
	return nil
}

// swept tells the ledger of all types, and how many of them were passed over since their lists were refused.
func (w *work) swept(ctx context.Context, done Tally, refused int) (runs.Status, error) {
	w.hold.Counts = done.counts()
	if refused > 0 {
		w.hold.Counts[Unlisted] = int64(refused)
	}
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
	if s.phase == inDone { // by an earlier try: to tell of it again would be no progress, and so end the trouble of what comes after it
		return runs.Running, nil
	}
	for s.phase != inDone {
		switch s.phase {
		case inList:
			status, err = s.listed(ctx)
		case inGhosts:
			status, err = s.unlisted(ctx)
		case inGraves:
			status, err = s.graves(ctx)
		}
		if err != nil || status != runs.Running {
			return status, err
		}
	}
	return s.tell(ctx, true)
}

// open reads how far the sweep is, or begins it.
func (s *sweep) open(ctx context.Context) error {
	err := s.load(ctx)
	if !errors.Is(err, pgx.ErrNoRows) {
		return err
	}
	a, err := s.control(ctx, s.order.Account) // which tells the provider's time
	if err != nil {
		return err
	}
	since, until, err := s.bounds(ctx)
	if err != nil {
		return err
	}
	began := a.Date.Add(-a.Elapsed - max(s.list.Lag, s.source.Reader.Lag()))
	if err := s.begin(ctx, since, until, began); err != nil {
		return err
	}
	return s.load(ctx)
}

// bounds are the time whose changes are asked for; zero for everything.
func (s *sweep) bounds(ctx context.Context) (since, until time.Time, err error) {
	if !s.list.ByChange || s.order.Full {
		return since, until, nil
	}
	until = s.source.Caller.Now()
	if !s.order.Until.IsZero() && s.order.Until.Before(until) {
		until = s.order.Until
	}
	if !s.order.Since.IsZero() {
		return s.order.Since, until, s.ordered(s.order.Since, until)
	}
	from, proven, err := s.known(ctx)
	if err != nil || proven.IsZero() || from.After(epoch) { // not all of the time before is proven
		return time.Time{}, time.Time{}, err
	}
	since = proven.Add(-s.Settings.Overlap - s.list.Lag)
	return since, until, s.ordered(since, until)
}

// ordered refuses a time that ends before it begins.
func (s *sweep) ordered(since, until time.Time) error {
	if !until.Before(since) {
		return nil
	}
	return runs.Refuse(fmt.Errorf("type %s: what changed since %s and until %s would be asked for, which is nothing: without a since it is from a little before what is proven", s.objectType,
		since.Format(time.RFC3339), until.Format(time.RFC3339)))
}

// whole: all objects are listed, not only those that changed.
func (s *sweep) whole() bool { return s.from.IsZero() }

// listed reads the list from the cursor on and mends what differs.
func (s *sweep) listed(ctx context.Context) (runs.Status, error) {
	reading, stop := context.WithCancel(ctx)
	pages := s.read(reading)
	defer func() {
		stop()
		for range pages { // until the readers have ended
		}
	}()
	for {
		some, err := gather(ctx, pages, s.crowded)
		if len(some) > 0 {
			if status, err := s.step(ctx, some); err != nil || status != runs.Running {
				return status, err
			}
		}
		switch {
		case errors.Is(err, errExpired):
			return s.restart(ctx)
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
	for _, p := range pages {
		for _, it := range p.items {
			if !seen[it.id] { // what moved within the list may be told twice
				seen[it.id], items = true, append(items, it)
			}
		}
	}
	place := &place{phase: s.phase, cursor: pages[len(pages)-1].next, met: items}
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

// circles ends a list that tells of nothing new page after page. One that was begun again may tell once more of all that it has told of.
func (s *sweep) circles(pages []*listPage, fresh bool) error {
	if fresh {
		s.idle, s.stale = 0, 0
		return nil
	}
	for _, p := range pages {
		s.stale += len(p.items)
		if s.idle++; s.restarts > 0 && len(p.items) > 0 && int64(s.stale) <= s.Checked {
			s.idle = 0
		}
	}
	if s.idle <= maxIdle {
		return nil
	}
	return runs.Refuse(fmt.Errorf("the API of source %s told of nothing new on the last %d pages of type %s, and of more to come each time: its cursors lead in a circle", s.source.Name, s.idle, s.objectType))
}

// pass compares items, keeps the place behind them, and mends what differs.
func (s *sweep) pass(ctx context.Context, items []*item, to *place) (runs.Status, error) {
	if err := s.compare(ctx, items); err != nil {
		return "", err
	}
	wrong := choose(items, func(it *item) bool { return it.kind.wrong() })
	for _, it := range wrong {
		if it.known == nil && it.whole != nil && !s.order.DryRun { // what is not here at all is taken as the list tells it
			it.look = it.whole
			s.understand(it)
		}
	}
	s.crowded = len(wrong) > compareAtOnce/10
	if err := s.visit(ctx, choose(wrong, s.needsVisit)); err != nil {
		return "", err
	}
	s.witness(items)
	if err := s.keep(ctx, to, items); err != nil {
		return "", err
	}
	if !s.order.DryRun {
		if status, err := s.mend(ctx, choose(wrong, func(it *item) bool { return it.kind.wrong() })); err != nil || status != runs.Running {
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

// needsVisit says whether an object is to be asked for by its name: all that differ but those that are not here and that the list tells whole. A dry run asks only where the list says nothing.
func (s *sweep) needsVisit(it *item) bool {
	switch {
	case it.bad != "" || it.fetched:
		return false
	case it.look == nil && !it.hasAt:
		return true
	}
	return !s.order.DryRun && (it.look == nil || it.kind != missing)
}

// restart begins a list again whose cursor is no longer known.
func (s *sweep) restart(ctx context.Context) (runs.Status, error) {
	if s.restarts == maxRestarts {
		return "", &listError{runs.Refuse(fmt.Errorf("the API of source %s forgot the cursor of type %s %d times; it keeps one for a shorter time than its list takes: raise the source's api.rate, or ask when there is less to do",
			s.source.Name, s.objectType, maxRestarts+1))}
	}
	if err := s.renew(ctx); err != nil {
		return "", err
	}
	s.idle, s.stale = 0, 0
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
