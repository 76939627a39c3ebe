package reconcile

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/postgres"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// A key of another account is as good as the right one by all that the API says of it. What webhooks have brought, and the API must know, tells whose it is.

const (
	// scanWitnesses is how many events of the log are searched, of all sources, and readWitnesses how many of the account are read, some at a time, for askWitnesses that the key's mode has.
	scanWitnesses, readWitnesses, witnessesAtOnce, askWitnesses = 100_000, 500, 20, 5
	// witnessObjects is how many objects are asked for at most, and as many types may refuse theirs.
	witnessObjects = 10
)

// foreignError: the API does not know what the account's webhooks have brought.
type foreignError struct{ text string }

func (e *foreignError) Error() string { return e.text }

// unshownError: the API shows none of the objects that the mirror has. They may be gone, or kept from the key.
type unshownError struct{ text string }

func (e *unshownError) Error() string { return e.text }

// ours shows that the key is of the account that the log and the mirror are of: an event that a webhook has brought is known to the API by its id, or, where no such event can be
// asked for, an object of the mirror is found, but for one. Where neither the log nor the mirror has anything, nothing speaks against the key, and nothing shows it. That it was shown is remembered.
// Errors: *foreignError, *unshownError.
func (f *fetcher) ours(ctx context.Context, account string, but versioning.Key) (shown bool, err error) {
	if f.housed() {
		return true, nil
	}
	doubts := f.Sources.shows.begins()
	by, shown, err := f.shownBy(ctx, account, but)
	if shown {
		f.Sources.shows.remember(ownership{f.source, account}, showing{time.Now().Add(f.Settings.Shown), by}, doubts)
	}
	return shown, err
}

// shownBy is what shows it: the object by which it does, nil where it is an event.
func (f *fetcher) shownBy(ctx context.Context, account string, but versioning.Key) (by *versioning.Key, shown bool, err error) {
	tenants, err := f.tenants(ctx, account)
	if err != nil {
		return nil, false, err
	}
	other := false
	switch f.source.Reader.(type) {
	case provider.EventFetcher, provider.TimedLister:
		if shown, other, err = f.knowsEvents(ctx, account, tenants); shown || err != nil {
			return nil, shown, err
		}
	}
	by, err = f.knowsObjects(ctx, tenants, but)
	if !other || by != nil || err != nil && !errors.As(err, new(*unshownError)) {
		return by, by != nil, err
	}
	return nil, false, &foreignError{fmt.Sprintf("the webhooks of source %s have of late brought events of one mode of the account alone (test or live), the key reads the other, and shows no object that the mirror has: "+
		"give the source a key of the mode of its webhooks (api.key), and ask again", f.source.Name)}
}

// housed: no key leads elsewhere than to the account.
func (f *fetcher) housed() bool {
	_, ok := f.source.Reader.(provider.Housed)
	return ok
}

// tenants are the accounts of the mirror whose events are listed with an account's, itself among them.
func (f *fetcher) tenants(ctx context.Context, account string) ([]string, error) {
	all := []string{account}
	listed := func(string) string { return "" } // all accounts' together
	switch lister := f.source.Reader.(type) {
	case provider.EventLister:
		listed = func(of string) string {
			return f.named(lister.ListEvents(f.source.API, of, time.Time{}, time.Time{}, "").Account)
		}
	case provider.TimedLister:
	default:
		return all, nil
	}
	mirrored, err := texts(ctx, f.Pool, mirroredAccountsSQL, f.source.Number)
	if err != nil {
		return nil, err
	}
	for _, of := range append(mirrored, f.source.Config.Account) {
		if !slices.Contains(all, of) && listed(of) == listed(account) {
			all = append(all, of)
		}
	}
	return all, nil
}

// witnessesSQL are the newest events of some accounts that webhooks brought and that happened (came, where they do not tell) from $4 on and before $5, below an id and among so many of the log.
const witnessesSQL = `
SELECT e.id FROM (SELECT id, source, account, origin, coalesce(occurred_at, received_at) AS at FROM events WHERE id < $1 ORDER BY id DESC LIMIT $6) e
WHERE e.source = $2 AND e.account = ANY($3::text[]) AND e.origin = 'webhook' AND e.at >= $4 AND e.at < $5 ORDER BY e.id DESC LIMIT $7`

