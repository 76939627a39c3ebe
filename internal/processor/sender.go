package processor

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/postern-gateway/postern/internal/lifecycle"
	"github.com/postern-gateway/postern/internal/stream"
	"github.com/postern-gateway/postern/internal/versioning"
)

// batch is an outbox row with what it announces.
type batch struct {
	id      int64
	changes []changed
	bytes   int64
}

// sender publishes changes after their commit and sweeps up what stayed unsent.
type sender struct {
	p       *Processor
	queue   chan batch
	waiting atomic.Int64 // bytes of states in queue
	// checked is the connect, counted from 1, after which the stream was last asked what it still has.
	checked uint64
	// sweepAfter is when the next sweep may run; trouble puts it off.
	sweepAfter time.Time
}

// senderQueue and senderQueueBytes bound what waits to be sent; beyond them the sweep has it.
const (
	senderQueue      = 256
	senderQueueBytes = 64 << 20
)

func newSender(p *Processor) *sender { return &sender{p: p, queue: make(chan batch, senderQueue)} }

// offer hands over what a committed transaction wrote; it never blocks.
func (s *sender) offer(id int64, objs []*versioning.Object) {
	if s.p.Conn == nil || s.waiting.Load() > senderQueueBytes {
		return
	}
	b := batch{id: id, changes: make([]changed, len(objs))}
	for i, o := range objs {
		b.changes[i] = changed{key: o.Key, version: o.Version, revision: o.Revision, event: o.LastEvent, deleted: o.State.Deleted,
			ambiguous: o.Ambiguous, state: o.State.JSON, redacted: len(o.Set) == 0 && o.Version != versioning.NoVersion}
		b.bytes += int64(len(o.State.JSON))
	}
	s.waiting.Add(b.bytes)
	select {
	case s.queue <- b:
	default:
		s.waiting.Add(-b.bytes)
	}
}

const (
	// gatherBatches bounds how many waiting batches are sent together.
	gatherBatches = 64
	sweepEvery    = time.Second
)

// sendWithin bounds one step of sending: a connection may be lost without a word.
const sendWithin = time.Minute

func within(ctx context.Context, name string, do func(context.Context) error) error {
	ctx, cancel := lifecycle.WithTimeout(ctx, name, sendWithin)
	defer cancel()
	return do(ctx)
}

// run sends until ctx ends. Trouble is logged once per spell and left to the sweep.
func (s *sender) run(ctx context.Context) error {
	tick := time.NewTicker(sweepEvery)
	defer tick.Stop()
	troubled := false
	for {
		var do func(context.Context) error
		select {
		case <-ctx.Done():
			return nil
		case b := <-s.queue:
			do = func(ctx context.Context) error { return s.send(ctx, s.gather(b)) }
		case <-s.p.Conn.Reconnected():
			do = s.check
		case <-tick.C:
			do = s.sweep
		}
		err := within(ctx, "send changes", do)
		if err != nil && !troubled && ctx.Err() == nil {
			s.p.Logger.Warn("changes not sent; they are sent again later", "error", err)
		}
		troubled = err != nil
	}
}

func (s *sender) gather(first batch) []batch {
	bs, bytes := []batch{first}, first.bytes
	defer func() { s.waiting.Add(-bytes) }()
	for len(bs) < gatherBatches {
		select {
		case b := <-s.queue:
			bs, bytes = append(bs, b), bytes+b.bytes
		default:
			return bs
		}
	}
	return bs
}

// send publishes batches and marks those sent whose every message was acknowledged.
func (s *sender) send(ctx context.Context, bs []batch) error {
	if err := s.ready(ctx); err != nil {
		return err
	}
	var all []changed
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
		last, err := settled(acks[:len(b.changes)])
		acks = acks[len(b.changes):]
		if err != nil {
			failed = err
			continue
		}
		done[b.id] = last
	}
	return errors.Join(s.mark(ctx, done), s.p.setBack(ctx, failed))
}

// setBack makes the streams as they should be, where an error says that one is gone, or that it refuses what it has no room for: nothing would come through before its messages are too old. It
// returns the error.
func (p *Processor) setBack(ctx context.Context, err error) error {
	switch {
	case stream.Refuses(err):
		p.Logger.Warn("a stream refuses messages since it is full; it is set back to drop the oldest", "error", err)
	case !stream.Gone(err):
		return err
	}
	return errors.Join(err, p.Conn.Ensure(ctx, p.Limits))
}

// settled is the last sequence of messages that all were acknowledged.
func settled(acks []stream.Ack) (last uint64, err error) {
	for _, a := range acks {
		if a.Err != nil {
			return 0, a.Err
		}
		last = max(last, a.Sequence)
	}
	return last, nil
}

// publish sends changes, each under the batch of the same index, and waits for the answers.
func (s *sender) publish(ctx context.Context, changes []changed, batches []int64) ([]stream.Ack, error) {
	msgs := make([]stream.Change, len(changes))
	for i, c := range changes {
		var err error
		if msgs[i], err = s.p.change(batches[i], c); err != nil {
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

// sentSQL is planned anew each time: a plan that is kept was made while the outbox was small, and reads all of it, up to its next VACUUM.
const sentSQL = `
UPDATE outbox o SET sent_at = clock_now(), sequence = d.sequence FROM unnest($1::bigint[], $2::bigint[]) AS d(batch, sequence) WHERE o.batch = d.batch`

// mark records batches as sent, with the sequence of their last message.
func (s *sender) mark(ctx context.Context, done map[int64]uint64) error {
	if len(done) == 0 {
		return nil
	}
	var ids, sequences []int64
	for id, sequence := range done {
		ids, sequences = append(ids, id), append(sequences, int64(sequence))
	}
	if _, err := s.p.Pool.Exec(ctx, sentSQL, pgx.QueryExecModeExec, ids, sequences); err != nil {
		return fmt.Errorf("mark %d batches of changes sent: %w", len(ids), err)
	}
	return nil
}

// ready says whether changes can be sent now, and first finds out what the stream may have lost.
func (s *sender) ready(ctx context.Context) error {
	if !s.p.Conn.Connected() {
		return errors.New("no connection to the stream")
	}
	return s.check(ctx)
}

// check asks once after each (re)connect, before anything is sent, since what is sent after a loss would hide it.
func (s *sender) check(ctx context.Context) error {
	connect := s.p.Conn.Connects() + 1
	if s.checked == connect {
		return nil
	}
	if err := s.recheck(ctx); err != nil {
		return err
	}
	s.checked = connect
	return nil
}

// lastSentSQL finds the change furthest along in the stream: one that another process sent after a loss lies before it. Batches
// that were swept together share the sequence, under the last one's number.
const lastSentSQL = `SELECT batch, sequence FROM outbox WHERE sent_at IS NOT NULL ORDER BY sequence DESC, batch DESC LIMIT 1`

const unsendSQL = `UPDATE outbox SET sent_at = NULL, sequence = NULL WHERE sent_at IS NOT NULL`

// recheck asks whether the stream still has the last settled change; if not, all kept rows go again.
func (s *sender) recheck(ctx context.Context) error {
	var batch, sequence int64
	err := s.p.Pool.QueryRow(ctx, lastSentSQL).Scan(&batch, &sequence)
	if errors.Is(err, pgx.ErrNoRows) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("read the last sent change: %w", err)
	}
	if sequence == 0 { // nothing was left to announce
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
	s.p.Logger.Warn("the stream lost changes that it had acknowledged; sending the kept ones again", "batches", tag.RowsAffected())
	return nil
}
