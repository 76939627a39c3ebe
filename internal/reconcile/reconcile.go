// Package reconcile takes the provider's API as the source of truth: it fetches what webhooks have lost, or left in doubt, and appends it to the log,
// from where everything goes the way of all events.
package reconcile

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/processor"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/runs"
)

// Job is what reconciliations are called in the ledger of runs.
const Job = "reconcile"

// What a reconciliation looks through.
const (
	// Events: what the provider says it has sent.
	Events = "events"
	// Object: one object.
	Object = "object"
	// Objects: all objects of a type, or of every type that the API lists.
	Objects = "objects"
)

// Order is what a reconciliation is asked to do.
type Order struct {
	// Source is the number of the source, and Account the tenant inside it, "" for the one that the key is of.
	Source  int32  `json:"source"`
	Account string `json:"account"`
	// AllAccounts: a run for each account that is known is entered in the place of this one.
	AllAccounts bool `json:"all_accounts,omitzero"`
	// Of is the run that entered this one for an account; 0 for none.
	Of int64 `json:"of,omitzero"`
	// What is Events, Object or Objects; Type and ID are the object's. Of Objects an empty Type is every type that the API lists.
	What string `json:"what"`
	Type string `json:"type,omitzero"`
	ID   string `json:"id,omitzero"`
	// Full: all objects are listed, also where the API could tell of those that changed.
	Full bool `json:"full,omitzero"`
	// Since and Until bound the time of the events, or of the objects' changes, on the provider's clock; zero: from the watermark, less an overlap, and up to now.
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
	// DryRun: nothing is appended.
	DryRun bool `json:"dry_run,omitzero"`
	// Settle: a person has the look at the object win over all that was there before, a final tombstone too.
	Settle bool `json:"settle,omitzero"`
	// Words are what was asked as the person wrote it, by parameter.
	Words map[string]string `json:"words"`
}

// Counts of a run.
const (
	// Seen are the events or objects that the provider has told of.
	Seen = "processed"
	// Missing are those that the log had not; appended, unless it was a dry run.
	Missing = "missing"
	// Present are those that it had.
	Present = "present"
	// Conflicting are events that the log has with other content.
	Conflicting = "conflicting"
)

// Source is a source whose provider's API can be read.
type Source struct {
	Name   string
	Number int32
	Config *provider.Source
	// Except are accounts that all accounts does not mean, as the provider names them, "" for the one that the key is of.
	Except   []string
	API      *provider.API
	Provider provider.Provider
	// Reader reads the API: the provider or, where the source describes its API, that description. What else can be done with the API (EventLister,
	// ObjectLister) it says as well.
	Reader provider.Reader
	// Caller calls the API, within what all processes together may.
	Caller Caller
}

// Caller calls a provider's API; a Client does.
type Caller interface {
	// Do makes one call, when its turn has come, and judges the answer. An error is trouble of ours.
	Do(ctx context.Context, c provider.Call) (*Response, error)
	// Download opens a file that the API has named, from a byte on, without the key.
	Download(ctx context.Context, account, address string, offset int64) (io.ReadCloser, error)
	// Now is the time on the provider's clock, as far as it is known.
	Now() time.Time
	// Longest is how long the slowest answer of late has taken to begin.
	Longest() time.Duration
	// Skew is how far the provider's clock was ahead of the database's, at least, in the answer of late in which they differed most; negative: behind.
	Skew() time.Duration
}

// Settings are a reconciliation's numbers; tests shorten them.
type Settings struct {
	// Span is the first stretch of provider time that is read between two checkpoints; it grows and shrinks with what is in it.
	Span, MinSpan, MaxSpan time.Duration
	// Overlap is how far before the watermark a run begins, and Settle how far behind the provider's now it ends: what comes later may not be listed yet.
	Overlap, Settle time.Duration
	// Kept is how long the provider keeps its events.
	Kept time.Duration
	// Again is the pause before trouble is tried again.
	Again time.Duration
	// Poll is the longest pause before a list that the provider is still making is asked for again.
	Poll time.Duration
	// Tries is how often in a row a run may be put off before one that is left with nothing but lists in trouble fails: some hours, since a run is put off for a minute at most.
	Tries int
	// Say is how long a run waits for outcomes before its detail says so.
	Say time.Duration
	// Lease is how long a taken hint is one process's.
	Lease time.Duration
	// Shown is how long it is remembered that a key was shown to be the account's.
	Shown time.Duration
}

