package processor

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// batch is an outbox row with the changes that it announces.
type batch struct {
	id      int64
	changes []objectChange
	bytes   int64
}

// sender publishes changes after their commit and publishes again those that stayed unsent.
type sender struct {
	p           *Processor
	queue       chan batch
	queuedBytes atomic.Int64 // bytes of states in queue
	// checked is the number of the connect, counted from 1, after which the sender last checked the
	// stream for loss.
	checked uint64
	// resendAfter is when the next resend may run. A failure delays it.
	resendAfter time.Time
}

// senderQueue and senderQueueBytes bound the changes that wait to be sent. The resend publishes
// changes beyond them.
const (
	senderQueue      = 256
	senderQueueBytes = 64 << 20
)

func newSender(p *Processor) *sender { return &sender{p: p, queue: make(chan batch, senderQueue)} }

// offer queues the changes of a committed transaction. It never blocks.
func (s *sender) offer(id int64, objs []*versioning.Object) {
	if s.p.Conn == nil || s.queuedBytes.Load() > senderQueueBytes {
		return
	}
	b := batch{id: id, changes: make([]objectChange, len(objs))}
	for i, o := range objs {
		b.changes[i] = objectChange{key: o.Key, version: o.Version, revision: o.Revision, event: o.LastEventID,
			deleted: o.State.Deleted, ambiguous: o.Ambiguous, state: o.State.JSON,
			redacted: len(o.TiedStates) == 0 && o.Version != versioning.NoVersion}
		b.bytes += int64(len(o.State.JSON))
	}
	s.queuedBytes.Add(b.bytes)
	select {
	case s.queue <- b:
	default:
		s.queuedBytes.Add(-b.bytes)
	}
}

const (
	// maxBatchesTogether bounds how many waiting batches are sent together.
	maxBatchesTogether = 64
	resendInterval     = time.Second
)

// sendTimeout bounds one step of sending, because a connection may be lost without an error.
const sendTimeout = time.Minute

func withSendTimeout(ctx context.Context, name string, do func(context.Context) error) error {
	ctx, cancel := lifecycle.WithTimeout(ctx, name, sendTimeout)
	defer cancel()
	return do(ctx)
}

// run sends until ctx ends. It logs the first of consecutive failures; the resend publishes the
// changes later.
func (s *sender) run(ctx context.Context) error {
	tick := time.NewTicker(resendInterval)
	defer tick.Stop()
	failing := false
	for {
		var do func(context.Context) error
		select {
		case <-ctx.Done():
			return nil
		case b := <-s.queue:
			do = func(ctx context.Context) error { return s.send(ctx, s.collectBatches(b)) }
		case <-s.p.Conn.Reconnected():
			do = s.check
		case <-tick.C:
			do = s.resend
		}
		err := withSendTimeout(ctx, "send changes", do)
		if err != nil && !failing && ctx.Err() == nil {
			s.p.Logger.Warn("changes not sent; retrying later", "error", err)
		}
		failing = err != nil
	}
}

func (s *sender) collectBatches(first batch) []batch {
	bs, bytes := []batch{first}, first.bytes
	defer func() { s.queuedBytes.Add(-bytes) }()
	for len(bs) < maxBatchesTogether {
		select {
		case b := <-s.queue:
			bs, bytes = append(bs, b), bytes+b.bytes
		default:
			return bs
		}
	}
	return bs
}

// send publishes batches and marks a batch as sent if all its messages were acknowledged.
func (s *sender) send(ctx context.Context, bs []batch) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	var all []objectChange
	var ids []int64
	for _, b := range bs {
		for _, c := range b.changes {
			all, ids = append(all, c), append(ids, b.id)
		}
	}
	acks, err := s.publish(ctx, all, ids)
	if err != nil {
		return err
	}
	done := map[int64]uint64{}
	var failed error
	for _, b := range bs {
		last, err := lastSequence(acks[:len(b.changes)])
		acks = acks[len(b.changes):]
		if err != nil {
			failed = err
			continue
		}
		done[b.id] = last
	}
	return errors.Join(s.markSent(ctx, done), s.p.restoreStreams(ctx, failed))
}

// restoreStreams configures the streams again if err says that one is missing, or that it is full
// and rejects messages. Such a stream would accept no message until old ones expire. It returns
// err.
func (p *Processor) restoreStreams(ctx context.Context, err error) error {
	switch {
	case stream.IsStreamFull(err):
		p.Logger.Warn("a stream rejects messages because it is full; its limits are set again, so that it drops "+
			"the oldest", "error", err)
	case !stream.IsNotFound(err):
		return err
	}
	return errors.Join(err, p.Conn.Ensure(ctx, p.Limits))
}

