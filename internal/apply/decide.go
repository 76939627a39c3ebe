package apply

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// event is one event while its batch is applied.
type event struct {
	ev  *stream.Event
	key versioning.Key
	// lockKey is the hash of the object's key, or the event id if the event concerns no object.
	lockKey int64
	// input is the event as the version rule needs it. read sets it if it sets no outcome, or if
	// refetchPending is set.
	input   versioning.Input
	outcome *outcome
	// attempts is the count in the stored outcome. reserved is the number of the attempt that was
	// committed before this try, 0 if none.
	attempts, reserved int
	// configFailure says that only a configuration change helps: the event waits a fixed time and
	// no attempt is counted.
	configFailure bool
	// refetchPending says that the event is dead, but its object needs a refetch; input is partial.
	refetchPending bool
	// reserving says that only the attempt is recorded now, before the try.
	reserving bool
	// previousReason is the reason of the previous attempt, from the stored outcome.
	previousReason string
	// appliedLiveAt is when the event was applied live to its object's row, zero if it was not or
	// if this was not loaded.
	appliedLiveAt time.Time
	// finished says that the event has a final outcome, or a failed one that is not due. It is only
	// acknowledged.
	finished bool
	// hasFinalOutcome says that the event is finished by a final outcome.
	hasFinalOutcome bool
	// fit says how the input relates to the row that it was applied to. It is valid if reportsFit.
	fit        versioning.ChangeFit
	reportsFit bool
}

// outcome is the outcome to record.
type outcome struct {
	status    versioning.Status
	reason    string
	version   *versioning.Version
	decidedBy *versioning.Version
}

// read decodes an event with its provider. Every failure becomes an outcome of this event alone.
func (a *Applier) read(ev *stream.Event) (e *event) {
	e = &event{ev: ev, lockKey: ev.ID}
	defer func() {
		if r := recover(); r != nil {
			a.Logger.Error("panic while reading an event", "event", ev.ID, "source", ev.Source, "panic", r)
			e.outcome = &outcome{status: versioning.Failed, reason: fmt.Sprintf("reading the event panicked: %v", r)}
		}
	}()
	e.key.Source = a.sources.number(ev.Source)
	if ev.Redacted {
		e.outcome = redacted()
		return e
	}
	if ev.BodyInLog {
		e.outcome = &outcome{status: versioning.Dead, reason: "the event is no longer in the log, and was too " +
			"large for a message"}
		return e
	}
	src, ok := a.sources.source(ev.Source)
	if !ok {
		e.configFailure = true
		e.outcome = &outcome{status: versioning.Failed,
			reason: fmt.Sprintf("source %q is not in this processor's configuration: add it, and the event is retried",
				ev.Source)}
		return e
	}
	ignored, err := e.observe(src)
	var dead *provider.Dead
	switch {
	case errors.As(err, &dead):
		e.outcome = &outcome{status: versioning.Dead, reason: dead.Reason}
		if dead.NeedsRefetch {
			e.requestRefetch()
		}
	case err != nil:
		e.outcome = &outcome{status: versioning.Failed, reason: err.Error()}
	case ignored != "":
		e.outcome = &outcome{status: versioning.Ignored, reason: ignored}
	}
	return e
}

// observe reads an event or a refetch. ignored says why it concerns no object.
func (e *event) observe(src Source) (ignored string, err error) {
	if isRefetch(e.ev) {
		return e.readRefetch(src)
	}
	obs, err := provider.Observe(src.Provider, src.Config, &e.ev.StoredEvent)
	if err != nil || obs.Ignored != "" {
		return obs.Ignored, err
	}
	if err := e.setKey(src, obs.Account, obs.ObjectType, obs.ObjectID); err != nil {
		return "", err
	}
	e.input, err = versioning.InputFromObservation(obs, e.ev.ReceivedAt)
	obs.State.Release() // the input holds the hashes and the bytes of the state
	return "", err
}

// isRefetch reports whether an event is a refetch of this project. An import keeps the origin, so
// an imported refetch is one too. An event that a sender delivers is not a refetch, even if its
// type says so.
func isRefetch(ev *stream.Event) bool {
	return ev.Type == provider.RefetchType && ev.Origin == events.OriginReconcile
}

