package reconcile

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/runs"
	"github.com/postern-gateway/postern/internal/versioning"
)

// errNoFetch: the provider's API has nothing that reads such an object.
var errNoFetch = errors.New("the API reads no object of that type by its name or by what is known of it, or not with a key of this mode (test or live)")

// object has a look at one object, whatever is known of it.
func (w *work) object(ctx context.Context) (runs.Status, error) {
	if w.hold.Bound == 0 {
		if err := w.hold.Freeze(ctx, 1); err != nil {
			return "", err
		}
	}
	if w.order.Settle {
		w.settles = w.settlement(ctx)
	}
	d, err := w.look(ctx, versioning.Key{Account: w.order.Account, Type: w.order.Type, ID: w.order.ID})
	if errors.Is(err, errNoFetch) {
		return "", runs.Refuse(fmt.Errorf("source %s, %s: %w", w.source.Name, w.order.Type, err))
	}
	var silent *silentError
	switch {
	case moved(err), errors.As(err, new(*foreignError)), errors.As(err, new(*unseenError)):
		return "", runs.Refuse(err)
	case errors.As(err, &silent):
		return "", runs.Refuse(silent.asking())
	}
	if err != nil {
		return "", err
	}
	nobodys, err := w.nobodys(ctx, d)
	if err != nil {
		return "", err
	}
	if nobodys {
		w.counts[Seen]++
		w.counts[Absent]++
	}
	if nobodys || w.order.DryRun {
		return w.advance(ctx, 1)
	}
	fresh, err := w.append(ctx, []events.Delivery{*d})
	if err != nil {
		return "", err
	}
	if status, err := w.settled(ctx, fresh); err != nil || status != runs.Running {
		return status, err
	}
	return w.advance(ctx, 1)
}

// Absent counts objects that neither the mirror nor the API has: nothing is appended of them.
const Absent = "absent"

const mirroredSQL = `SELECT EXISTS (SELECT FROM objects WHERE source = $1 AND account = $2 AND object_type = $3 AND object_id = $4)`

// nobodys says whether a look has found nothing of an object that the mirror has never had: its name may be a typing error, and nothing must show it as deleted.
func (f *fetcher) nobodys(ctx context.Context, d *events.Delivery) (bool, error) {
	l, err := provider.DecodeLook(d.Body)
	if err != nil || !l.Missing {
		return false, err
	}
	var mirrored bool
	if err := f.Pool.QueryRow(ctx, mirroredSQL, d.Source, l.Account, l.ObjectType, l.ObjectID).Scan(&mirrored); err != nil {
		return false, fmt.Errorf("look for %s %s in the mirror: %w", l.ObjectType, l.ObjectID, err)
	}
	return !mirrored, nil
}

// fetcher reads the API of a source.
type fetcher struct {
	*Runner
	source *Source
	// proof is kept with what was fetched, in the place of what proves a delivery.
	proof []byte
	// wished: somebody wanted its looks, as the proof says.
	wished bool
	// asked: a person asked for its look by the object's name.
	asked bool
	// settles is why its looks win over all that was there before; nil: they do not.
	settles *provider.Settlement
}

// call makes a call and takes its verdict. The error of what another try cannot mend is one of runs.Refuse.
func (f *fetcher) call(ctx context.Context, c provider.Call) (*Response, error) {
	c.Asked = f.asked
	a, err := f.source.Caller.Do(ctx, c)
	if err != nil {
		return nil, err
	}
	switch a.Verdict.Kind {
	case provider.Found, provider.Missing:
		return a, nil
	case provider.Refused:
		f.Sources.shows.forget()
		if now := f.Sources.All()[f.source.Number]; now != nil && now != f.source { // another key may have been given since
			return nil, fmt.Errorf("the API of source %s: %s", f.source.Name, a.Verdict.Detail)
		}
		return nil, runs.Refuse(&refusedError{fmt.Sprintf("the API of source %s: %s", f.source.Name, a.Verdict.Detail), a.Verdict.Disconnected})
	case provider.Expired:
		return nil, fmt.Errorf("the API of source %s: %w: %s", f.source.Name, errExpired, a.Verdict.Detail)
	}
	return nil, &passingError{fmt.Sprintf("the API of source %s: %s", f.source.Name, a.Verdict.Detail), a.Verdict.Kind == provider.Throttled}
}

