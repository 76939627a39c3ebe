package processor

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"slices"
	"time"

	"github.com/postern-gateway/postern/internal/events"
	"github.com/postern-gateway/postern/internal/provider"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// item is one event on its way through a batch.
type item struct {
	ev  *stream.Event
	key versioning.Key
	// lock is the object's hash, or the event id where no object is concerned.
	lock int64
	// input enters the rule; only where outcome is not yet set.
	input   versioning.Input
	outcome *outcome
	// attempts so far, from the stored outcome; reserved is the attempt committed before this try, 0 if none.
	attempts, reserved int
	// patient: the failure is one of configuration, waits a fixed time and counts no attempt.
	patient bool
	// owesLook: the event is dead, but its object owes a look; input is partial.
	owesLook bool
	// reserving: only the attempt is recorded now, before the try.
	reserving bool
	// before is the reason of the attempt before, from the stored outcome.
	before string
	// metAt is when the event was applied live in a way that its object's row has met it, zero where it was not or nobody asked.
	metAt time.Time
	// settled: the event has a final outcome, or a failed one that is not due; it is only acknowledged.
	settled bool
	// final: it is settled by a final outcome.
	final bool
	// fit is how it met its row, where tells says that this tells of gaps.
	fit   versioning.Fit
	tells bool
}

// outcome is what will be recorded.
type outcome struct {
	status    versioning.Status
	reason    string
	version   *versioning.Version
	decidedBy *versioning.Version
}

// read asks the event's provider what it says. Everything that can go wrong becomes an outcome of this event alone.
func (p *Processor) read(log *slog.Logger, ev *stream.Event) (it *item) {
	it = &item{ev: ev, lock: ev.ID}
	defer func() {
		if r := recover(); r != nil {
			log.Error("panic while reading an event", "event", ev.ID, "source", ev.Source, "panic", r)
			it.outcome = &outcome{status: versioning.Failed, reason: fmt.Sprintf("reading the event panicked: %v", r)}
		}
	}()
	it.key.Source = p.sources.number(ev.Source)
	if ev.Redacted {
		it.outcome = redacted()
		return it
	}
	if ev.BodyInLog {
		it.outcome = &outcome{status: versioning.Dead, reason: "the event is no longer in the log, and was too large to travel"}
		return it
	}
	src, ok := p.sources.source(ev.Source)
	if !ok {
		it.patient = true
		it.outcome = &outcome{status: versioning.Failed, reason: fmt.Sprintf("source %q is not in this processor's configuration: add it, the event is tried again", ev.Source)}
		return it
	}
	ignored, err := it.observe(src)
	var dead *provider.Dead
	switch {
	case errors.As(err, &dead):
		it.outcome = &outcome{status: versioning.Dead, reason: dead.Reason}
		if dead.Look {
			it.oweLook()
		}
	case err != nil:
		it.outcome = &outcome{status: versioning.Failed, reason: err.Error()}
	case ignored != "":
		it.outcome = &outcome{status: versioning.Ignored, reason: ignored}
	}
	return it
}

// observe reads an event or a look; ignored says why it concerns no object.
func (it *item) observe(src Source) (ignored string, err error) {
	if isLook(it.ev) {
		return it.look(src)
	}
	obs, err := provider.Observe(src.Provider, src.Config, &it.ev.Stored)
	if err != nil || obs.Ignored != "" {
		return obs.Ignored, err
	}
	if err := it.name(src, obs.Account, obs.ObjectType, obs.ObjectID); err != nil {
		return "", err
	}
	it.input, err = versioning.FromObservation(obs, it.ev.ReceivedAt)
	obs.State.Release() // hashes and bytes are all that is needed of it
	return "", err
}

// isLook says whether an event is a look of ours, which an import keeps so. What a sender delivers never is, whatever type it has.
func isLook(ev *stream.Event) bool {
	return ev.Type == provider.LookType && ev.Origin == events.OriginReconcile
}

