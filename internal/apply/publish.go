package apply

import (
	"context"
	"errors"
	"slices"

	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// PublishAndApply publishes events that a job, not a gateway, has just appended. It applies at once
// those that the stream has acknowledged, without waiting for their delivery. The republisher later
// publishes the others, because they have no outcome. It returns the counts of the applied events
// by outcome. An error is an infrastructure failure; the events are in the log.
func (a *Applier) PublishAndApply(ctx context.Context, ids []int64) (map[versioning.Status]int64, error) {
	counts := map[versioning.Status]int64{}
	for len(ids) > 0 {
		some := ids[:min(len(ids), maxPublishBatch)]
		ids = ids[len(some):]
		published, err := a.publishAppended(ctx, some)
		if err != nil {
			return counts, err
		}
		done, err := a.ApplyStored(ctx, Target{}, published, false)
		if err != nil {
			return counts, err
		}
		for status, n := range done.Outcomes {
			counts[status] += n
		}
	}
	return counts, nil
}

// publishAppended returns the events that the stream has acknowledged, or all events if there is no
// stream.
func (a *Applier) publishAppended(ctx context.Context, ids []int64) ([]int64, error) {
	if a.Conn == nil {
		return ids, nil
	}
	evs, err := a.Events(ctx, ids, stream.MaxBody)
	if err != nil {
		return nil, err
	}
	var published []int64
	for i, ack := range a.Conn.PublishEvents(ctx, evs) {
		if ack.Err == nil {
			published = append(published, evs[i].ID)
			continue
		}
		a.Logger.Debug("event not published; the republisher publishes it later", "event", evs[i].ID, "error", ack.Err)
	}
	return published, nil
}

// maxPublishBatch is how many events are read with their bodies to be published: each body may have
// stream.MaxBody bytes.
const maxPublishBatch = 100

// PublishStored publishes events of the log to postern.replays under a run and returns their
// number. It skips events that are no longer in the log or were redacted. It returns after the
// stream has acknowledged all of them. An error is an infrastructure failure. Publishing again is
// safe, and some events are then delivered twice.
func (a *Applier) PublishStored(ctx context.Context, run int64, ids []int64) (n int64, err error) {
	if a.Conn == nil {
		return 0, unavailable(errors.New("publish events: this process has no connection to a stream"))
	}
	for len(ids) > 0 {
		some := ids[:min(len(ids), maxPublishBatch)]
		ids = ids[len(some):]
		evs, err := a.Events(ctx, some, stream.MaxBody)
		if err != nil {
			return n, err
		}
		evs = slices.DeleteFunc(evs, func(e stream.Event) bool { return e.Redacted })
		if err := a.publishStored(ctx, run, evs); err != nil {
			return n, unavailable(err)
		}
		n += int64(len(evs))
	}
	return n, nil
}

// publishStored creates the stream if it is missing.
func (a *Applier) publishStored(ctx context.Context, run int64, evs []stream.Event) error {
	err := a.Conn.PublishReplays(ctx, run, evs)
	if !stream.IsNotFound(err) {
		return err
	}
	if err := a.Conn.EnsureReplays(ctx, a.Limits); err != nil {
		return err
	}
	return a.Conn.PublishReplays(ctx, run, evs)
}