// hide takes the key out of what a reader says of an answer, which it may quote.
func (f *fetcher) hide(err error) error {
	if err == nil || !f.source.API.Shows(err.Error()) {
		return err
	}
	return &hiddenError{err, f.source.API.Hide(err.Error())}
}

// hiddenError is an error in other words.
type hiddenError struct {
	error
	text string
}

func (e *hiddenError) Error() string { return e.text }
func (e *hiddenError) Unwrap() error { return e.error }

// refusedError is an answer that the credentials may not have what was asked for.
type refusedError struct {
	text string
	// disconnected: the account is refused, whatever is asked of it.
	disconnected bool
}

func (e *refusedError) Error() string { return e.text }

// passingError is trouble of the API that may be over at the next call.
type passingError struct {
	text string
	// throttled: it says nothing of what was asked for.
	throttled bool
}

func (e *passingError) Error() string { return e.text }

// look fetches an object and returns the event of what was answered. That it is missing is believed only where the same credentials are good for
// something that is there.
func (f *fetcher) look(ctx context.Context, k versioning.Key) (*events.Delivery, error) {
	at, ok, err := f.find(ctx, k, nil)
	if err != nil {
		return nil, err
	}
	if !ok {
		return nil, errNoFetch
	}
	a, err := f.fetch(ctx, k, at.call)
	if err != nil {
		return nil, err
	}
	if a.Date.IsZero() {
		return nil, f.noDate()
	}
	l := &provider.Look{Snapshot: provider.Snapshot{Account: k.Account, ObjectType: k.Type, ObjectID: k.ID, APIVersion: f.source.API.Version, Body: a.Body, API: f.source.API},
		Date: a.Date.Add(a.Unmeasured), Elapsed: a.Elapsed + 2*a.Unmeasured, Lag: f.source.Reader.Lag(), Settles: f.settles}
	if a.Verdict.Kind == provider.Missing {
		if err := f.missing(ctx, k, at); err != nil {
			return nil, err
		}
		l.Missing, l.Body = true, nil
	}
	it := &item{id: k.ID, look: l}
	if it.in, err = f.read(k, l, f.received()); err != nil {
		return nil, err
	}
	if err := f.raiseLooks(ctx, k, []*item{it}); err != nil {
		return nil, err
	}
	return f.event(k, l)
}

// read puts a look into the terms of the rule.
func (f *fetcher) read(k versioning.Key, l *provider.Look, received time.Time) (versioning.Input, error) {
	obs, err := f.source.Reader.Snapshot(f.source.Config, &l.Snapshot)
	if err != nil {
		return versioning.Input{}, fmt.Errorf("source %s, %s %s: read what the API answered: %w", f.source.Name, k.Type, k.ID, f.hide(err))
	}
	in, err := versioning.FromLook(obs, l, received)
	if err != nil {
		return versioning.Input{}, fmt.Errorf("source %s, %s %s: %w", f.source.Name, k.Type, k.ID, err)
	}
	return in, nil
}

// fetch makes the call that reads an object, and the one that its answer may lead to, which is then the answer.
func (f *fetcher) fetch(ctx context.Context, k versioning.Key, call provider.Call) (*Response, error) {
	a, err := f.call(ctx, call)
	in, steps := f.source.Reader.(provider.Stepper)
	if err != nil || !steps || a.Verdict.Kind != provider.Found {
		return a, err
	}
	if next, ok := in.Step(f.source.API, k.Account, k.Type, k.ID, a.Body); ok {
		return f.call(ctx, next)
	}
	return a, nil
}

// control proves that the credentials are good for something, and returns what was answered.
func (f *fetcher) control(ctx context.Context, account string) (*Response, error) {
	return f.proves(ctx, f.source.Reader.Control(f.source.API, account))
}

func (f *fetcher) proves(ctx context.Context, call provider.Call) (*Response, error) {
	a, err := f.call(ctx, call)
	switch {
	case err != nil:
		return nil, err
	case a.Verdict.Kind != provider.Found:
		return nil, &absentError{fmt.Sprintf("the API of source %s answers that what must be there is missing: %s; are base_url, and control of a described API, right, and is the account still one of the key's?", f.source.Name, a.Verdict.Detail)}
	case a.Date.IsZero():
		return nil, f.noDate()
	}
	return a, nil
}