// DefaultSettings are the shipped ones.
var DefaultSettings = Settings{Span: time.Hour, MinSpan: time.Minute, MaxSpan: 24 * time.Hour, Overlap: time.Hour, Settle: 30 * time.Second, Kept: 30 * 24 * time.Hour, Again: time.Second, Poll: time.Minute, Tries: 180,
	Say: 10 * time.Second, Lease: 2 * time.Minute, Shown: 5 * time.Minute}

// Runner carries out reconciliations.
type Runner struct {
	// Pool is connected as postern_processor, and Log as postern_gateway, which alone may append.
	Pool, Log *pgxpool.Pool
	Processor *processor.Processor
	// Sources are those with an API.
	Sources  *Sources
	Settings Settings
	// Now is this machine's clock, by which what was fetched is received; nil: time.Now. Tests replace it.
	Now func() time.Time
}

// received is the time of receipt of what has just been fetched.
func (r *Runner) received() time.Time {
	if r.Now == nil {
		return time.Now().UTC()
	}
	return r.Now().UTC()
}

// Sources are those whose API can be read, by number; a new configuration replaces them.
type Sources struct {
	now atomic.Pointer[map[int32]*Source]
	// replaced ends what goes on with those of before.
	replaced atomic.Pointer[context.CancelFunc]
	// shows is whose their keys were shown to be.
	shows shows
}

// Replace makes these the sources.
func (s *Sources) Replace(sources ...*Source) {
	byNumber := map[int32]*Source{}
	for _, one := range sources {
		byNumber[one.Number] = one
	}
	s.now.Store(&byNumber)
	if cancel := s.replaced.Load(); cancel != nil {
		(*cancel)()
	}
}

// All are the sources as they are now.
func (s *Sources) All() map[int32]*Source {
	if now := s.now.Load(); now != nil {
		return *now
	}
	return nil
}

// work is one reconciliation in this process's hands.
type work struct {
	fetcher
	hold  *runs.Hold
	order Order
	log   *slog.Logger
	// putOff: the run was put off for trouble before this try.
	putOff bool
	// counts are of what lies behind the checkpoint and is not passed by it yet: ended there, it is counted again.
	counts map[string]int64
	// types are those that a sweep goes through.
	types []string
	// unshown is that nothing shows whose the key of a dry run is; nil: something does.
	unshown error
	// lacked are the keys of the missing events of the stretch in hand.
	lacked []string
}

// Carry does what the run was asked for; it is a runs.Carry.
func (r *Runner) Carry(ctx context.Context, h *runs.Hold, log *slog.Logger) (status runs.Status, err error) {
	defer func() {
		if p := recover(); p != nil { // an answer that its reader cannot bear must not end the process again and again
			err = runs.Refuse(panicked(p))
		}
	}()
	w := &work{hold: h, log: log, putOff: h.Troubles > 0, counts: map[string]int64{}}
	asked := json.NewDecoder(bytes.NewReader(h.Asked))
	asked.DisallowUnknownFields() // an order of a later release may mean something else by what is unknown here
	if err := asked.Decode(&w.order); err != nil {
		return "", runs.Refuse(fmt.Errorf("read what was asked for: %w", err))
	}
	w.fetcher = fetcher{Runner: r, source: r.Sources.All()[w.order.Source], proof: fmt.Appendf(nil, `{"scheme":"api","run":%d}`, h.Run.Run)}
	if w.source == nil {
		return "", runs.Refuse(errors.New("the source has no section api in the configuration of the processor that took the run: add it there, and ask again"))
	}
	if w.order.Account == "" {
		w.order.Account = w.home()
	}
	w.asked = w.order.What == Object
	if w.order.AllAccounts && h.Cursor == 0 {
		if entered, err := w.each(ctx); err != nil || entered {
			return runs.Done, err
		}
	}
	status, err = w.carry(ctx)
	return status, w.affordable(w.absent(err))
}

// carry carries the run out, once there is a call for it.
func (w *work) carry(ctx context.Context) (runs.Status, error) {
	if strings.HasPrefix(w.hold.Detail, spentWords) { // it says so no more once a call can be made
		if _, err := w.control(ctx, w.order.Account); err != nil {
			return w.disconnected(ctx, err)
		}
		if err := w.hold.Note(ctx, ""); err != nil {
			return "", err
		}
	}
	switch w.order.What {
	case Events:
		return w.events(ctx)
	case Object:
		return w.object(ctx)
	case Objects:
		return w.objects(ctx)
	}
	return "", runs.Refuse(fmt.Errorf("%q is nothing that can be reconciled", w.order.What))
}