// testimony is what the API says of events that webhooks brought.
type testimony struct {
	// asked were asked for, and unknown is the first of them that the API does not know; other are of the mode that the key does not read.
	asked, other int
	unknown      *provider.Stored
}

// nor is how many others are unknown, in words.
func (t *testimony) nor() string {
	switch t.asked {
	case 1:
		return ""
	case 2:
		return ", nor another one"
	}
	return fmt.Sprintf(", nor %d others", t.asked-1)
}

// knowsEvents says whether the API knows an event that a webhook brought. The older ones are asked for first: one that is young may not be listed yet, so that it shows whose the key is where it is known, and
// nothing where it is not. other: events of the mode that the key does not read were met. Errors: *foreignError.
func (f *fetcher) knowsEvents(ctx context.Context, account string, tenants []string) (shown, other bool, err error) {
	now, kept := f.source.Caller.Now(), f.kept()
	since := now.Add(min(f.Settings.Overlap, kept/2) - kept)
	for _, age := range []time.Duration{f.Settings.Overlap, f.Settings.Settle, 0} {
		said := testimony{}
		shown, err := f.hear(ctx, account, tenants, since, now.Add(-age), &said)
		if shown || err != nil {
			return shown, other, err
		}
		if other = other || said.other > 0; said.unknown != nil && age > 0 {
			return false, other, &foreignError{fmt.Sprintf("the API of source %s does not know event %s, which a webhook of the account brought at %s%s: its key is of another account, or of another mode (test or live)%s. "+
				"Give the source the key of the account whose webhooks it gets (api.key), and ask again", f.source.Name, said.unknown.Key, said.unknown.ReceivedAt.UTC().Format(time.RFC3339), said.nor(), f.otherList())}
		}
	}
	return false, other, nil
}

// otherList is what else may be wrong where somebody has described the list of events.
func (f *fetcher) otherList() string {
	if _, ok := f.source.Reader.(provider.TimedLister); ok {
		return ", or api.events leads to another list than that of the webhooks' events"
	}
	return ""
}

// hear asks for events that happened in a time, the newest first, until the API knows one.
func (f *fetcher) hear(ctx context.Context, account string, tenants []string, since, until time.Time, said *testimony) (shown bool, err error) {
	modes, _ := f.source.Reader.(provider.ModeReader)
	for below, read := int64(1)<<62, 0; read < readWitnesses; read += witnessesAtOnce {
		some, err := f.witnesses(ctx, below, tenants, since, until)
		if err != nil {
			return false, err
		}
		for i := range some {
			e := &some[i].Stored
			below = min(below, e.ID)
			if modes != nil && modes.OtherMode(f.source.API, e.Body) {
				said.other++
				continue
			}
			known, told, err := f.recalls(ctx, account, e, since, until)
			if known || err != nil {
				return known, err
			}
			if told {
				if said.asked++; said.unknown == nil {
					said.unknown = e
				}
			}
			if said.asked == askWitnesses {
				return false, nil
			}
		}
		if len(some) == 0 {
			return false, nil
		}
	}
	return false, nil
}

// recalls asks the API for an event that a webhook brought, which a list must have under a time. told: the answer shows something.
func (f *fetcher) recalls(ctx context.Context, account string, e *provider.Stored, since, until time.Time) (known, told bool, err error) {
	switch r := f.source.Reader.(type) {
	case provider.EventFetcher:
		if call, ok := r.FetchEvent(f.source.API, account, e); ok {
			return there(f.call(ctx, call))
		}
	case provider.TimedLister:
		if at, ok := r.ListedAt(e); ok && !at.Before(since) && at.Before(until) {
			return f.listed(ctx, r, at, e.Key)
		}
	}
	return false, false, nil
}