// lastSequence returns the last sequence of messages if all were acknowledged.
func lastSequence(acks []stream.Ack) (last uint64, err error) {
	for _, a := range acks {
		if a.Err != nil {
			return 0, a.Err
		}
		last = max(last, a.Sequence)
	}
	return last, nil
}

// publish sends changes, each under the batch of the same index, and waits for the
// acknowledgements.
func (s *sender) publish(ctx context.Context, changes []objectChange, batches []int64) ([]stream.Ack, error) {
	msgs := make([]stream.Change, len(changes))
	for i, c := range changes {
		var err error
		if msgs[i], err = s.p.encodeChange(batches[i], c); err != nil {
			return nil, fmt.Errorf("encode change of %s %s: %w", c.key.Type, c.key.ID, err)
		}
	}
	acks := s.p.Conn.PublishChanges(ctx, msgs)
	failed := 0
	for _, a := range acks {
		if a.Err != nil {
			failed++
		}
	}
	s.p.metrics.changes.WithLabelValues("failed").Add(float64(failed))
	s.p.metrics.changes.WithLabelValues("acknowledged").Add(float64(len(acks) - failed))
	return acks, nil
}

// lockedRows selects rows of the outbox in the order in which all transactions lock them. Without
// it, an UPDATE locks rows in the order in which its plan finds them.
const lockedRows = `
WITH locked AS MATERIALIZED (
  SELECT o.batch FROM outbox o WHERE o.batch = ANY($1::bigint[]) ORDER BY o.batch FOR UPDATE
)`

// sentSQL is planned at each execution: a cached plan, made while the outbox was small, would read
// all of it until the next VACUUM.
const sentSQL = lockedRows + `
UPDATE outbox o SET sent_at = clock_now(), sequence = d.sequence
FROM unnest($1::bigint[], $2::bigint[]) AS d(batch, sequence) JOIN locked USING (batch) WHERE o.batch = d.batch`

// markSent records batches as sent, with the sequence of their last message.
func (s *sender) markSent(ctx context.Context, done map[int64]uint64) error {
	if len(done) == 0 {
		return nil
	}
	ids := slices.Collect(maps.Keys(done))
	sequences := make([]int64, len(ids))
	for i, id := range ids {
		sequences[i] = int64(done[id])
	}
	if _, err := s.p.Pool.Exec(ctx, sentSQL, pgx.QueryExecModeExec, ids, sequences); err != nil {
		return fmt.Errorf("mark %d batches of changes sent: %w", len(ids), err)
	}
	return nil
}

// ready returns an error if changes cannot be sent now. It also checks whether the stream has lost
// changes.
func (s *sender) ready(ctx context.Context) error {
	if !s.p.Conn.Connected() {
		return errors.New("no connection to the stream")
	}
	return s.check(ctx)
}

// check looks for a loss once after each connect and before anything is sent, because later
// messages would hide the loss.
func (s *sender) check(ctx context.Context) error {
	connect := s.p.Conn.Reconnects() + 1
	if s.checked == connect {
		return nil
	}
	if err := s.checkForLoss(ctx); err != nil {
		return err
	}
	s.checked = connect
	return nil
}

// lastSentSQL finds the change with the greatest sequence in the stream: changes that another
// process sent after a loss have smaller ones. Batches that were resent together share the
// sequence, under the last one's number.
const lastSentSQL = `SELECT batch, sequence FROM outbox WHERE sent_at IS NOT NULL ORDER BY sequence DESC, batch DESC
	LIMIT 1`

const unsendSQL = `
WITH locked AS MATERIALIZED (SELECT o.batch FROM outbox o WHERE o.sent_at IS NOT NULL ORDER BY o.batch FOR UPDATE)
UPDATE outbox o SET sent_at = NULL, sequence = NULL FROM locked l WHERE o.batch = l.batch`

// checkForLoss checks whether the stream still has the last sent change. If not, all retained rows
// are sent again.
func (s *sender) checkForLoss(ctx context.Context) error {
	var batch, sequence int64
	err := s.p.Pool.QueryRow(ctx, lastSentSQL).Scan(&batch, &sequence)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the last sent change: %w", err)
	}
	if sequence == 0 { // nothing remained to announce
		return nil
	}
	has, err := s.p.Conn.HasChange(ctx, uint64(sequence), batch)
	if err != nil || has {
		return err
	}
	tag, err := s.p.Pool.Exec(ctx, unsendSQL)
	if err != nil {
		return fmt.Errorf("mark changes unsent: %w", err)
	}
	s.p.Logger.Warn("the stream lost changes that it had acknowledged; sending the retained ones again", "batches",
		tag.RowsAffected())
	return nil
}