// readRefetch reads a refetch.
func (e *event) readRefetch(src Source) (ignored string, err error) {
	refetch, err := provider.DecodeRefetch(e.ev.Body)
	if err != nil {
		return "", err
	}
	reader := src.refetchReader()
	if reader == nil {
		e.configFailure = true
		return "", fmt.Errorf("refetches of source %q cannot be read: configure the section api, with objects, "+
			"with which they were made; then they are retried", e.ev.Source)
	}
	if err := e.setKey(src, refetch.Account, refetch.ObjectType, refetch.ObjectID); err != nil {
		return "", err
	}
	obs, err := reader.Snapshot(src.Config, &refetch.Snapshot)
	if err != nil || obs.Ignored != "" {
		return obs.Ignored, err
	}
	e.input, err = versioning.InputFromRefetch(obs, refetch, e.ev.ReceivedAt)
	obs.State.Release()
	return "", err
}

// setKey sets the object that the event concerns.
func (e *event) setKey(src Source, account, objectType, id string) error {
	key := versioning.Key{Source: src.Number, Account: account, Type: objectType, ID: id}
	if err := checkKey(key); err != nil {
		return err
	}
	e.key, e.lockKey = key, key.Hash()
	return nil
}

// requestRefetch makes a dead event request a refetch of its object, as of the event's receipt.
func (e *event) requestRefetch() {
	var err error
	e.input, err = versioning.InputFromObservation(provider.Observation{Partial: e.outcome.reason}, e.ev.ReceivedAt)
	e.refetchPending = err == nil
}

// isOpen reports whether the event must still be applied to its object.
func (e *event) isOpen() bool { return !e.finished && (e.outcome == nil || e.refetchPending) }

// maxNameBytes bounds each part of an object's key, so that the key always fits an index.
const maxNameBytes = 512

// checkKey rejects names that the mirror could not distinguish or index.
func checkKey(k versioning.Key) error {
	for what, part := range map[string]string{"account": k.Account, "type": k.Type, "id": k.ID} {
		if part != events.SanitizeText(part) {
			return &provider.Dead{Reason: fmt.Sprintf("the object's %s %q holds NUL or is not UTF-8", what, part)}
		}
		if len(part) > maxNameBytes {
			return &provider.Dead{Reason: fmt.Sprintf("the object's %s is %d bytes long, more than %d", what, len(part),
				maxNameBytes)}
		}
	}
	if k.Type == "" || k.ID == "" {
		return &provider.Dead{Reason: "the event names no object type or id"}
	}
	return nil
}

// reduce applies the open events to their objects one after the other. It returns the objects to
// write: those that changed, and those that an older version of the rule produced. It is a pure
// function: any order of events ends in the same objects. Overwriting refetches come first, because
// they discard the history of their object. If observe is not nil, it is called with the object
// before and after each event.
func reduce(batch []*event, objs map[versioning.Key]*versioning.Object, observe func(e *event, before *versioning.Row,
	o *versioning.Object)) []*versioning.Object {
	var dirty []*versioning.Object
	seen := map[versioning.Key]bool{}
	for _, e := range overwritesFirst(batch) {
		if !e.isOpen() {
			continue
		}
		o := objs[e.key]
		before, last := o.Row, o.LastEventID
		if e.input.Version == o.Version {
			before.TiedStates = slices.Clone(o.TiedStates) // the tied states of this version grow in place
		}
		d := versioning.Apply(&o.Row, e.input)
		e.fit, e.reportsFit = versioning.FitChange(&before, &e.input, d.Status)
		if e.alreadyApplied(o) {
			restoreRefetchAfter(&o.Row, &before)
		}
		hasState := e.input.Partial == "" && o.Version == e.input.Version && d.Status != versioning.Stale &&
			d.Status != versioning.Dead
		if hasState {
			if o.Version != before.Version || o.OverwrittenAt != before.OverwrittenAt {
				o.LastEventID = 0
			}
			// of several events with this version the greatest id counts, whatever their order
			o.LastEventID = max(o.LastEventID, e.ev.ID)
		}
		if observe != nil {
			observe(e, &before, o)
		}
		if !seen[e.key] && (o.LastEventID != last || hasState && o.Outdated() || !o.Equal(&before)) {
			seen[e.key] = true
			dirty = append(dirty, o)
		}
		if e.refetchPending {
			continue
		}
		e.outcome = &outcome{status: d.Status, reason: d.Reason, decidedBy: optionalVersion(d.DecidedBy),
			version: optionalVersion(e.input.Version)}
	}
	return dirty
}

func optionalVersion(v versioning.Version) *versioning.Version {
	if v.At == math.MinInt64 {
		return nil
	}
	return &v
}