// witnesses are some events with their bodies, the newest first.
func (f *fetcher) witnesses(ctx context.Context, below int64, tenants []string, since, until time.Time) ([]events.Record, error) {
	rows, err := f.Pool.Query(ctx, witnessesSQL, below, f.source.Number, tenants, since, until, scanWitnesses, witnessesAtOnce)
	var ids []int64
	if err == nil {
		ids, err = pgx.CollectRows(rows, pgx.RowTo[int64])
	}
	if err != nil {
		return nil, fmt.Errorf("look for events that webhooks brought: %w", err)
	}
	recs, err := events.Read(ctx, f.Pool, ids, events.AnyBody)
	slices.SortFunc(recs, func(a, b events.Record) int { return cmp.Compare(b.ID, a.ID) })
	return recs, err
}

// there says whether an answer has found something, and whether it tells that at all: one that keeps it from the key does not.
func there(a *Response, err error) (found, told bool, _ error) {
	if errors.As(err, new(*refusedError)) {
		return false, false, nil
	}
	if err != nil {
		return false, false, err
	}
	return a.Verdict.Kind == provider.Found, true, nil
}

// witnessObjectsSQL are some living objects of some accounts, of each type a few among a thousand, those first whose newest event was no look of ours, and was the latest. One object is not among them, nor is any of the types $6.
const witnessObjectsSQL = `
WITH RECURSIVE t(account, object_type) AS (
  SELECT a.account, o.object_type FROM unnest($2::text[]) AS a(account)
  CROSS JOIN LATERAL (SELECT o.object_type FROM objects o WHERE o.source = $1 AND o.account = a.account ORDER BY o.object_type LIMIT 1) o
  UNION ALL
  SELECT t.account, n.object_type FROM t
  CROSS JOIN LATERAL (SELECT o.object_type FROM objects o WHERE o.source = $1 AND o.account = t.account AND o.object_type > t.object_type ORDER BY o.object_type LIMIT 1) n
)
SELECT t.account, t.object_type, s.object_id, s.told FROM t CROSS JOIN LATERAL (
  SELECT p.object_id, p.last_event_id, coalesce((SELECT e.origin <> 'reconcile' FROM events e WHERE e.id = p.last_event_id), false) AS told FROM (
    SELECT o.object_id, o.last_event_id FROM objects o
    WHERE o.source = $1 AND o.account = t.account AND o.object_type = t.object_type AND NOT o.deleted AND o.version_at > -9223372036854775808
      AND NOT (o.account = $3 AND o.object_type = $4 AND o.object_id = $5) LIMIT 1000) p
  ORDER BY told DESC, p.last_event_id DESC LIMIT 3) s
WHERE t.object_type <> ALL($6::text[]) ORDER BY s.told DESC, s.last_event_id DESC`

// shared are the types of objects that the API may find with a key of any account.
func (f *fetcher) shared() []string {
	if in, ok := f.source.Reader.(provider.Shared); ok {
		return in.SharedTypes()
	}
	return []string{}
}

// testifies is where an object is read that shows whose the key is, if it is found; false where the API, with this key, reads none such.
func (f *fetcher) testifies(ctx context.Context, k versioning.Key) (at where, ok bool, err error) {
	return f.find(ctx, k, nil)
}

// knowsObjects asks for objects of the mirror until the API knows one: those of which webhooks have told, where it reads any of them, else those that only this source's key has told of. One that is refused
// shows nothing, nor do others of its type. by and err are nil where the mirror has no living object. Errors: *unshownError.
func (f *fetcher) knowsObjects(ctx context.Context, tenants []string, but versioning.Key) (by *versioning.Key, err error) {
	all, err := f.witnessing(ctx, tenants, but)
	if err != nil || len(all) == 0 {
		return nil, err
	}
	var asked []versioning.Key
	refused, heard := map[versioning.Key]bool{}, false
	for _, one := range all {
		kind := versioning.Key{Account: one.Account, Type: one.Type}
		if heard && !one.told || len(asked)-len(refused) == witnessObjects || len(refused) == witnessObjects {
			break
		}
		if refused[kind] {
			continue
		}
		at, ok, err := f.testifies(ctx, one.Key)
		if err != nil {
			return nil, err
		}
		if !ok {
			continue
		}
		known, told, err := there(f.fetch(ctx, one.Key, at.call))
		if err != nil {
			return nil, err
		}
		if known {
			one.Source = f.source.Number
			return &one.Key, nil
		}
		if !told {
			refused[kind] = true
		}
		heard = heard || one.told
		asked = append(asked, one.Key)
	}
	return nil, f.unshown(asked, len(refused))
}

