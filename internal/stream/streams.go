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

// Names that users may rely on.
const (
	EventsStream   = "POSTERN_EVENTS"
	ChangesStream  = "POSTERN_CHANGES"
	EventsSubject  = "postern.events"
	ChangesSubject = "postern.changes"
	// ReplaysStream has the events that runs publish for users' consumers. The subject continues
	// with the run's number, source and type.
	ReplaysStream  = "POSTERN_REPLAYS"
	ReplaysSubject = "postern.replays"
	RunsStream     = "POSTERN_RUNS"
	RunsSubject    = "postern.runs"
	// ProcessorConsumer is the durable consumer that all processors share.
	ProcessorConsumer = "processor"
)

// Limits bound each of the streams. Events that a stream drops are published again by the
// republisher, changes are still in the outbox, and replays need another run.
type Limits struct {
	// MaxMessages bounds the messages of a stream.
	MaxMessages int64
	// MaxBytes bounds the size of a stream on disk.
	MaxBytes int64
	// MaxAge bounds the age of a message.
	MaxAge time.Duration
	// Replicas is 1, or 3 on a cluster.
	Replicas int
	// AckWait is how long a processor may take to acknowledge a message before it is delivered
	// again.
	AckWait time.Duration
	// MaxAckPending bounds the unacknowledged messages of all processors; it is at least 4 × batch
	// × processors.
	MaxAckPending int
}

// DefaultLimits are the defaults.
var DefaultLimits = Limits{MaxMessages: 1_000_000, MaxBytes: 2 << 30, MaxAge: 24 * time.Hour, Replicas: 1,
	AckWait: 30 * time.Second, MaxAckPending: 20_000}

// runsMessages and runsBytes bound the runs stream, which has few messages.
const (
	runsMessages = 100_000
	runsBytes    = 64 << 20
)

// Ensure creates the streams and the consumer, or updates their configuration. It may be repeated.
func (c *Conn) Ensure(ctx context.Context, l Limits) error {
	err := c.ensureStream(ctx, EventsStream, EventsSubject, "Postern: stored events, at least once; the log in "+
		"PostgreSQL is the truth", l)
	if err != nil {
		return err
	}
	err = c.ensureStream(ctx, ChangesStream, ChangesSubject, "Postern: objects as they are now, at least once; keep "+
		"the highest revision", l)
	if err != nil {
		return err
	}
	ctx, cancel := withResponseTimeout(ctx)
	defer cancel()
	_, err = c.js.CreateOrUpdateConsumer(ctx, EventsStream, consumerConfig(l))
	if err != nil {
		return fmt.Errorf("create consumer %s: %w", ProcessorConsumer, err)
	}
	return nil
}

// EnsureReplays creates the replays stream, or updates its configuration. It is called before the
// first run that publishes, so that other installations need no space for it.
func (c *Conn) EnsureReplays(ctx context.Context, l Limits) error {
	return c.ensureStream(ctx, ReplaysStream, ReplaysSubject, "Postern: stored events that a run published again, at "+
		"least once", l)
}

// EnsureRuns creates the runs stream, or updates its configuration.
func (c *Conn) EnsureRuns(ctx context.Context, l Limits) error {
	return c.ensureStream(ctx, RunsStream, RunsSubject, "Postern: runs that have ended, at least once; the ledger in "+
		"PostgreSQL is the truth", l.forRuns())
}

// forRuns returns the limits of the runs stream.
func (l Limits) forRuns() Limits {
	l.MaxMessages, l.MaxBytes = min(l.MaxMessages, runsMessages), min(l.MaxBytes, runsBytes)
	return l
}

func streamConfig(name, subject, description string, l Limits) jetstream.StreamConfig {
	return jetstream.StreamConfig{
		Name: name, Description: description, Subjects: []string{subject + ".>"}, Retention: jetstream.LimitsPolicy,
		Discard: jetstream.DiscardOld, MaxMsgs: l.MaxMessages, MaxBytes: l.MaxBytes, MaxAge: l.MaxAge,
		Storage: jetstream.FileStorage, Replicas: l.Replicas,
		// Postern uses no message ids. A longer window would only cost memory, and drop messages
		// that are published again after a stream was deleted.
		Duplicates: duplicates,
	}
}

const duplicates = 100 * time.Millisecond