// look reads a look.
func (it *item) look(src Source) (ignored string, err error) {
	l, err := provider.DecodeLook(it.ev.Body)
	if err != nil {
		return "", err
	}
	reader := src.looker()
	if reader == nil {
		it.patient = true
		return "", fmt.Errorf("looks of source %q cannot be read: add the section api, with objects, that they were made by; they are tried again", it.ev.Source)
	}
	if err := it.name(src, l.Account, l.ObjectType, l.ObjectID); err != nil {
		return "", err
	}
	obs, err := reader.Snapshot(src.Config, &l.Snapshot)
	if err != nil || obs.Ignored != "" {
		return obs.Ignored, err
	}
	it.input, err = versioning.FromLook(obs, l, it.ev.ReceivedAt)
	obs.State.Release()
	return "", err
}

// name keeps which object the event is about.
func (it *item) name(src Source, account, objectType, id string) error {
	key := versioning.Key{Source: src.Number, Account: account, Type: objectType, ID: id}
	if err := checkKey(key); err != nil {
		return err
	}
	it.key, it.lock = key, key.Hash()
	return nil
}

// oweLook makes a dead event a reason to look at its object, as of its receipt.
func (it *item) oweLook() {
	var err error
	it.input, err = versioning.FromObservation(provider.Observation{Partial: it.outcome.reason}, it.ev.ReceivedAt)
	it.owesLook = err == nil
}

// open says whether the item's input still has to meet its object.
func (it *item) open() bool { return !it.settled && (it.outcome == nil || it.owesLook) }

// maxName bounds each part of an object's key, so that the key always fits an index.
const maxName = 512

// checkKey refuses names that the mirror could not keep apart or index.
func checkKey(k versioning.Key) error {
	for what, part := range map[string]string{"account": k.Account, "type": k.Type, "id": k.ID} {
		if part != events.Text(part) {
			return &provider.Dead{Reason: fmt.Sprintf("the object's %s %q holds NUL or is not UTF-8", what, part)}
		}
		if len(part) > maxName {
			return &provider.Dead{Reason: fmt.Sprintf("the object's %s is %d bytes long, more than %d", what, len(part), maxName)}
		}
	}
	if k.Type == "" || k.ID == "" {
		return &provider.Dead{Reason: "the event names no object type or id"}
	}
	return nil
}

// fold applies the open items to their objects one after the other and returns the objects that must be written, which are those that
// changed, or were made by an older rule. It is pure: any order of items ends in the same objects. Looks that settle an object come first, since it forgets
// what it has met before. see, where it is not nil, is told how an item found its object and left it.
func fold(items []*item, objs map[versioning.Key]*versioning.Object, see func(it *item, before *versioning.Row, o *versioning.Object)) []*versioning.Object {
	var dirty []*versioning.Object
	seen := map[versioning.Key]bool{}
	for _, it := range settlingFirst(items) {
		if !it.open() {
			continue
		}
		o := objs[it.key]
		before, last := o.Row, o.LastEvent
		if it.input.Version == o.Version {
			before.Set = slices.Clone(o.Set) // a set of this version grows in place
		}
		d := versioning.Apply(&o.Row, it.input)
		it.fit, it.tells = versioning.FitOf(&before, &it.input, d.Status)
		if it.met(o) {
			keepLook(&o.Row, &before)
		}
		carries := it.input.Partial == "" && o.Version == it.input.Version && d.Status != versioning.Stale && d.Status != versioning.Dead
		if carries {
			if o.Version != before.Version || o.Settled != before.Settled {
				o.LastEvent = 0
			}
			o.LastEvent = max(o.LastEvent, it.ev.ID) // of several events of the version the last, in whatever order they come
		}
		if see != nil {
			see(it, &before, o)
		}
		if !seen[it.key] && (o.LastEvent != last || carries && o.Outdated() || !o.Same(&before)) {
			seen[it.key] = true
			dirty = append(dirty, o)
		}
		if it.owesLook {
			continue
		}
		it.outcome = &outcome{status: d.Status, reason: d.Reason, decidedBy: known(d.DecidedBy), version: known(it.input.Version)}
	}
	return dirty
}

func known(v versioning.Version) *versioning.Version {
	if v.At == math.MinInt64 {
		return nil
	}
	return &v
}