// unshown says that none of the objects that were asked for has shown whose the key is.
func (f *fetcher) unshown(asked []versioning.Key, refused int) error {
	text := fmt.Sprintf("nothing shows that the key of source %s is of the account (and mode) that the mirror is of: ", f.source.Name)
	switch {
	case len(asked) == 0:
		return &unshownError{text + "with it the API reads none of the types of objects that the mirror has"}
	case refused == 0:
		return &unshownError{fmt.Sprintf("%sthe API knows none of the %d objects that it was asked for, %s %s the first of them", text, len(asked), asked[0].Type, asked[0].ID)}
	}
	return &unshownError{fmt.Sprintf("%sthe API knows none of the %d objects that it was asked for, %s %s the first of them, and refuses %d of them", text, len(asked), asked[0].Type, asked[0].ID, refused)}
}

// witnessed is a living object of the mirror.
type witnessed struct {
	versioning.Key
	// told: its newest event was no look of ours.
	told bool
}

// witnessing are the objects to ask for, in their order.
func (f *fetcher) witnessing(ctx context.Context, tenants []string, but versioning.Key) ([]witnessed, error) {
	rows, err := f.Pool.Query(ctx, witnessObjectsSQL, f.source.Number, tenants, but.Account, but.Type, but.ID, f.shared())
	var all []witnessed
	if err == nil {
		all, err = pgx.CollectRows(rows, func(row pgx.CollectableRow) (w witnessed, err error) {
			return w, row.Scan(&w.Account, &w.Type, &w.ID, &w.told)
		})
	}
	if err != nil {
		return nil, fmt.Errorf("look for objects that the API must know: %w", err)
	}
	return all, nil
}

// oursFor is ours for a look that has found nothing: whoever asked for it by its name answers for what nothing else shows.
func (f *fetcher) oursFor(ctx context.Context, k versioning.Key) (shown bool, err error) {
	shown, err = f.ours(ctx, k.Account, k)
	var unshown *unshownError
	switch {
	case !errors.As(err, &unshown):
		return shown, err
	case f.asked:
		return false, nil
	}
	return false, fmt.Errorf("%w; so %s %s, which it says is missing too, is not believed to be: postern hints add has it believed, if the key is right", err, k.Type, k.ID)
}

// own begins an attempt: it ends a run whose account is disconnected, or whose key is of another one, and has a person approve one whose key may be.
func (w *work) own(ctx context.Context) (runs.Status, error) {
	if w.order.What == Objects && w.housed() { // the beginning of each type asks for the time
		return runs.Running, nil
	}
	if _, err := w.control(ctx, w.order.Account); err != nil { // which also tells the provider's time
		return w.disconnected(ctx, err)
	}
	if err := w.connected(ctx); err != nil {
		return "", err
	}
	_, err := w.ours(ctx, w.order.Account, versioning.Key{})
	var foreign *foreignError
	var unshown *unshownError
	switch {
	case errors.As(err, &foreign):
		return "", runs.Refuse(err)
	case !errors.As(err, &unshown):
		return runs.Running, err
	case w.order.DryRun: // which appends nothing
		w.unshown = unshown
		return runs.Running, nil
	case w.hold.Approved(w.ofKey()):
		return runs.Running, nil
	}
	err = postgres.InTx(ctx, w.Pool, "ask for approval", keepWithin, func(ctx context.Context, tx pgx.Tx) error {
		return w.hold.Propose(ctx, tx, w.ofKey(), fmt.Sprintf("%s. If the key is right all the same (what was asked for may be gone), a person must say so before anything else is believed: postern runs approve %d --reason WHY", unshown, w.hold.Run.Run))
	})
	if err != nil {
		return "", err
	}
	return runs.Proposed, nil
}