func consumerConfig(l Limits) jetstream.ConsumerConfig {
	return jetstream.ConsumerConfig{
		Durable: ProcessorConsumer, Description: "Postern's processors", AckPolicy: jetstream.AckExplicitPolicy,
		AckWait: l.AckWait, MaxDeliver: -1, MaxAckPending: l.MaxAckPending, DeliverPolicy: jetstream.DeliverAllPolicy,
	}
}

// Lag is how far the processors are behind the events stream.
type Lag struct {
	// Messages are those that are not acknowledged yet, delivered or not.
	Messages uint64
	// Ratio is the ratio of the lag to the stream's limits, by messages or bytes; 0 to 1.
	Ratio float64
	// Span is the number of sequences from the oldest unacknowledged message to the newest; 0 if
	// all are acknowledged.
	Span uint64
	// MaxMessages is the stream's own limit.
	MaxMessages int64
	// AckFloor is the stream sequence up to which everything is acknowledged.
	AckFloor uint64
	// OldestAge is the age of the oldest unacknowledged message by the server's clock; 0 if there
	// is none.
	OldestAge time.Duration
	// LastSequence is the sequence of the stream's newest message.
	LastSequence uint64
	// StreamCreated is when the stream was created. It distinguishes a stream from a later one of
	// the same name.
	StreamCreated time.Time
}

// Capacity returns how many more messages may be published before the lag reaches the given ratio
// of the stream's limits. It also bounds the messages above the oldest unacknowledged one, so that
// the stream drops none that is in progress. It returns 0 if a limit is reached already.
func (l Lag) Capacity(ratio float64) int {
	if l.MaxMessages <= 0 {
		return math.MaxInt32 // an operator removed the limit
	}
	maxMessages := float64(l.MaxMessages)
	const rounding = 1e-6
	return int(max(0, math.Floor(min(ratio-l.Ratio, ratio-float64(l.Span)/maxMessages)*maxMessages+rounding)))
}

// Lag reads the lag from the server. withOldest costs one more request.
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
	l := Lag{Messages: pending(info, ci) + uint64(ci.NumAckPending), MaxMessages: info.Config.MaxMsgs,
		AckFloor: ci.AckFloor.Stream, LastSequence: info.State.LastSeq, StreamCreated: info.Created}
	if floor := max(l.AckFloor, info.State.FirstSeq-min(info.State.FirstSeq, 1)); l.Messages > 0 &&
		l.LastSequence > floor {
		l.Span = l.LastSequence - floor
	}
	if max := info.Config.MaxMsgs; max > 0 {
		l.Ratio = float64(l.Messages) / float64(max)
	}
	if max := info.Config.MaxBytes; max > 0 && info.State.Msgs > 0 {
		perMessage := float64(info.State.Bytes) / float64(info.State.Msgs)
		l.Ratio = maxOf(l.Ratio, perMessage*float64(l.Messages)/float64(max))
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

// pending returns how many messages were never delivered. The server counts them for the consumer
// only a moment after they are stored, so the sequences may show more.
func pending(s *jetstream.StreamInfo, c *jetstream.ConsumerInfo) uint64 {
	n := c.NumPending
	if delivered := max(c.Delivered.Stream, s.State.FirstSeq-min(s.State.FirstSeq, 1)); s.State.LastSeq > delivered {
		n = max(n, s.State.LastSeq-delivered)
	}
	return n
}

func maxOf[T float64 | time.Duration](a, b T) T {
	if a > b {
		return a
	}
	return b
}

// IsNotFound returns true for an error which means that the stream or consumer does not exist.
func IsNotFound(err error) bool {
	return errors.Is(err, jetstream.ErrStreamNotFound) || errors.Is(err, jetstream.ErrConsumerNotFound) ||
		errors.Is(err, jetstream.ErrConsumerDeleted) || errors.Is(err, jetstream.ErrNoStreamResponse)
}

// codeStoreFailed is the server's error code for a message that a stream could not store.
const codeStoreFailed = 10077

// IsStreamFull returns true for an error which means that the stream is full and rejects messages.
// An operator has changed its configuration then, because Postern's streams drop the oldest message
// instead. Ensure restores it.
func IsStreamFull(err error) bool {
	var apiErr *jetstream.APIError
	return errors.As(err, &apiErr) && apiErr.ErrorCode == codeStoreFailed &&
		strings.HasPrefix(apiErr.Description, "maximum ")
}
