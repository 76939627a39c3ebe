package stream

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"time"

	"github.com/nats-io/nats.go/jetstream"
)

// The names others may rely on.
const (
	EventsStream   = "POSTERN_EVENTS"
	ChangesStream  = "POSTERN_CHANGES"
	EventsSubject  = "postern.events"
	ChangesSubject = "postern.changes"
	// ReplaysStream has the events that runs publish for the user's own consumers; below the subject come the run's number, source and type.
	ReplaysStream  = "POSTERN_REPLAYS"
	ReplaysSubject = "postern.replays"
	RunsStream     = "POSTERN_RUNS"
	RunsSubject    = "postern.runs"
	// ProcessorConsumer is the durable consumer all processors share.
	ProcessorConsumer = "processor"
)

// Limits bound each of the streams. What they drop, the auditor brings back (events), the outbox still has (changes), or another run publishes again (replays).
type Limits struct {
	// MaxMessages bounds a stream's messages.
	MaxMessages int64
	// MaxBytes bounds a stream's size on disk.
	MaxBytes int64
	// MaxAge bounds a message's age.
	MaxAge time.Duration
	// Replicas is 1, or 3 on a cluster.
	Replicas int
	// AckWait is how long a processor may hold a message before it is given to another.
	AckWait time.Duration
	// MaxAckPending bounds the messages all processors hold together; at least 4 × batch × processors.
	MaxAckPending int
}

// DefaultLimits are the shipped ones.
var DefaultLimits = Limits{MaxMessages: 1_000_000, MaxBytes: 2 << 30, MaxAge: 24 * time.Hour, Replicas: 1, AckWait: 30 * time.Second, MaxAckPending: 20_000}

// runsMessages and runsBytes bound the stream of runs, of which there are few.
const (
	runsMessages = 100_000
	runsBytes    = 64 << 20
)

// Ensure makes the streams and the consumer as they should be, or updates them; harmless to repeat.
func (c *Conn) Ensure(ctx context.Context, l Limits) error {
	err := c.make(ctx, EventsStream, EventsSubject, "Postern: stored events, at least once; the log in PostgreSQL is the truth", l)
	if err != nil {
		return err
	}
	if err := c.make(ctx, ChangesStream, ChangesSubject, "Postern: objects as they are now, at least once; keep the highest revision", l); err != nil {
		return err
	}
	_, err = c.js.CreateOrUpdateConsumer(ctx, EventsStream, consumerConfig(l))
	if err != nil {
		return fmt.Errorf("make consumer %s: %w", ProcessorConsumer, err)
	}
	return nil
}

// EnsureReplays makes the stream of replays as it should be, or updates it. It is made when the first run publishes: who never has one needs no room for it.
func (c *Conn) EnsureReplays(ctx context.Context, l Limits) error {
	return c.make(ctx, ReplaysStream, ReplaysSubject, "Postern: stored events that a run published again, at least once", l)
}

// EnsureRuns makes the stream of runs, or updates it.
func (c *Conn) EnsureRuns(ctx context.Context, l Limits) error {
	return c.make(ctx, RunsStream, RunsSubject, "Postern: runs that have ended, at least once; the ledger in PostgreSQL is the truth", l.ofRuns())
}

// ofRuns are the limits of the stream of runs.
func (l Limits) ofRuns() Limits {
	l.MaxMessages, l.MaxBytes = min(l.MaxMessages, runsMessages), min(l.MaxBytes, runsBytes)
	return l
}

func streamConfig(name, subject, about string, l Limits) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: name, Description: about, Subjects: []string{subject + ".>"}, Retention: jetstream.LimitsPolicy, Discard: jetstream.DiscardOld,
		MaxMsgs: l.MaxMessages, MaxBytes: l.MaxBytes, MaxAge: l.MaxAge, Storage: jetstream.FileStorage, Replicas: l.Replicas,
		// No message ids are used; a window would only cost memory and swallow what is published again after a wipe.
		Duplicates: duplicates,
	}
}

const duplicates = 100 * time.Millisecond

func consumerConfig(l Limits) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: ProcessorConsumer, Description: "Postern's processors", AckPolicy: jetstream.AckExplicitPolicy, AckWait: l.AckWait,
		MaxDeliver: -1, MaxAckPending: l.MaxAckPending, DeliverPolicy: jetstream.DeliverAllPolicy,
	}
}