// home is the account that an order means which names none: the one that the key is of, as the mirror names it. What a source's own account has sent names no account.
func (w *work) home() string {
	if in, ok := w.source.Reader.(provider.Sited); ok {
		return in.Home(w.source.Config)
	}
	if w.order.What == Events {
		return ""
	}
	return w.source.Config.Account
}

// panicked is an answer that the provider's code could not bear.
func panicked(p any) error {
	return fmt.Errorf("reading what the API answered panicked, which is a defect of this release (report it; a later one may be able to): %v", p)
}

// append appends deliveries and enters what is new into the mirror. It returns all events that they tell of, new or not.
func (w *work) append(ctx context.Context, ds []events.Delivery) ([]int64, error) {
	receipts, err := events.Append(ctx, w.Log, ds)
	if err != nil {
		return nil, err
	}
	var fresh, present, all []int64
	conflicts, keys := int64(0), map[int64]string{}
	for _, of := range receipts {
		for _, r := range of {
			all = append(all, r.ID)
			switch {
			case r.Conflict:
				conflicts++
			case r.Duplicate:
				present = append(present, r.ID)
				keys[r.ID] = r.Key
			default:
				fresh = append(fresh, r.ID)
				w.lacked = append(w.lacked, r.Key)
			}
		}
	}
	entering := fresh
	if len(present) > 0 { // a process that has ended may have appended some of them
		mine, err := w.mine(ctx, present)
		if err != nil {
			return nil, err
		}
		fresh = append(fresh, mine...)
		for _, id := range mine {
			w.lacked = append(w.lacked, keys[id])
		}
	}
	w.counts[Seen] += int64(len(present)+len(entering)) + conflicts
	w.counts[Present] += int64(len(present) + len(entering) - len(fresh))
	w.counts[Missing] += int64(len(fresh))
	w.counts[Conflicting] += conflicts
	_, err = w.Processor.Enter(ctx, entering)
	return all, err
}

const mineSQL = `SELECT id FROM events WHERE id = ANY($1::bigint[]) AND origin = 'reconcile' AND verification ->> 'run' = $2::bigint::text`

// mine are those of some events that this run has appended.
func (w *work) mine(ctx context.Context, ids []int64) ([]int64, error) {
	rows, err := w.Pool.Query(ctx, mineSQL, ids, w.hold.Run.Run)
	if err == nil {
		ids, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	}
	if err != nil {
		return nil, fmt.Errorf("look for what run %d has appended: %w", w.hold.Run.Run, err)
	}
	return ids, nil
}

// advance moves the checkpoint, and takes the counts along.
func (w *work) advance(ctx context.Context, cursor int64) (runs.Status, error) {
	for name, n := range w.counts {
		w.hold.Counts[name] += n
	}
	clear(w.counts)
	w.skewed()
	return w.hold.Advance(ctx, cursor)
}

// settled waits until all of some events have their outcomes. It asks each time whether the run still goes on, and says what it waits for where that takes long.
func (w *work) settled(ctx context.Context, ids []int64) (status runs.Status, err error) {
	for began := time.Now(); ; {
		n, err := w.Processor.Pending(ctx, ids)
		if err != nil {
			return "", err
		}
		if n == 0 {
			return runs.Running, w.note(ctx, "")
		}
		if time.Since(began) >= w.Settings.Say {
			if err := w.waits(ctx, n, ids); err != nil {
				return "", err
			}
		}
		if status, err := w.hold.Advance(ctx, w.hold.Cursor); err != nil || status != runs.Running {
			return status, errors.Join(err, w.note(ctx, ""))
		}
		runs.Pause(ctx, w.Settings.Again)
		if ctx.Err() != nil {
			return "", context.Cause(ctx)
		}
	}
}

// waits notes which outcomes the run waits for.
func (w *work) waits(ctx context.Context, n int64, ids []int64) error {
	id, reason, err := w.Processor.Awaited(ctx, ids)
	if err != nil || id == 0 {
		return err
	}
	said := fmt.Sprintf("waits for the outcomes of %d of the events that it has appended, among them %d", n, id)
	if reason != "" {
		said += ", which has failed: " + reason
	}
	return w.note(ctx, said)
}

// note says what the run waits for, "" for nothing, where that is not said already.
func (w *work) note(ctx context.Context, said string) error {
	if said = events.Text(said); said == w.hold.Detail {
		return nil
	}
	return w.hold.Note(ctx, said)
}