func (f *fetcher) noDate() error {
	return fmt.Errorf("the API of source %s does not say what time it is there (no Date), so what it answers has no place in the order; is a proxy in between?", f.source.Name)
}

// believable proves that the credentials see the account that the log is of, where events can be listed: with a key of another account nothing would be there.
func (f *fetcher) believable(ctx context.Context, k versioning.Key) error {
	call := f.source.Reader.Control(f.source.API, k.Account)
	if of, ok := f.source.Reader.(provider.ObjectControl); ok {
		call = of.ControlObject(f.source.Config, f.source.API, k.Account, k.Type, k.ID)
	}
	a, err := f.proves(ctx, call)
	lister, ok := f.source.Reader.(provider.EventLister)
	if err != nil || !ok {
		return err
	}
	bodies, _, err := lister.EventPage(f.named(k.Account), a.Body)
	if err != nil {
		return fmt.Errorf("source %s: %w", f.source.Name, f.hide(err))
	}
	if len(bodies) == 0 {
		return &silentError{fmt.Sprintf("the API of source %s says that an object is missing, and lists no event any more which would show that the key is of the account and mode that the log is of", f.source.Name), true}
	}
	var keys [][]byte
	for _, body := range bodies {
		named, err := f.source.Provider.Identify(f.source.Config, &provider.Delivery{Body: body})
		if err != nil {
			continue // of an account that the source does not take
		}
		for _, e := range named {
			digest := events.KeyDigest(e.Key)
			keys = append(keys, digest[:])
		}
	}
	var known int64
	if err := f.Pool.QueryRow(ctx, knownSQL, f.source.Number, keys).Scan(&known); err != nil {
		return fmt.Errorf("look for %d keys: %w", len(keys), err)
	}
	if known == 0 {
		return &silentError{fmt.Sprintf("the API of source %s says that an object is missing, and the newest event that it lists is not in the log, which would show that the key is of the account and mode that the log is of", f.source.Name), false}
	}
	return nil
}

// named is the account as events of it that are listed must be told: the source's own is not named by its webhooks.
func (f *fetcher) named(account string) string {
	if account == f.source.Config.Account {
		return ""
	}
	return account
}

// event is a look as it is appended. Its key says what was seen and of which version, so that a state which comes back is another look.
func (f *fetcher) event(k versioning.Key, l *provider.Look) (*events.Delivery, error) {
	now := f.received()
	in, err := f.read(k, l, now)
	if err != nil {
		return nil, err
	}
	key := lookKey(k, in)
	if f.wished {
		key = wishKey(key, f.proof)
	}
	if l.Settles != nil {
		if in.Partial != "" {
			return nil, runs.Refuse(fmt.Errorf("source %s, %s %s: what the API answers can settle nothing: %s", f.source.Name, k.Type, k.ID, in.Partial))
		}
		key = settleKey(key, f.proof)
	}
	body, err := l.Encode()
	if err != nil {
		return nil, fmt.Errorf("source %s: %w", f.source.Name, f.hide(err))
	}
	return &events.Delivery{Source: f.source.Number, ReceivedAt: now, Origin: events.OriginReconcile, Headers: []byte(`{}`), Verification: f.proof, Body: body,
		Events: []provider.Event{{Key: key, Type: provider.LookType, Account: k.Account, ObjectType: k.Type, ObjectID: k.ID, OccurredAt: l.Date.UTC(),
			APIVersion: l.APIVersion, Fingerprint: [16]byte(in.State.Exact[:16])}}}, nil
}

// lookKey names what was seen: object, version, state.
func lookKey(k versioning.Key, in versioning.Input) string {
	h := sha256.New()
	for _, part := range []string{k.Account, k.Type, k.ID} {
		fmt.Fprintf(h, "%d:%s", len(part), part)
	}
	fmt.Fprintf(h, "%v %d %d %d %s", in.Version.Final, in.Version.At, in.Version.Seen, in.Version.Rank, in.Partial)
	h.Write(in.State.Exact[:])
	return "look:" + hex.EncodeToString(h.Sum(nil)[:16])
}