// Lag is how far the processors are behind the stream of events.
type Lag struct {
	// Messages are those not yet acknowledged: pending plus handed out.
	Messages uint64
	// Share is the part of the stream's limits, by messages or bytes, that the lag fills; 0 to 1.
	Share float64
	// Span is how many sequences lie from the oldest unacknowledged message to the newest; 0 where all is acknowledged.
	Span uint64
	// MaxMessages is the stream's own limit.
	MaxMessages int64
	// AckFloor is the stream sequence up to which everything is acknowledged.
	AckFloor uint64
	// OldestAge is the age of the oldest unacknowledged message, by the server's clock; 0 where there is none.
	OldestAge time.Duration
	// Last is the sequence of the stream's newest message.
	Last uint64
	// Stream tells one stream from a later one of the same name.
	Stream time.Time
}

// Room is how many more messages fit before the lag fills the given share of the stream's limits, and before all above the
// oldest unacknowledged message does, so that none is pushed out while it is in somebody's hand; 0 where either is so already.
func (l Lag) Room(share float64) int {
	if l.MaxMessages <= 0 {
		return math.MaxInt32 // somebody took the limit away
	}
	most := float64(l.MaxMessages)
	const rounding = 1e-6
	return int(max(0, math.Floor(min(share-l.Share, share-float64(l.Span)/most)*most+rounding)))
}

// Lag asks the server. withOldest costs one more request.
func (c *Conn) Lag(ctx context.Context, withOldest bool) (Lag, error) {
	s, err := c.js.Stream(ctx, EventsStream)
	if err != nil {
		return Lag{}, fmt.Errorf("read stream %s: %w", EventsStream, err)
	}
	info := s.CachedInfo()
	cons, err := s.Consumer(ctx, ProcessorConsumer)
	if err != nil {
		return Lag{}, fmt.Errorf("read consumer %s: %w", ProcessorConsumer, err)
	}
	ci := cons.CachedInfo()
	l := Lag{Messages: pending(info, ci) + uint64(ci.NumAckPending), MaxMessages: info.Config.MaxMsgs, AckFloor: ci.AckFloor.Stream, Last: info.State.LastSeq, Stream: info.Created}
	if floor := max(l.AckFloor, info.State.FirstSeq-min(info.State.FirstSeq, 1)); l.Messages > 0 && l.Last > floor {
		l.Span = l.Last - floor
	}
	if max := info.Config.MaxMsgs; max > 0 {
		l.Share = float64(l.Messages) / float64(max)
	}
	if max := info.Config.MaxBytes; max > 0 && info.State.Msgs > 0 {
		perMessage := float64(info.State.Bytes) / float64(info.State.Msgs)
		l.Share = maxOf(l.Share, perMessage*float64(l.Messages)/float64(max))
	}
	if !withOldest || l.Messages == 0 {
		return l, nil
	}
	msg, err := s.GetMsg(ctx, l.AckFloor+1, jetstream.WithGetMsgSubject(EventsSubject+".>"))
	switch {
	case errors.Is(err, jetstream.ErrMsgNotFound): // acknowledged or dropped meanwhile
	case err != nil:
		return Lag{}, fmt.Errorf("read the oldest unacknowledged message: %w", err)
	default:
		l.OldestAge = maxOf(ci.TimeStamp.Sub(msg.Time), 0)
	}
	return l, nil
}

// pending is how many messages were never handed out. The server counts them for the consumer a moment after they were stored,
// so what the sequences say may be more.
func pending(s *jetstream.StreamInfo, c *jetstream.ConsumerInfo) uint64 {
	n := c.NumPending
	if gone := max(c.Delivered.Stream, s.State.FirstSeq-min(s.State.FirstSeq, 1)); s.State.LastSeq > gone {
		n = max(n, s.State.LastSeq-gone)
	}
	return n
}

func maxOf[T float64 | time.Duration](a, b T) T {
	if a > b {
		return a
	}
	return b
}

// Gone says that an error means the stream or consumer does not exist.
func Gone(err error) bool {
	return errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound) ||
		errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrNoStreamResponse)
}

// storeFailed is the server's code of a message that a stream could not take.
const storeFailed = 10077

// Refuses says that an error means a stream that is full and takes nothing more, as somebody has set it: ours drop the oldest message instead. Ensure sets it back.
func Refuses(err error) bool {
	var refused *jetstream.APIError
	return errors.As(err, &refused) && refused.ErrorCode == storeFailed && strings.HasPrefix(refused.Description, "maximum ")
}
